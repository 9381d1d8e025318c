# SPDX-License-Identifier: Apache-2.0
"""The ``fake`` backend: one process stands for a rank of a world of any size; nothing moves, everything is recorded.

For dry runs and for tests that count communication. Results have the right shape, dtype and device (``meta`` too) and
undefined values; in-place collectives leave their tensor as it is. Objects come back as this rank's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from hp_core.comm.backend import Launch, Member, Store
from hp_core.comm.local import Done, LocalStore
from hp_core.comm.types import P2P, Tensor, dtype_name


@dataclass(frozen=True)
class Record:
    """One recorded call.

    Attributes:
        kind: ``"all_reduce"``, …; a batch of point-to-point operations is one ``"send"`` or ``"recv"`` each.
        ranks: World ranks of the group, in group order; of a point-to-point operation: this rank and its peer.
        shape: Shape of this rank's input (empty for a barrier and for objects).
        dtype: Name of the dtype, e.g. ``"bfloat16"``, or ``""``.
        nbytes: Bytes of this rank's input; of an object, when pickled.
        op: The reduce operation, or ``""``.
    """

    kind: str
    ranks: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    op: str = ""


_recorders: list[list[Record]] = []


@contextmanager
def recorded() -> Iterator[list[Record]]:
    """Collect what is called on fake groups inside the block; the list fills as calls are made.

    Example:
        ``with recorded() as calls: comm.all_reduce(x)`` leaves one ``Record`` in ``calls``.
    """
    calls: list[Record] = []
    _recorders.append(calls)
    try:
        yield calls
    finally:
        # By identity: two lists with equal records are equal.
        del _recorders[next(i for i, other in enumerate(_recorders) if other is calls)]


class FakeBackend:
    """Groups that move nothing."""

    name = "fake"
    simulated = True

    def bootstrap(self, launch: Launch) -> Store:
        """Return a store of this process's own."""
        return LocalStore()

    def attach(self, store: Store, members: Sequence[Member], rank: int) -> None:
        """Nothing is needed."""

    def recording(self) -> bool:
        """Return False: a dry run may trace through collectives with grad on."""
        return False

    def suits(self, members: Sequence[Member]) -> bool:
        """Return True."""
        return True

    def connect(self, key: str, ranks: Sequence[int], rank: int, timeout_s: float) -> FakeChannel:
        """Return a channel that moves nothing."""
        return FakeChannel(tuple(ranks), rank)

    def shutdown(self) -> None:
        """Nothing is held."""


class FakeChannel:
    """One group of the fake backend.

    Args:
        ranks: World ranks.
        rank: This rank's index among them.
    """

    def __init__(self, ranks: tuple[int, ...], rank: int) -> None:
        self._ranks = ranks
        self._rank = rank

    def _record(self, kind: str, tensor: Tensor, op: str = "", ranks: tuple[int, ...] | None = None) -> None:
        if _recorders:
            about = Record(kind, ranks or self._ranks, tuple(tensor.shape), dtype_name(tensor.dtype), tensor.nbytes, op)
            for calls in _recorders:
                calls.append(about)

    def _record_bytes(self, kind: str, nbytes: int) -> None:
        for calls in _recorders:
            calls.append(Record(kind, self._ranks, (), "", nbytes))

    def all_reduce(self, tensor: Tensor, op: str, timeout_s: float) -> Done:
        """Record."""
        self._record("all_reduce", tensor, op)
        return Done(tensor)

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float) -> Done:
        """Record, and make the result's shape."""
        self._record("all_gather", tensor)
        shape = tuple(tensor.shape) or (1,)
        rows = shape[0] * len(self._ranks) if sizes is None else sum(sizes)
        return _result(tensor, (rows, *shape[1:]), out)

    def reduce_scatter(
        self, tensor: Tensor, op: str, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float
    ) -> Done:
        """Record, and make the result's shape."""
        self._record("reduce_scatter", tensor, op)
        rows = tensor.shape[0] // len(self._ranks) if sizes is None else sizes[self._rank]
        return _result(tensor, (rows, *tensor.shape[1:]), out)

    def all_to_all(
        self,
        tensor: Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        out: Tensor | None,
        timeout_s: float,
    ) -> Done:
        """Record, and make the result's shape."""
        self._record("all_to_all", tensor)
        return _result(tensor, (sum(output_sizes), *tensor.shape[1:]), out)

    def broadcast(self, tensor: Tensor, src: int, timeout_s: float) -> Done:
        """Record."""
        self._record("broadcast", tensor)
        return Done(tensor)

    def batch_p2p(self, ops: Sequence[P2P], timeout_s: float) -> Done:
        """Record each operation."""
        for op in ops:
            self._record(op.kind, op.tensor, ranks=(self._ranks[self._rank], self._ranks[op.peer]))
        return Done()

    def barrier(self, timeout_s: float) -> Done:
        """Record."""
        self._record_bytes("barrier", 0)
        return Done()

    def all_gather_bytes(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Record; every rank's object is this rank's."""
        self._record_bytes("all_gather_object", len(data))
        return [data] * len(self._ranks)

    def abort(self) -> None:
        """Nothing ever blocks."""

    def close(self) -> None:
        """Nothing is held."""


def _result(tensor: Tensor, shape: tuple[int, ...], out: Tensor | None) -> Done:
    if out is None:
        out = tensor.new_empty(shape)
    assert prod(out.shape) == prod(shape)
    return Done(out)
