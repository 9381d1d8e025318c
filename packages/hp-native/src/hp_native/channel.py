# SPDX-License-Identifier: Apache-2.0
"""One group of the ``shm`` backend: tensors in, pointers to the library."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from hp_core.comm.local import Done, LocalChannel
from hp_core.comm.types import P2P, Tensor, dtype_name
from hp_native.abi import DTYPES, OPS, Message, native, raise_last
from hp_native.handle import ShmHandle
from hp_native.host import Host
from hp_native.tensors import Tensors

#: What each rank may have posted and not yet been read, in bytes; four times that is allocated for each rank.
SLOT_BYTES = 256 * 1024


class ShmChannel:
    """The collectives of one group. All members make it at the same time.

    Args:
        host: The processes of this host.
        tensors: The framework's.
        key: Names the group in the store.
        ranks: World ranks, in group order.
        rank: This one's index in ``ranks``.
        timeout_s: How long the others may take.
    """

    def __init__(
        self, host: Host, tensors: Tensors, key: str, ranks: Sequence[int], rank: int, timeout_s: float
    ) -> None:
        self._library = library = native()
        self.host = host
        self.key = key
        #: Symmetric memory of this group: how many there ever were, and those that are there.
        self.num_allocations = 0
        self.allocations: weakref.WeakSet[Any] = weakref.WeakSet()
        self._tensors = tensors
        self._rank = rank
        self._size = size = len(ranks)
        layout = library.hpn_group_plan(size, rank, SLOT_BYTES)
        own = (layout.staging_offset, layout.staging_bytes)
        descriptor, self._mapping = host.share(
            f"{key}/shm", ranks, rank, layout.total_bytes, layout.control_bytes, own, timeout_s
        )
        processes = (ctypes.c_int * size)(*(host.index[rank] for rank in ranks))
        self.group = library.hpn_group_open(
            host.domain, self._mapping.address, descriptor, rank, size, processes, SLOT_BYTES
        )
        if not self.group:
            raise_last()

    def _handle(
        self, operation: int, result: Any, finish: Callable[[], Any] | None = None, keep: Any = None
    ) -> ShmHandle:
        if operation == 0:
            raise_last()
        return ShmHandle(operation, result, finish, keep)

    def _in_place(self, tensor: Tensor) -> tuple[Tensor, Callable[[], Any] | None]:
        """Return contiguous memory with the values of ``tensor``, and how they get back."""
        if tensor.is_contiguous():
            return tensor, None
        wire = self._tensors.contiguous(tensor)
        return wire, partial(self._tensors.assign, tensor, wire)

    def _operands(self, tensor: Tensor, rows: int, out: Tensor | None) -> tuple[Tensor, Tensor, int]:
        """Return ``tensor`` contiguous, the result of ``rows`` rows, and how many elements a row has."""
        rest = tuple(tensor.shape[1:])
        wire = self._tensors.contiguous(tensor)
        return wire, self._tensors.empty(wire, (rows, *rest)) if out is None else out, prod(rest)

    def all_reduce(self, tensor: Tensor, op: str, timeout_s: float) -> ShmHandle:
        """Reduce in place."""
        wire, finish = self._in_place(tensor)
        operation = self._library.hpn_all_reduce(
            self.group, self._tensors.pointer(wire), wire.numel(), DTYPES[dtype_name(wire.dtype)], OPS[op]
        )
        return self._handle(operation, tensor, finish, wire)

    def all_gather(
        self, tensor: Tensor, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float
    ) -> ShmHandle:
        """Concatenate along dim 0."""
        rows = tensor.shape[0] if tensor.ndim else 1
        wire, result, row = self._operands(tensor, rows * self._size if sizes is None else sum(sizes), out)
        lengths = None if sizes is None else self._sizes(sizes, row * int(wire.itemsize))
        operation = self._library.hpn_all_gather(
            self.group, self._tensors.pointer(wire), self._tensors.pointer(result), wire.nbytes, lengths
        )
        return self._handle(operation, result, None, wire)

    def reduce_scatter(
        self, tensor: Tensor, op: str, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float
    ) -> ShmHandle:
        """Reduce and keep this rank's piece."""
        mine = tensor.shape[0] // self._size if sizes is None else sizes[self._rank]
        wire, result, row = self._operands(tensor, mine, out)
        counts = None if sizes is None else self._sizes(sizes, row)
        operation = self._library.hpn_reduce_scatter(
            self.group,
            self._tensors.pointer(wire),
            self._tensors.pointer(result),
            mine * row,
            counts,
            DTYPES[dtype_name(wire.dtype)],
            OPS[op],
        )
        return self._handle(operation, result, None, wire)

    def all_to_all(
        self,
        tensor: Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        out: Tensor | None,
        timeout_s: float,
    ) -> ShmHandle:
        """Exchange pieces of dim 0."""
        wire, result, row = self._operands(tensor, sum(output_sizes), out)
        unit = row * int(wire.itemsize)
        operation = self._library.hpn_all_to_all(
            self.group,
            self._tensors.pointer(wire),
            self._tensors.pointer(result),
            0,
            self._sizes(input_sizes, unit),
            self._sizes(output_sizes, unit),
        )
        return self._handle(operation, result, None, wire)

    def broadcast(self, tensor: Tensor, src: int, timeout_s: float) -> ShmHandle:
        """Overwrite in place."""
        wire, finish = self._in_place(tensor)
        operation = self._library.hpn_broadcast(self.group, self._tensors.pointer(wire), wire.nbytes, src)
        return self._handle(operation, tensor, None if src == self._rank else finish, wire)

    def batch_p2p(self, ops: Sequence[P2P], timeout_s: float) -> ShmHandle | Done:
        """Start all sends and receives; a message to this rank itself is copied."""
        own = [op for op in ops if op.peer == self._rank]
        if own:
            LocalChannel().batch_p2p(own, timeout_s)
        others = [op for op in ops if op.peer != self._rank and op.tensor.numel()]
        if not others:
            return Done()
        messages = (Message * len(others))()
        keep: list[Tensor] = []
        back: list[Callable[[], Any]] = []
        for message, op in zip(messages, others, strict=True):
            wire, finish = self._in_place(op.tensor)
            keep.append(wire)
            if finish is not None and op.kind == "recv":
                back.append(finish)
            message.send, message.peer, message.tag = op.kind == "send", op.peer, op.tag
            message.data, message.size = self._tensors.pointer(wire), wire.nbytes
        operation = self._library.hpn_batch(self.group, messages, len(others))
        return self._handle(operation, None, partial(_call_all, back) if back else None, keep)

    def wire_all_reduce(self, tensor: Tensor, op: str, wire: int, timeout_s: float) -> ShmHandle:
        """Reduce in place in low precision; see `hp_native.low_precision`."""
        wired, finish = self._in_place(tensor)
        operation = self._library.hpn_wire_all_reduce(
            self.group, self._tensors.pointer(wired), wired.numel(), OPS[op], wire
        )
        return self._handle(operation, tensor, finish, wired)

    def wire_reduce_scatter(
        self, tensor: Tensor, op: str, sizes: Sequence[int], out: Tensor | None, wire: int, timeout_s: float
    ) -> ShmHandle:
        """Reduce in low precision and keep this rank's piece."""
        wired, result, row = self._operands(tensor, sizes[self._rank], out)
        counts = self._sizes(sizes, row)
        operation = self._library.hpn_wire_reduce_scatter(
            self.group, self._tensors.pointer(wired), self._tensors.pointer(result), 0, counts, OPS[op], wire
        )
        return self._handle(operation, result, None, wired)

    def wire_all_gather(
        self, tensor: Tensor, sizes: Sequence[int], out: Tensor | None, wire: int, timeout_s: float
    ) -> ShmHandle:
        """Concatenate along dim 0 in low precision."""
        wired, result, row = self._operands(tensor, sum(sizes), out)
        counts = self._sizes(sizes, row)
        operation = self._library.hpn_wire_all_gather(
            self.group, self._tensors.pointer(wired), self._tensors.pointer(result), 0, counts, wire
        )
        return self._handle(operation, result, None, wired)

    def barrier(self, timeout_s: float) -> ShmHandle:
        """Meet."""
        return self._handle(self._library.hpn_barrier(self.group), None)

    def all_gather_bytes(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Gather lengths, then bytes."""
        length = np.array([len(data)], np.uint64)
        lengths = np.empty(self._size, np.uint64)
        gather = self._library.hpn_all_gather
        self._blocking(gather(self.group, length.ctypes.data, lengths.ctypes.data, 8, None), timeout_s)
        whole = np.empty(int(lengths.sum()), np.uint8)
        mine = np.frombuffer(data, np.uint8)
        self._blocking(
            gather(self.group, mine.ctypes.data, whole.ctypes.data, len(data), lengths.ctypes.data), timeout_s
        )
        ends = np.cumsum(lengths)
        return [whole[int(end - size) : int(end)].tobytes() for size, end in zip(lengths, ends, strict=True)]

    def _blocking(self, operation: int, timeout_s: float) -> None:
        if not self._handle(operation, None).wait(timeout_s):
            raise TimeoutError(f"not complete within {timeout_s:g} s")

    def _sizes(self, sizes: Sequence[int], unit: int) -> Any:
        return (ctypes.c_uint64 * self._size)(*(size * unit for size in sizes))

    def abort(self) -> None:
        """Fail whatever is under way, here and on the other ranks of this host, from any thread.

        Afterwards nothing here touches a buffer any more.
        """
        if self.group:
            self._library.hpn_group_fail(self.group, b"communication was taken down")
            self._library.hpn_domain_abort(self.host.domain)

    def close(self) -> None:
        """Let go of the memory."""
        group, self.group = self.group, None
        if group:
            for allocation in list(self.allocations):
                allocation.close()
            self._library.hpn_group_close(group)


def _call_all(functions: Sequence[Callable[[], Any]]) -> None:
    for function in functions:
        function()
