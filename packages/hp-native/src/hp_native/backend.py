# SPDX-License-Identifier: Apache-2.0
"""The ``shm`` comm backend: shared memory between the CPU ranks of one host."""

from __future__ import annotations

from collections.abc import Sequence

from hp_core.comm.backend import Channel, Launch, Member, Store
from hp_core.errors import CommError
from hp_core.platform.select import choose
from hp_native.abi import native
from hp_native.channel import ShmChannel
from hp_native.host import Host, join_host, shares_memory
from hp_native.tensors import tensors_of

_HOST_TIMEOUT_S = 300.0


class ShmBackend:
    """Shared memory.

    Raises:
        PluginError: the C++ library is not there.
    """

    name = "shm"
    simulated = False

    def __init__(self) -> None:
        native()
        self._tensors = tensors_of(choose())
        self._host: Host | None = None

    def bootstrap(self, launch: Launch) -> Store:
        """Refuse: meeting the other ranks is for a backend that reaches other hosts.

        Raises:
            CommError: always.
        """
        raise CommError("shm does not bring the world up; the platform's own backend does")

    def attach(self, store: Store, members: Sequence[Member], rank: int) -> None:
        """Meet the other CPU ranks of this host."""
        own = members[rank]
        here = [member for member in members if member.host == own.host and shares_memory(member)]
        if len(here) > 1 and own in here:
            self._host = join_host(store, here, rank, _HOST_TIMEOUT_S)

    def recording(self) -> bool:
        """Return False: this backend is never asked, as it brings no world up."""
        return False

    def _serves(self, member: Member) -> bool:
        return member.device_type == "cpu" and self.name in member.backends

    def suits(self, members: Sequence[Member]) -> bool:
        """Return whether they are all CPU ranks of one host."""
        return all(self._serves(member) and member.host == members[0].host for member in members)

    def connect(self, key: str, ranks: Sequence[int], rank: int, timeout_s: float) -> Channel:
        """Make this rank's end of a group."""
        if self._host is None:
            raise CommError(f"shm serves CPU ranks of one host; ranks {list(ranks)} are not: leave HP_COMM out")
        return ShmChannel(self._host, self._tensors, key, ranks, rank, timeout_s)

    def shutdown(self) -> None:
        """Let go of what is shared."""
        if self._host is not None:
            self._host.close()
            self._host = None
