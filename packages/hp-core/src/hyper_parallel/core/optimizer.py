# SPDX-License-Identifier: Apache-2.0
"""Another path to `hp_optim`; imported when a name is asked for."""

from hp_core.lazy import alias

__getattr__, __dir__ = alias(__name__, "hp_optim")
