# SPDX-License-Identifier: Apache-2.0
"""The communication state of this process: the store, the members, the backends, the groups."""

from __future__ import annotations

import os
import time
from typing import NoReturn

from hp_core.comm.backend import CommBackend, Handle, Launch, Member, Store
from hp_core.comm.group import Group
from hp_core.comm.launch_env import read_launch
from hp_core.comm.local import LocalChannel, LocalStore
from hp_core.comm.roster import exchange_members
from hp_core.comm.select import boot_backend, group_backends
from hp_core.comm.types import Call
from hp_core.errors import CommError, CommTimeoutError

_current: Session | None = None
_SLICE_S = 0.25


class Session:
    """One life of the communication layer, from ``init_backend`` to ``shutdown``."""

    def __init__(self, launch: Launch, boot: CommBackend, others: list[CommBackend]) -> None:
        self.launch = launch
        self.timeout_s = launch.timeout_s
        self.boot = boot
        self.closed = False
        #: Whether anything looks at each call (hooks, HP_CHECK=collectives).
        self.watched = False
        self.groups: dict[tuple[int, ...], Group] = {}
        alone = launch.world_size == 1 and boot.name != "fake"
        self.store: Store = LocalStore() if alone else boot.bootstrap(launch)
        self.members: tuple[Member, ...] = exchange_members(self.store, launch, [b.name for b in (*others, boot)])
        self._backends = {backend.name: backend for backend in (*others, boot)}
        for backend in self._backends.values():
            backend.attach(self.store, self.members, launch.rank)
        self.world = self._make(tuple(range(launch.world_size)), "world")
        self.groups[self.world.ranks] = self.world

    def group(self, ranks: tuple[int, ...], name: str | None) -> Group:
        """Return the group of ``ranks``, made at the first call."""
        group = self.groups.get(ranks)
        if group is None:
            size = self.launch.world_size
            if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= size:
                raise CommError(f"ranks {list(ranks)} are not some different ranks of a world of {size}")
            if self.launch.rank not in ranks:
                raise CommError(
                    f"rank {self.launch.rank} asked for a group of ranks {list(ranks)}, which it is not a member of; "
                    "only members call new_group"
                )
            group = self.groups[ranks] = self._make(ranks, name or f"ranks[{','.join(map(str, ranks))}]")
        elif name is not None and group.name != name and group.name.startswith("ranks["):
            group.name = name
        return group

    def _make(self, ranks: tuple[int, ...], name: str) -> Group:
        index = ranks.index(self.launch.rank)
        if len(ranks) == 1 and self.boot.name != "fake":
            return Group(ranks, index, name, self.boot.name, LocalChannel(), self)
        members = [self.members[rank] for rank in ranks]
        candidates = [n for n in members[0].backends if all(n in member.backends for member in members)]
        chosen = next(self._backends[n] for n in candidates if self._backends[n].suits(members))
        key = name if name == "world" else "group/" + "-".join(map(str, ranks))
        channel = chosen.connect(key, ranks, index, self.timeout_s)
        return Group(ranks, index, name, chosen.name, channel, self)

    def refuse_grad(self, kind: str, group: Group) -> None:
        """Raise where gradients are being recorded: the collective would be missing from the backward."""
        if self.boot.recording():
            raise CommError(
                f"{kind} on group {group.name}: the tensor requires grad, and collectives are not recorded for the "
                "backward; call it under no_grad, or on tensor.detach()"
            )

    def raise_closed(self, group: Group) -> NoReturn:
        """Raise for a group of a session that was shut down."""
        raise CommError(f"group {group.name} belongs to communication that was shut down; make it again with new_group")

    def before(self, call: Call) -> None:
        """Tell whoever listens that ``call`` begins."""

    def after(self, call: Call) -> None:
        """Tell whoever listens that ``call`` is complete."""

    def wait_slowly(self, call: Call, handle: Handle, timeout_s: float | None) -> None:
        """Wait on after the first second, looking up now and then."""
        end = call.started + call.timeout_s if timeout_s is None else time.monotonic() + timeout_s
        try:
            while not handle.wait(_SLICE_S):
                if time.monotonic() >= end:
                    raise TimeoutError
        except Exception as exc:
            self.fail(call, exc)

    def fail(self, call: Call, exc: Exception) -> NoReturn:
        """Raise the error of ``call``."""
        kind = CommTimeoutError if isinstance(exc, TimeoutError) else CommError
        raise kind(f"rank {self.launch.rank}: {call} failed: {exc}") from exc

    def close(self) -> None:
        """Close every channel and backend."""
        self.closed = True
        for group in self.groups.values():
            group.channel.close()
        for backend in self._backends.values():
            backend.shutdown()


def init_backend(
    device_type: str = "cpu",
    *,
    backend: str | None = None,
    timeout_s: float = 300.0,
    rank: int | None = None,
    world_size: int | None = None,
) -> Group:
    """Bring communication up and return the world; every rank calls it. A second call returns the same world.

    The job is described by ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT`` (set by ``hp run``, torchrun);
    without them this is a world of one, which needs no port. If torch.distributed is initialised already, it is used.

    Args:
        device_type: Where tensors live: ``"cpu"``, ``"cuda"`` or ``"npu"``.
        backend: What moves them; by default ``HP_COMM``, else the best for each group. ``"c10d"`` (also by its
            libraries' names ``"gloo"``, ``"nccl"``, ``"hccl"``), ``"fake"``, or what a plugin offers.
        timeout_s: How long ranks may take to come up, and any collective may take that is not told otherwise.
        rank: Instead of ``RANK``.
        world_size: Instead of ``WORLD_SIZE``.

    Raises:
        CommError: the environment is wrong, the port is taken, ranks are missing, or it is up with other settings.
        PluginError: ranks have different plugins, or the backend is unknown.
    """
    global _current
    if _current is not None:
        asked = (device_type, world_size or _current.launch.world_size)
        have = (_current.launch.device_type, _current.launch.world_size)
        if asked != have:
            raise CommError(
                f"communication is already up for {have[0]} with {have[1]} ranks, asked again for {asked[0]} with "
                f"{asked[1]}; call hp_core.comm.shutdown() first"
            )
        return _current.world
    if not timeout_s > 0:
        raise CommError(f"timeout_s must be positive, not {timeout_s}")
    wanted = backend or os.environ.get("HP_COMM") or None
    boot = boot_backend(device_type, wanted)
    launch = read_launch(device_type, timeout_s, rank, world_size)
    _current = Session(launch, boot, group_backends(boot, wanted))
    return _current.world


def current() -> Session:
    """Return the session.

    Raises:
        CommError: communication is not up.
    """
    if _current is None:
        raise CommError("communication is not up; call hp_core.comm.init_backend() first")
    return _current


def is_initialized() -> bool:
    """Return whether communication is up."""
    return _current is not None


def shutdown() -> None:
    """Bring communication down; every rank calls it. ``init_backend`` may follow. Nothing happens when it is not up."""
    global _current
    session, _current = _current, None
    if session is not None:
        session.close()


def world() -> Group:
    """Return the group of all ranks."""
    return current().world


def rank() -> int:
    """Return this process's rank in the world."""
    return current().launch.rank


def world_size() -> int:
    """Return the number of ranks in the world."""
    return current().launch.world_size


def new_group(ranks: list[int] | tuple[int, ...] | range, name: str | None = None) -> Group:
    """Return the group of some ranks in the given order; its members call it, the others do not.

    Groups are kept by their ranks: asking again costs nothing. Members that make several groups make them in the same
    order. A group of one moves nothing.

    Args:
        ranks: World ranks, each once; rank ``i`` of the group is ``ranks[i]``.
        name: What errors call it; by default its ranks.

    Raises:
        CommError: the ranks are not ranks of the world, or this rank is not among them.
        CommTimeoutError: a member did not make the group in time.
    """
    return current().group(tuple(int(rank) for rank in ranks), name)
