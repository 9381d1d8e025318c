# SPDX-License-Identifier: Apache-2.0
"""Keep transformers' own progress bars and notices off the terminal, where the live table is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Show only errors of transformers within the block, and restore its settings afterwards."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging  # untyped

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
