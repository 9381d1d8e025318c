# SPDX-License-Identifier: Apache-2.0
"""The processes of a job on this host, which wake each other and see each other end."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Sequence
from functools import partial

from hp_core.comm.backend import Member, Store
from hp_core.errors import CommError
from hp_core.platform.host_cores import num_cores
from hp_native.abi import native, raise_last
from hp_native.memory import Mapping
from hp_native.rendezvous import share_memory


class Host:
    """This process's end of what all CPU ranks on this host share. All of them make it at the same time.

    Args:
        store: The job's.
        members: The CPU ranks on this host, in rank order.
        rank: This one's world rank.
        timeout_s: How long the others may take.

    Raises:
        CommError: they did not come, or there is no memory.
    """

    def __init__(self, store: Store, members: Sequence[Member], rank: int, timeout_s: float) -> None:
        library = native()
        self.store = store
        self.members = tuple(members)
        self.index = {member.rank: index for index, member in enumerate(members)}
        self.me = self.index[rank]
        self._watched = [-1 if member.rank == rank else _watch(member.pid) for member in members]
        self._num_shared: Counter[str] = Counter()
        #: How many backends of this process use it.
        self.num_users = 1
        total_bytes = library.hpn_domain_bytes(len(members))

        def prepare(descriptor: int) -> None:
            if self.me == 0 and library.hpn_allocate(descriptor, 0, total_bytes):
                raise_last()

        key = f"shm/{members[0].rank}"
        ranks = [member.rank for member in members]
        try:
            descriptor, self._mapping = share_memory(
                store, key, ranks, self.me, total_bytes, prepare, self.look_around, timeout_s
            )
            os.close(descriptor)
            count = len(members)
            pids = (ctypes.c_int * count)(*(member.pid for member in members))
            pidfds = (ctypes.c_int * count)(*self._watched)
            #: The library's, which owns the descriptors in ``_watched`` from here on.
            self.domain = library.hpn_domain_open(
                self._mapping.address, count, self.me, pids, pidfds, count > num_cores()
            )
            if not self.domain:
                raise_last()
        except BaseException:
            for fd in self._watched:
                if fd >= 0:
                    os.close(fd)
            raise

    def share(
        self,
        key: str,
        ranks: Sequence[int],
        rank: int,
        total_bytes: int,
        common_bytes: int,
        own: tuple[int, int],
        timeout_s: float,
    ) -> tuple[int, Mapping]:
        """Return a descriptor of memory that the members of a group share, and its mapping; all of them call it.

        Args:
            key: Names it in the store, with how often it was asked for: after a failure one may try again.
            ranks: The members' world ranks.
            rank: This one's index in ``ranks``.
            total_bytes: Length of the segment.
            common_bytes: From its start, allocated by the first member.
            own: Offset and bytes of this member's part, which it allocates itself.
            timeout_s: How long the others may take.

        Raises:
            CommError: a member did not come or has ended, or there is no memory.
        """
        library = native()

        def prepare(descriptor: int) -> None:
            if rank == 0 and library.hpn_allocate(descriptor, 0, common_bytes):
                raise_last()
            if library.hpn_allocate(descriptor, *own):
                raise_last()

        number = self._num_shared[key]
        self._num_shared[key] += 1
        alive = partial(self.look_around, ranks)
        return share_memory(self.store, f"{key}/{number}", ranks, rank, total_bytes, prepare, alive, timeout_s)

    def look_around(self, only: Sequence[int] | None = None) -> None:
        """Raise where one of the processes (those of the world ranks ``only``) has ended.

        Raises:
            CommError: it has.
        """
        has_ended = native().hpn_has_ended
        for index, member in enumerate(self.members):
            if index == self.me or (only is not None and member.rank not in only):
                continue
            if has_ended(member.pid, self._watched[index]):
                raise CommError(f"rank {member.rank} (process {member.pid}) has ended")

    def close(self) -> None:
        """Let go of everything with the last user; its groups were closed before."""
        global _joined
        self.num_users -= 1
        if self.num_users:
            return
        if _joined is not None and _joined[1] is self:
            _joined = None
        native().hpn_domain_close(self.domain)
        self._watched = [-1] * len(self.members)


#: The host that this process has joined, and through which store.
_joined: tuple[Store, Host] | None = None


def join_host(store: Store, members: Sequence[Member], rank: int, timeout_s: float) -> Host:
    """Return this process's end of its host: the same to each backend that comes with the same store.

    Args:
        store: The job's.
        members: The ranks of this host that share memory, in rank order.
        rank: This one's world rank.
        timeout_s: How long the others may take.

    Raises:
        CommError: they did not come, or there is no memory.
    """
    global _joined
    if _joined is not None and _joined[0] is store:
        _joined[1].num_users += 1
    else:
        _joined = store, Host(store.clone(), members, rank, timeout_s)
    return _joined[1]


def shares_memory(member: Member) -> bool:
    """Return whether a rank shares memory with others of its host: a CPU rank with a backend that does."""
    return member.device_type == "cpu" and not {"shm", "hier"}.isdisjoint(member.backends)


def _watch(pid: int) -> int:
    """Return a descriptor that becomes readable when process ``pid`` ends; -1 where the system has none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise CommError(f"process {pid}, a rank of this job, has ended") from None
    except (OSError, AttributeError):  # an old system, a sandbox, no descriptor left, a Python built on an old system
        return -1
