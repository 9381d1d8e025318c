# SPDX-License-Identifier: Apache-2.0
"""Collectives and symmetric memory through shared memory between the CPU ranks of one host; see ``docs/native.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hp_native.symmetric import barrier, empty, get, peer, put, read_signal, signal, wait_signal

__all__ = ["barrier", "empty", "get", "peer", "put", "read_signal", "signal", "wait_signal"]


def __getattr__(name: str) -> Any:
    """Load what moves data only when it is used: ``import hp_native`` imports no framework and no library."""
    if name in __all__:
        from hp_native import symmetric

        return getattr(symmetric, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
