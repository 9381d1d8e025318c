# SPDX-License-Identifier: Apache-2.0
"""The communication state of this process: the store, the members, the backends, the groups."""

from __future__ import annotations

import atexit
import os
import time
from typing import NoReturn

from hp_core.comm.agreement import check_agreement
from hp_core.comm.arguments import whole_numbers
from hp_core.comm.backend import CommBackend, Launch, Member, Store
from hp_core.comm.diagnosis import (
    describe_call,
    describe_dead,
    first_line,
    group_key,
    outlive,
    process_state,
    take_snapshot,
)
from hp_core.comm.group import Group
from hp_core.comm.in_flight import InFlight
from hp_core.comm.launch_env import read_launch
from hp_core.comm.local import LocalChannel, LocalStore
from hp_core.comm.meeting import meet
from hp_core.comm.roster import exchange_members, this_member
from hp_core.comm.select import boot_backend, check_same, group_backends, take_device
from hp_core.comm.timeouts import seconds
from hp_core.comm.types import Call
from hp_core.comm.watchdog import Fault, StoreSilentError, Watchdog
from hp_core.errors import CommError, CommTimeoutError
from hp_core.plugins import has_hook, hooks

_current: Session | None = None
_LINGER_S = 2.0


class Session:
    """One life of the communication layer, from ``init_backend`` to ``shutdown``.

    Args:
        launch: This process's place in the job.
        boot: The backend that brings the world up and serves any group.
        others: Backends that may serve groups instead, best first.
    """

    def __init__(self, launch: Launch, boot: CommBackend, others: list[CommBackend]) -> None:
        self.launch = launch
        self.timeout_s = launch.timeout_s
        #: Why nothing more can be communicated: shut down, or a rank failed.
        self.down: str | None = None
        self._failure: Fault | None = None
        self.members: tuple[Member, ...] = ()
        #: What the main thread waits in.
        self.waiting: Call | None = None
        self.in_flight = InFlight()
        #: Whether this process is a fork of the rank: what it holds belongs to the parent.
        self.forked = False
        self.groups: dict[tuple[int, ...], Group] = {}
        self._boot = boot
        #: Whether this process stands for all ranks: nothing is exchanged, and ``members`` are all this one.
        self.simulated = boot.simulated
        self.backends = {backend.name: backend for backend in (*others, boot)}
        self._hooks = has_hook("hp_before_collective") or has_hook("hp_after_collective")
        self._check = "collectives" in os.environ.get("HP_CHECK", "").replace(",", " ").split()
        #: Whether anything looks at each call.
        self.watched = self._hooks or self._check
        self._watchdog: Watchdog | None = None
        me = this_member(launch, list(self.backends))
        if boot.simulated or launch.world_size == 1:
            self._store: Store = boot.bootstrap(launch) if boot.simulated else LocalStore()
            self.members = (me,) * launch.world_size
        else:
            self._store = boot.bootstrap(launch)
            self._watchdog = Watchdog(
                self._store.clone(),
                launch.rank,
                lambda: take_snapshot(self.groups.values(), self.waiting),
                self._take_down,
                self._store_host_gone,
            )
            try:
                self.members = exchange_members(self._watchdog, launch, me)
            except BaseException:
                self._watchdog.stop()
                raise
        try:
            for backend in self.backends.values():
                backend.attach(self._store, self.members, launch.rank)
            self.world = self._make(tuple(range(launch.world_size)), "world")
        except CommError:
            self.close()
            raise
        except Exception as exc:
            self.close()
            raise CommError(f"rank {launch.rank}: the world did not connect: {first_line(exc)}") from exc
        self.groups[self.world.ranks] = self.world

    def group(self, ranks: tuple[int, ...], name: str | None) -> Group:
        """Return the group of ``ranks``, made at the first call."""
        group = self.groups.get(ranks)
        if group is None:
            size = self.launch.world_size
            if not ranks or len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= size:
                raise CommError(
                    f"ranks {list(ranks)} are not some different ranks of a world of {size}; give at least one rank "
                    f"from 0 to {size - 1}, each once"
                )
            if self.launch.rank not in ranks:
                raise CommError(
                    f"rank {self.launch.rank} asked for a group of ranks {list(ranks)}, which it is not a member of; "
                    "only members call new_group"
                )
            if self.down is not None:
                raise CommError(f"no group can be made: {self.down}")
            name = name or f"ranks[{','.join(map(str, ranks))}]"
            try:
                group = self.groups[ranks] = self._make(ranks, name)
            except CommError:
                raise
            except Exception as exc:
                raise CommError(f"rank {self.launch.rank}: group {name} did not connect: {first_line(exc)}") from exc
        elif name is not None and group.name.startswith("ranks["):
            group.name = name
        return group

    def _make(self, ranks: tuple[int, ...], name: str) -> Group:
        index = ranks.index(self.launch.rank)
        if len(ranks) == 1 and not self._boot.simulated:
            return Group(ranks, index, name, self._boot.name, LocalChannel(), self)
        key = f"group/{group_key(ranks)}"
        if self._watchdog is not None:
            meet(ranks, name, key, self.launch, self._watchdog, lambda: self.down, self._silence)
        members = [self.members[rank] for rank in ranks]
        candidates = [n for n in members[0].backends if all(n in member.backends for member in members)]
        chosen = next(self.backends[n] for n in candidates if self.backends[n].suits(members))
        channel = chosen.connect(key, ranks, index, self.timeout_s)
        return Group(ranks, index, name, chosen.name, channel, self)

    def refuse_grad(self, kind: str, group: Group) -> None:
        """Raise where gradients are being recorded: the collective would be missing from the backward."""
        if self._boot.recording():
            raise CommError(
                f"{kind} on group {group.name}: the tensor requires grad, and collectives are not recorded for the "
                "backward; call it under no_grad, or on tensor.detach() (MindSpore: ops.stop_gradient(tensor))"
            )

    def raise_down(self, group: Group) -> NoReturn:
        """Raise for a group that cannot communicate any more."""
        raise CommError(f"group {group.name} cannot communicate any more: {self.down}")

    def before(self, call: Call) -> None:
        """Tell whoever listens that ``call`` begins, and compare it between the members where that is asked for."""
        if self._check and call.kind != "batch_p2p":
            try:
                check_agreement(call)
            except CommError:
                raise
            except Exception as exc:
                self.fail(call, exc)
        if self._hooks:
            hooks().hp_before_collective(kind=call.kind, group=call.group, nbytes=call.nbytes)

    def after(self, call: Call) -> None:
        """Tell whoever listens that ``call`` is complete."""
        if self._hooks:
            hooks().hp_after_collective(kind=call.kind, group=call.group, nbytes=call.nbytes)

    def fail(self, call: Call, exc: Exception, wait_s: float | None = None) -> NoReturn:
        """Find out what the other ranks are doing, take this rank's channels down, and raise.

        Args:
            call: What failed.
            exc: How.
            wait_s: The limit of the ``wait()`` that failed, where it had one of its own.

        Raises:
            CommTimeoutError: ``exc`` is a TimeoutError.
            CommError: it is anything else.
        """
        rank = self.launch.rank
        if self.down is not None and self._failure is None:
            raise CommError(f"rank {rank}: {call} was given up: {self.down}") from exc
        after = f"after {time.monotonic() - call.started:.1f} s"
        timed_out = isinstance(exc, TimeoutError)
        limit = f"timeout {call.timeout_s:g} s" if wait_s is None else f"wait(timeout_s={wait_s:g})"
        report = f"{call} not complete {after} ({limit})"
        if not timed_out:
            report = f"{call} failed {after}: {first_line(exc)}"
        fault = self._failure
        verdict = "" if fault is None else fault.seen_from(rank, call.title())
        if fault is None and self._watchdog is not None:
            peers = [self.members[other] for other in call.group.ranks if other != rank]
            try:
                fault = self._watchdog.diagnose(
                    report, group_key(call.group.ranks), describe_call(call), peers, self.members[rank].host
                )
                verdict = fault.seen_from(rank, call.title())
            except StoreSilentError as silent:
                verdict = "; ".join(
                    [
                        self._silence(silent),
                        *describe_dead([peer for peer in peers if peer.rank != 0], self.members[rank].host),
                    ]
                )
        if fault is not None and fault.rank != rank and not timed_out:
            report = f"{call} given up {after}"  # what this rank saw is only the consequence
        text = f"rank {rank}: {report}" + (f"; {verdict}" if verdict else "")
        self._take_down(fault or Fault(rank, report, verdict))
        raise (CommTimeoutError if timed_out else CommError)(text) from exc

    def abort(self, reason: str) -> None:
        """Tell every rank that this one gives up."""
        if self.down is None:
            if self._watchdog is not None:
                self._watchdog.report(reason)
            self._take_down(Fault(self.launch.rank, reason, ""))

    def _take_down(self, fault: Fault) -> None:
        if self.down is None:
            self._failure = fault
            self.down = f"rank {fault.rank} failed: {fault.report}" + (f"; {fault.verdict}" if fault.verdict else "")
            for group in list(self.groups.values()):
                group.channel.abort()

    def _store_host_gone(self) -> str | None:
        """Return why the store cannot answer, where that can be seen without asking it."""
        if self.launch.agent_store or not self.members or self.members[0].host != self.members[self.launch.rank].host:
            return None
        state = process_state(self.members[0].pid)
        return None if state is None else f"process {self.members[0].pid} is {state}"

    def _silence(self, exc: StoreSilentError) -> str:
        who = "the launcher" if self.launch.agent_store else "rank 0"
        return f"{who}, which hosts the job's store, has ended or is stopped ({exc})"

    def close(self) -> None:
        """Close every channel and backend; what is under way gets a little time before that."""
        self._drain("communication was shut down")
        if self._watchdog is not None:
            self._watchdog.stop()
        self.down = self.down or "communication was shut down; call init_backend, and new_group, again"
        for group in self.groups.values():
            group.channel.close()
        for backend in self.backends.values():
            backend.shutdown()

    def _drain(self, event: str) -> None:
        """Let no library be torn down while it works: it would abort the process, or hang."""
        if self.down is None and not self.in_flight.end(f"rank {self.launch.rank}: {event}"):
            for group in self.groups.values():
                group.channel.abort()

    def after_fork(self) -> None:
        """Leave everything to the parent: connections are shared with it, and the threads were not copied."""
        if self._watchdog is not None:
            self._watchdog = None
            self.forked = True
            self.down = (
                f"this process was forked from rank {self.launch.rank} after init_backend, and only that one can "
                "communicate; return the data to it, or start processes by spawn"
            )

    def stop_watching(self) -> None:
        """End the watchdog; at exit, so that no thread is inside the store when the process is torn down."""
        if self._watchdog is None:
            return
        self._drain("the process ended")
        if self.launch.rank == 0 and not self.launch.agent_store:
            # The store goes with this process, and in it what the others are about to read: why they failed, too.
            host = self.members[0].host
            outlive([peer.pid for peer in self.members[1:] if peer.host == host], _LINGER_S)
        self._watchdog.stop()


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
    With ``LOCAL_RANK`` set, that accelerator of this host becomes the current one
    (`use_local_device`); without it, whichever is current stays.

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
        PlatformError: there is no such device, or no framework.
    """
    global _current
    if _current is not None:
        check_same(_current.launch, list(_current.backends), device_type, backend, world_size)
        return _current.world
    try:
        timeout_s = seconds(timeout_s)
        wanted = backend or os.environ.get("HP_COMM") or None
        boot = boot_backend(device_type, wanted)
        launch = read_launch(device_type, timeout_s, rank, world_size)
        take_device(device_type, boot)
        _current = Session(launch, boot, group_backends(boot, wanted))
    except CommError as exc:
        exc.at_start = True
        raise
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
    if _current is not None and not _current.forked:
        session, _current = _current, None
        session.close()


def abort(reason: str) -> None:
    """Tell every rank that this one cannot go on, and why: whatever they wait in, or call next, raises within seconds.

    For whoever catches an exception and keeps the process alive; a process that ends is noticed without it.
    Nothing happens when communication is not up.

    Args:
        reason: What happened, in a line.
    """
    if _current is not None:
        _current.abort(reason)


@atexit.register
def _stop_watching() -> None:
    if _current is not None:
        _current.stop_watching()


os.register_at_fork(after_in_child=lambda: None if _current is None else _current.after_fork())


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
    return current().group(tuple(whole_numbers("ranks", ranks)), name)
