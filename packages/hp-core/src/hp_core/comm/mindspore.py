# SPDX-License-Identifier: Apache-2.0
"""The ``mindspore`` backend: it brings the world up for MindSpore, and leaves all groups to others.

MindSpore's own collectives on a CPU do not cover what training needs, so tensors go through shared memory (hp-native).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from mindspore.common.api import _pynative_executor

from hp_core.comm.backend import Launch, Member, Store
from hp_core.comm.tcp_store import open_store
from hp_core.errors import CommError

_generation = 0


class MindSporeBackend:
    """The store of the job, and what is said where nothing can move tensors."""

    name = "mindspore"
    simulated = False

    def __init__(self) -> None:
        self._members: tuple[Member, ...] = ()
        self._rank = 0

    def bootstrap(self, launch: Launch) -> Store:
        """Open the store at MASTER_ADDR:MASTER_PORT, which rank 0 hosts.

        Raises:
            CommError: the address is missing, the port is taken, or rank 0 does not answer in time.
        """
        global _generation
        _generation += 1  # every rank comes up equally often, so this keeps the keys of one world apart from the last
        return open_store(launch, _generation)

    def attach(self, store: Store, members: Sequence[Member], rank: int) -> None:
        """Keep the members, for the error of ``connect``."""
        self._members, self._rank = tuple(members), rank

    def recording(self) -> bool:
        """Return whether MindSpore is recording gradients on this thread: inside of ``value_and_grad`` and the like."""
        return bool(_pynative_executor.requires_grad())

    def suits(self, members: Sequence[Member]) -> bool:
        """Return True: what no other backend serves comes here, to be told why."""
        return True

    def connect(self, key: str, ranks: Sequence[int], rank: int, timeout_s: float) -> NoReturn:
        """Say why this group cannot communicate.

        Raises:
            CommError: always.
        """
        raise CommError(
            f"rank {self._rank}: ranks {list(ranks)} cannot communicate: with MindSpore that needs hp-native on every "
            f"rank, and all ranks on CPUs of one host; {self._why_not([self._members[each] for each in ranks])}"
        )

    def _why_not(self, members: Sequence[Member]) -> str:
        others = [member for member in members if member.device_type != "cpu"]
        if others:
            return f"{_named(others)} on {others[0].device_type}: use init_backend('cpu'), or torch"
        without = [member for member in members if "shm" not in member.backends]
        if without:
            return (
                f"{_named(without)} without it: pip install hp-native there (hp doctor says whether it is well), and "
                "leave HP_COMM and init_backend(backend=…) out"
            )
        apart = [member for member in members if member.host != members[0].host]
        return f"{_named(apart)} on another host than rank {members[0].rank}: start all ranks on one, or use torch"

    def shutdown(self) -> None:
        """Nothing is held; the store outlives this."""


def _named(members: Sequence[Member]) -> str:
    ranks = ", ".join(str(member.rank) for member in members)
    return f"rank{'s' if len(members) > 1 else ''} {ranks} {'are' if len(members) > 1 else 'is'}"
