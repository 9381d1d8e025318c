# SPDX-License-Identifier: Apache-2.0
"""What hp-native offers."""

from __future__ import annotations

from hp_core.plugins import hookimpl
from hp_core.provide import Provide


@hookimpl
def hp_provide() -> list[Provide]:
    """Offer shared memory, before other backends, to groups of CPU ranks on one host, or on several that it helps."""
    return [
        Provide("comm", "shm", "hp_native.backend:ShmBackend", priority=10),
        Provide("comm", "hier", "hp_native.hier:HierBackend", platform="torch", priority=5),
    ]


@hookimpl
def hp_report_lines() -> list[tuple[str, str]]:
    """Say whether the C++ library is there, and how it was built."""
    from hp_native import library

    return [("hp-native", library.state())]
