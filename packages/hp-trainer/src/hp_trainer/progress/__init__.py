# SPDX-License-Identifier: Apache-2.0
"""Progress on the terminal: a live panel where there is one, plain lines everywhere else.

``state`` is what there is to show, ``panel`` draws it with rich, ``lines`` writes it as plain text, ``callback`` is
told by the trainer.
"""

from __future__ import annotations

from hp_trainer.progress.callback import Progress

__all__ = ["Progress"]
