# SPDX-License-Identifier: Apache-2.0
"""The exchange at start-up: every rank learns every member, and that all have the same plugins."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from hp_core.comm.backend import Launch, Member
from hp_core.comm.watchdog import StoreSilentError, Watchdog
from hp_core.errors import CommError, CommTimeoutError, PluginError
from hp_core.plugins import describe_difference, fingerprint, manifest

_SLICE_S = 1.0
_ANSWER_S = 10.0
#: Rank 0 decides who is missing; the others give it this much longer than themselves.
_PATIENCE_S = 10.0
#: For ranks that ended before they had said what they have.
_UNKNOWN_DIFFERENCE = "plugins differ between ranks: compare `hp plugins list` on every node"


def this_member(launch: Launch, backends: Sequence[str]) -> Member:
    """Return what this rank tells the others about itself."""
    return Member(launch.rank, host_identity(), launch.device_type, os.getpid(), tuple(backends))


def exchange_members(watchdog: Watchdog, launch: Launch, me: Member) -> tuple[Member, ...]:
    """Return all members in rank order. Rank 0 collects and publishes them, so that all ranks decide alike.

    Raises:
        CommTimeoutError: a rank did not come in time; every rank that came names it.
        PluginError: ranks have different plugins; raised on all of them.
        CommError: the store does not answer.
    """
    rank = launch.rank
    mine = {
        "host": me.host,
        "device_type": me.device_type,
        "pid": me.pid,
        "backends": me.backends,
        "plugins": fingerprint(),
    }
    data = json.dumps(mine).encode()
    try:
        watchdog.ask(lambda store: store.set(f"member/{rank}", data), _ANSWER_S)
        if rank == 0:
            roster = _collect(watchdog, launch)
            text = json.dumps(roster).encode()
            watchdog.ask(lambda store: store.set("roster", text), _ANSWER_S)
            difference = _difference(watchdog, launch) if roster["plugins_differ"] else ""
            if roster["missing"] or difference:
                _let_others_read(watchdog, launch, roster["missing"])
        else:
            answer = _get(watchdog, "roster", time.monotonic() + launch.timeout_s + _PATIENCE_S)
            if answer is None:
                raise CommTimeoutError(
                    f"rank {rank}: rank 0 did not come up within {launch.timeout_s:g} s; look at its log, or raise "
                    "timeout_s of init_backend"
                )
            roster = json.loads(answer)
            difference = _others_difference(watchdog, rank) if roster["plugins_differ"] else ""
            if roster["missing"] or difference:
                watchdog.ask(lambda store: store.set(f"read/{rank}", b"1"), _ANSWER_S)
    except StoreSilentError as exc:
        host = f"{launch.master_addr}:{launch.master_port}"
        raise CommError(
            f"rank {rank}: the job's store at {host} stopped answering during start-up ({exc}); look at the log of "
            f"{'the launcher' if launch.agent_store else 'rank 0'}, which hosts it"
        ) from exc
    if roster["missing"]:
        missing = roster["missing"]
        raise CommTimeoutError(
            f"rank {rank}: rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {launch.world_size} "
            f"did not come up within {launch.timeout_s:g} s; look at the log there, or raise timeout_s of init_backend"
        )
    if difference:
        raise PluginError(f"rank {rank}: {difference}")
    return tuple(
        Member(rank, about["host"], about["device_type"], about["pid"], tuple(about["backends"]))
        for rank, about in enumerate(roster["members"])
    )


def _get(watchdog: Watchdog, key: str, end: float) -> bytes | None:
    while True:
        data: bytes | None = watchdog.ask(lambda store: store.get(key, _SLICE_S), _SLICE_S + _ANSWER_S)
        if data is not None or time.monotonic() >= end:
            return data


def _collect(watchdog: Watchdog, launch: Launch) -> dict[str, Any]:
    end = time.monotonic() + launch.timeout_s
    members: list[dict[str, Any]] = []
    missing: list[int] = []
    for rank in range(launch.world_size):
        data = _get(watchdog, f"member/{rank}", end)
        if data is None:
            missing.append(rank)
        else:
            members.append(json.loads(data))
    prints = {about.pop("plugins") for about in members}
    return {"members": members, "missing": missing, "plugins_differ": len(prints) > 1 and not missing}


def _difference(watchdog: Watchdog, launch: Launch) -> str:
    """Gather the manifests, which are sent only where their hashes differ, and tell all ranks what is different."""
    end = time.monotonic() + _ANSWER_S
    manifests = {0: manifest()}
    for rank in range(1, launch.world_size):
        data = _get(watchdog, f"manifest/{rank}", end)
        if data is not None:
            manifests[rank] = data.decode()
    text = describe_difference(manifests) or _UNKNOWN_DIFFERENCE
    watchdog.ask(lambda store: store.set("difference", text.encode()), _ANSWER_S)
    return text


def _others_difference(watchdog: Watchdog, rank: int) -> str:
    data = manifest().encode()
    watchdog.ask(lambda store: store.set(f"manifest/{rank}", data), _ANSWER_S)
    text = _get(watchdog, "difference", time.monotonic() + 2 * _ANSWER_S)
    return _UNKNOWN_DIFFERENCE if text is None else text.decode()


def _let_others_read(watchdog: Watchdog, launch: Launch, missing: Sequence[int]) -> None:
    """Rank 0 may host the store: it must not end before the others have read why."""
    end = time.monotonic() + _ANSWER_S
    for rank in set(range(1, launch.world_size)) - set(missing):
        if _get(watchdog, f"read/{rank}", end) is None:
            return


def host_identity() -> str:
    """Return what is equal for all processes of one host (and container), and for no others.

    Processes in different network namespaces are not on one host either: the sockets over which memory is shared do not
    reach from one into the other. ``HP_HOST`` splits a host, to try on one machine what runs on several: processes with
    different values count as on different hosts. It never makes one host of two.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts = [file.read().strip()]
        parts += [os.readlink(f"/proc/self/ns/{kind}") for kind in ("ipc", "pid", "net")]
    except OSError:
        parts = [socket.gethostname()]
    split = os.environ.get("HP_HOST")
    return "/".join([*parts, split] if split else parts)
