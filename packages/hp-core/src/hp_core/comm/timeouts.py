# SPDX-License-Identifier: Apache-2.0
"""Time limits as callers give them."""

from __future__ import annotations

from typing import Any

from hp_core.errors import CommError

#: Thirty years; libraries count in nanoseconds, and these still fit.
MAX_TIMEOUT_S = 1e9


def seconds(timeout_s: Any, what: str = "timeout_s") -> float:
    """Return ``timeout_s`` if it is a time limit.

    Raises:
        CommError: it is no number, not positive, or not finite.
    """
    try:
        fits = 0 < timeout_s <= MAX_TIMEOUT_S
    except TypeError:
        fits = False
    if not fits:
        raise CommError(
            f"{what} must be positive, not {timeout_s!r}: give seconds, up to {MAX_TIMEOUT_S:g} (leave it out for the "
            "limit given to init_backend)"
        )
    return float(timeout_s)
