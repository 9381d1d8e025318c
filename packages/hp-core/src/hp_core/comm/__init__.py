# SPDX-License-Identifier: Apache-2.0
"""Communication between ranks: one functional interface over interchangeable backends. See docs/communication.md."""

from __future__ import annotations

from hp_core.comm.api import (
    all_gather,
    all_gather_object,
    all_reduce,
    all_to_all,
    barrier,
    batch_p2p,
    broadcast,
    broadcast_object,
    reduce_scatter,
)
from hp_core.comm.group import Group
from hp_core.comm.session import abort, init_backend, is_initialized, new_group, rank, shutdown, world, world_size
from hp_core.comm.types import P2P, ReduceOp, Work
from hp_core.errors import CommError, CommTimeoutError

__all__ = [
    "P2P",
    "CommError",
    "CommTimeoutError",
    "Group",
    "ReduceOp",
    "Work",
    "abort",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "barrier",
    "batch_p2p",
    "broadcast",
    "broadcast_object",
    "init_backend",
    "is_initialized",
    "new_group",
    "rank",
    "reduce_scatter",
    "shutdown",
    "world",
    "world_size",
]
