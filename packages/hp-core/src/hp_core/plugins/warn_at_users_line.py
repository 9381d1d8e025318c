# SPDX-License-Identifier: Apache-2.0
"""Warnings that point at the user's code, however deep in ours the plugins happened to be loaded."""

from __future__ import annotations

import sys
import warnings

from hp_core.catalog import FIRST_PARTY
from hp_core.errors import PluginWarning

#: Top-level modules whose frames say nothing to a user: ours, and the import system between them.
_PASSED_OVER = {name.replace("-", "_") for name in FIRST_PARTY} | {"hyper_parallel", "importlib", "_frozen_importlib"}


def warn_at_users_line(message: str) -> None:
    """Warn with the line that called into the library, where Python shows a repeated warning once."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        PluginWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
