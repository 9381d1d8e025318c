# SPDX-License-Identifier: Apache-2.0
"""The exchange at start-up: every rank learns every member, and that all have the same plugins."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from hp_core.comm.backend import Launch, Member, Store
from hp_core.errors import CommTimeoutError


def exchange_members(store: Store, launch: Launch, backends: Sequence[str]) -> tuple[Member, ...]:
    """Return all members in rank order. Rank 0 collects and publishes them, so that all ranks decide alike.

    Raises:
        CommTimeoutError: a rank did not come in time; every rank that came names it.
        PluginError: ranks have different plugins; raised on all of them.
    """
    mine = {"host": host_identity(), "device_type": launch.device_type, "pid": os.getpid(), "backends": list(backends)}
    if launch.world_size == 1:
        return (_member(0, mine),)
    store.set(f"member/{launch.rank}", json.dumps(mine).encode())
    if launch.rank == 0:
        roster = _collect(store, launch)
        store.set("roster", json.dumps(roster).encode())
    else:
        # Rank 0 says who is missing; it may itself have started a little later.
        data = store.get("roster", launch.timeout_s + 10.0)
        if data is None:
            raise CommTimeoutError(
                f"rank {launch.rank}: rank 0 did not come up within {launch.timeout_s:g} s; look at its log"
            )
        roster = json.loads(data)
    if roster["missing"]:
        raise CommTimeoutError(
            f"rank {launch.rank}: rank {', '.join(map(str, roster['missing']))} of {launch.world_size} did not come up "
            f"within {launch.timeout_s:g} s; look at its log, or raise timeout_s of init_backend"
        )
    return tuple(_member(rank, about) for rank, about in enumerate(roster["members"]))


def _member(rank: int, about: dict[str, Any]) -> Member:
    return Member(rank, about["host"], about["device_type"], about["pid"], tuple(about["backends"]))


def _collect(store: Store, launch: Launch) -> dict[str, Any]:
    import time

    end = time.monotonic() + launch.timeout_s
    members: list[Any] = []
    missing: list[int] = []
    for rank in range(launch.world_size):
        data = store.get(f"member/{rank}", max(end - time.monotonic(), 0.001))
        if data is None:
            missing.append(rank)
        else:
            members.append(json.loads(data))
    return {"members": members, "missing": missing}


def host_identity() -> str:
    """Return what is equal for all processes of one host (and container), and for no others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/ipc')}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
