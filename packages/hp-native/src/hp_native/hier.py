# SPDX-License-Identifier: Apache-2.0
"""The ``hier`` comm backend: shared memory within each host, the platform's own backend (c10d) between them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from hp_core.comm.backend import Channel, CommBackend, Launch, Member, Store
from hp_core.comm.local import LocalChannel
from hp_core.comm.select import boot_backend
from hp_core.errors import CommError
from hp_native.backend import ShmBackend
from hp_native.hier_channel import HierChannel
from hp_native.hier_plan import place
from hp_native.host import shares_memory
from hp_native.tensors import TorchTensors


class HierBackend:
    """Groups of CPU ranks of several hosts.

    Raises:
        PluginError: the C++ library is not there.
    """

    name = "hier"
    simulated = False

    def __init__(self) -> None:
        self._shm = ShmBackend()
        self._tensors = TorchTensors()
        self._between: CommBackend | None = None
        self._members: tuple[Member, ...] = ()
        self._channels: list[HierChannel] = []

    def bootstrap(self, launch: Launch) -> Store:
        """Refuse: the backend that it uses between hosts brings the world up.

        Raises:
            CommError: always.
        """
        raise CommError("hier does not bring the world up; the platform's own backend does")

    def attach(self, store: Store, members: Sequence[Member], rank: int) -> None:
        """Meet the other CPU ranks of this host, and make what reaches other hosts."""
        self._members = tuple(members)
        if shares_memory(members[rank]):
            self._shm.attach(store, members, rank)
            self._between = boot_backend("cpu", None)
            self._between.attach(store, members, rank)

    def recording(self) -> bool:
        """Return False: this backend is never asked, as it brings no world up."""
        return False

    def suits(self, members: Sequence[Member]) -> bool:
        """Return whether they are CPU ranks of several hosts, one of which has two of them or more.

        Where ``HP_COMM=hier`` leaves ``shm`` out, it serves the groups of one host, too.
        """
        if not all(shares_memory(member) and self.name in member.backends for member in members):
            return False
        num_hosts = len({member.host for member in members})
        alone = not any(self._shm.name in member.backends for member in members)
        return num_hosts < len(members) and (num_hosts > 1 or alone)

    def connect(self, key: str, ranks: Sequence[int], rank: int, timeout_s: float) -> Channel:
        """Make this rank's end of a group: in its host, in its lane, and to all ranks."""
        between = self._between
        if between is None:
            raise CommError(f"hier serves CPU ranks; ranks {list(ranks)} are not: leave HP_COMM out")
        placement = place([self._members[each].host for each in ranks], rank)
        if len(placement.hosts) == 1:
            return self._shm.connect(key, ranks, rank, timeout_s)
        with ExitStack() as undo:
            within: Channel = LocalChannel()
            if len(placement.here) > 1:
                here = [ranks[index] for index in placement.here]
                within = self._shm.connect(f"{key}/host{placement.host}", here, placement.local, timeout_s)
                undo.callback(within.close)
            lane = None
            if placement.lane is not None:
                name = f"{key}/lane{placement.local}"
                lane = between.connect(name, [ranks[index] for index in placement.lane], placement.host, timeout_s)
                undo.callback(lane.close)
            # From the last rank to the first: never the order of the world, whose group would be torch.distributed's
            # default one, which the program may use at the same time as our thread.
            order = sorted(range(len(ranks)), key=lambda index: -ranks[index])
            wide = between.connect(f"{key}/wide", [ranks[index] for index in order], order.index(rank), timeout_s)
            undo.pop_all()
        channel = HierChannel(placement, within, lane, wide, order, self._tensors)
        self._channels.append(channel)
        return channel

    def shutdown(self) -> None:
        """Let go of what is shared, unless a thread is still inside of it."""
        if not any(channel.stuck for channel in self._channels):
            self._shm.shutdown()
        self._channels.clear()
        if self._between is not None:
            self._between.shutdown()
            self._between = None
