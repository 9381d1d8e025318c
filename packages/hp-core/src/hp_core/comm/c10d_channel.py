# SPDX-License-Identifier: Apache-2.0
"""One group of the ``c10d`` backend: the collectives over gloo, NCCL or HCCL, with gloo's gaps filled.

gloo has no int16, no 16-bit accumulation in float32, no uneven all-gather, and its reduce-scatter is an all-reduce of
everything; so here 16-bit sums travel as float32, and a reduce-scatter on a CPU is an all-to-all and a sum in rank
order (half the bytes, and every rank's contribution is added in the same order always).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed

from hp_core.comm.c10d_work import Batch, Collective
from hp_core.comm.local import Done
from hp_core.comm.types import P2P
from hp_core.errors import CommError

dist: Any = torch.distributed  # its typing leaves out half of what it exports
c10d: Any = torch.distributed.distributed_c10d

_R = dist.ReduceOp
_NATIVE = {
    "sum": _R.SUM,
    "avg": _R.AVG,
    "min": _R.MIN,
    "max": _R.MAX,
    "product": _R.PRODUCT,
    "band": _R.BAND,
    "bor": _R.BOR,
    "bxor": _R.BXOR,
}
#: The reduction of 0/1 bytes that is what the operation means for bool.
_BOOL = {
    "sum": _R.MAX,
    "max": _R.MAX,
    "bor": _R.MAX,
    "product": _R.MIN,
    "min": _R.MIN,
    "band": _R.MIN,
    "bxor": _R.BXOR,
}
#: dtypes that every library moves as they are; others travel as bytes.
_MOVABLE = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bfloat16}
)
# gloo gives an operation up a little after we do, so that the error is ours and names the ranks.
_GRACE_S = 5.0
_ABORT_TAG = 2**30  # no user's


class C10dChannel:
    """The collectives of one group.

    Args:
        backends: torch.distributed's backend object for each device type.
        rank: This rank's index in the group.
        size: Number of ranks.
    """

    def __init__(self, backends: dict[str, Any], rank: int, size: int) -> None:
        self._backends = backends
        self._rank = rank
        self._size = size
        self._plans: dict[tuple[torch.dtype, str, str], tuple[torch.dtype | None, Any]] = {}
        self._options: dict[tuple[Any, ...], Any] = {}

    def _backend(self, tensor: torch.Tensor) -> Any:
        backend = self._backends.get(tensor.device.type)
        if backend is None:
            raise CommError(
                f"a tensor on {tensor.device} cannot be communicated: the backend was initialised for "
                f"{' and '.join(self._backends)}; call init_backend({tensor.device.type!r})"
            )
        return backend

    def _option(self, make: Callable[[], Any], timeout_s: float, **fields: Any) -> Any:
        key = (make, timeout_s, *fields.values())
        options = self._options.get(key)
        if options is None:
            options = make()
            options.timeout = timedelta(seconds=timeout_s + _GRACE_S)
            for name, value in fields.items():
                setattr(options, name, value)
            self._options[key] = options
        return options

    def _plan(self, dtype: torch.dtype, op: str, device_type: str) -> tuple[torch.dtype | None, Any]:
        """Return (dtype to reduce in or None, the library's operation)."""
        wide, native = None, _NATIVE[op]
        if dtype is torch.bool:
            wide, native = torch.uint8, _BOOL[op]
        elif dtype is torch.int16:
            wide = torch.int32
        elif dtype.itemsize == 2 and device_type == "cpu" and op in ("sum", "avg", "product"):
            wide = torch.float32
        plan = self._plans[dtype, op, device_type] = wide, native
        return plan

    def all_reduce(self, tensor: torch.Tensor, op: str, timeout_s: float) -> Collective | Done:
        """Reduce in place."""
        backend = self._backend(tensor)
        if tensor.numel() == 0:
            return Done(tensor)
        dtype = tensor.dtype
        kind = tensor.device.type
        wide, native = self._plans.get((dtype, op, kind)) or self._plan(dtype, op, kind)
        options = self._option(dist.AllreduceOptions, timeout_s, reduceOp=native)
        if wide is None and tensor.is_contiguous():
            return Collective(backend.allreduce([tensor], options), tensor)
        local = tensor.detach()
        if wide is torch.uint8 and local.is_contiguous():
            return Collective(backend.allreduce([local.view(torch.uint8)], options), tensor)
        wire = local.to(wide if wide is not None else dtype, memory_format=torch.contiguous_format, copy=True)
        return Collective(backend.allreduce([wire], options), tensor, lambda: local.copy_(wire))

    def all_gather(
        self, tensor: torch.Tensor, sizes: Sequence[int] | None, out: torch.Tensor | None, timeout_s: float
    ) -> Collective | Done:
        """Concatenate along dim 0."""
        backend = self._backend(tensor)
        tensor = tensor.detach().contiguous()
        if tensor.ndim == 0:
            tensor = tensor.reshape(1)
        rows = tensor.shape[0] * self._size if sizes is None else sum(sizes)
        result = tensor.new_empty((rows, *tensor.shape[1:])) if out is None else out
        if result.numel() == 0:
            return Done(result)
        target = result.detach()  # the library's threads and wait() may record gradients, whatever the caller does
        if sizes is None:
            options = self._option(c10d.AllgatherOptions, timeout_s)
            return Collective(backend._allgather_base(_wire(target), _wire(tensor), options), result, keep=tensor)
        longest = max(sizes)
        if longest * self._size <= rows * 1.25:
            padded = tensor.new_empty((longest, *tensor.shape[1:]))
            padded[: tensor.shape[0]].copy_(tensor)
            whole = tensor.new_empty((longest * self._size, *tensor.shape[1:]))
            options = self._option(c10d.AllgatherOptions, timeout_s)
            work = backend._allgather_base(_wire(whole), _wire(padded), options)
            pieces = [whole[i * longest : i * longest + size] for i, size in enumerate(sizes)]

            def join() -> None:
                torch.cat(pieces, out=target)

            return Collective(work, result, join, keep=padded)
        # Very uneven: padding would move mostly nothing. Each rank sends its piece to all.
        copies = tensor.repeat(self._size, *([1] * (tensor.ndim - 1)))
        return self._exchange(backend, copies, [tensor.shape[0]] * self._size, sizes, result, timeout_s)

    def reduce_scatter(
        self,
        tensor: torch.Tensor,
        op: str,
        sizes: Sequence[int] | None,
        out: torch.Tensor | None,
        timeout_s: float,
    ) -> Collective | Done:
        """Reduce and keep this rank's piece."""
        backend = self._backend(tensor)
        tensor = tensor.detach().contiguous()
        cuts = [tensor.shape[0] // self._size] * self._size if sizes is None else list(sizes)
        rest = tensor.shape[1:]
        result = tensor.new_empty((cuts[self._rank], *rest)) if out is None else out
        if tensor.numel() == 0:
            return Done(result)
        if sizes is None and tensor.device.type != "cpu" and tensor.dtype not in (torch.bool, torch.int16):
            options = self._option(dist.ReduceScatterOptions, timeout_s, reduceOp=_NATIVE[op])
            return Collective(backend._reduce_scatter_base(result.detach(), tensor, options), result, keep=tensor)
        came = tensor.new_empty((self._size, *result.shape))
        mine = [cuts[self._rank]] * self._size
        flat = came.view(self._size * cuts[self._rank], *rest)
        handle = self._exchange(backend, tensor, cuts, mine, flat, timeout_s)
        target = result.detach()

        def reduce() -> torch.Tensor:
            _reduce_rows(came, op, target)
            return result

        return handle.then(reduce)

    def all_to_all(
        self,
        tensor: torch.Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        out: torch.Tensor | None,
        timeout_s: float,
    ) -> Collective:
        """Exchange pieces of dim 0."""
        backend = self._backend(tensor)
        tensor = tensor.detach().contiguous()
        result = tensor.new_empty((sum(output_sizes), *tensor.shape[1:])) if out is None else out
        return self._exchange(backend, tensor, input_sizes, output_sizes, result, timeout_s)

    def _exchange(
        self,
        backend: Any,
        tensor: torch.Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        result: torch.Tensor,
        timeout_s: float,
    ) -> Collective:
        # A rank with nothing to send or receive still takes part: the others do not know.
        source, target = _wire(tensor.view(-1)), _wire(result.detach().view(-1))
        row = 1
        for length in tensor.shape[1:]:
            row *= length
        row *= tensor.dtype.itemsize // source.dtype.itemsize
        options = self._option(c10d.AllToAllOptions, timeout_s)
        cuts = [size * row for size in input_sizes], [size * row for size in output_sizes]
        return Collective(backend.alltoall_base(target, source, cuts[1], cuts[0], options), result, keep=source)

    def broadcast(self, tensor: torch.Tensor, src: int, timeout_s: float) -> Collective | Done:
        """Overwrite in place."""
        backend = self._backend(tensor)
        if tensor.numel() == 0:
            return Done(tensor)
        local = tensor.detach()
        wire = local.contiguous()
        options = self._option(dist.BroadcastOptions, timeout_s, rootRank=src, rootTensor=0)
        work = backend.broadcast([_wire(wire)], options)
        if local.is_contiguous() or src == self._rank:
            return Collective(work, tensor, keep=wire)
        return Collective(work, tensor, lambda: local.copy_(wire))

    def batch_p2p(self, ops: Sequence[P2P], timeout_s: float) -> Batch | Done:
        """Start all sends and receives; a message to this rank itself is copied."""
        works: list[Any] = []
        finish: list[Callable[[], Any]] = []
        keep: list[Any] = []
        own = [op for op in ops if op.peer == self._rank]
        if own:
            _copy_own(own)
        grouped = {self._backend(op.tensor) for op in ops if not op.tensor.is_cpu}
        for backend in grouped:
            backend._start_coalescing()
        for op in ops:
            if op.peer == self._rank or op.tensor.numel() == 0:
                continue
            backend = self._backend(op.tensor)
            local = op.tensor.detach()
            if op.kind == "send":
                wire = local.contiguous()
                work = backend.send([_wire(wire)], op.peer, op.tag)
            else:
                wire = (
                    local if local.is_contiguous() else torch.empty_like(local, memory_format=torch.contiguous_format)
                )
                work = backend.recv([_wire(wire)], op.peer, op.tag)
                if wire is not local:
                    finish.append(partial(local.copy_, wire))
            keep.append(wire)
            if op.tensor.is_cpu:
                works.append(work)
        queued = [backend._end_coalescing() for backend in grouped]
        return Batch(works, queued, finish, keep, timeout_s) if works or queued else Done()

    def barrier(self, timeout_s: float) -> Collective:
        """Meet on the host."""
        return Collective(self._backends["cpu"].barrier(self._option(dist.BarrierOptions, timeout_s)), None)

    def all_gather_bytes(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Gather lengths, then padded bytes."""
        length = torch.tensor([len(data)], dtype=torch.int64)
        sizes: list[int] = self._blocking(self.all_gather(length, None, None, timeout_s), timeout_s).tolist()
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        whole = self._blocking(self.all_gather(mine, sizes, None, timeout_s), timeout_s)
        return [bytes(part.numpy()) for part in whole.split(sizes)]

    def _blocking(self, handle: Collective | Done, timeout_s: float) -> Any:
        if not handle.wait(timeout_s):
            raise TimeoutError(f"not complete within {timeout_s:g} s")
        return handle.finish()

    def abort(self) -> None:
        """Make whatever is under way fail now, here and at the peers.

        gloo has no way to cancel: but a receive that times out closes every connection of its group, and with them
        all that waits on one. (Without this a process that gives up would not even end: gloo's destructor waits for
        its threads.)
        """
        for kind, backend in self._backends.items():
            if kind != "cpu":
                backend.abort()
                continue
            peer = (self._rank + 1) % self._size
            with contextlib.suppress(RuntimeError):
                backend.recv([torch.empty(1)], peer, _ABORT_TAG).wait(timedelta(milliseconds=1))

    def close(self) -> None:
        """Drop the libraries' groups."""
        self._backends = {}


def _wire(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` (contiguous) as something that every library can move: itself, or its bytes."""
    if tensor.dtype in _MOVABLE:
        return tensor
    # A single element is contiguous with any stride, but only with stride 1 can it be seen as bytes.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _copy_own(ops: Sequence[P2P]) -> None:
    from hp_core.comm.local import LocalChannel

    LocalChannel().batch_p2p(ops, 0.0)


def _reduce_rows(rows: torch.Tensor, op: str, out: torch.Tensor) -> None:
    """Reduce ``rows`` over dim 0 into ``out``, row after row; 16-bit sums in float32."""
    dtype = out.dtype
    total = rows[0]
    if dtype.itemsize == 2 and dtype.is_floating_point and op in ("sum", "avg", "product"):
        total = total.float()
    for row in rows[1:]:
        total = _COMBINE[op](total, row)
    if op == "avg":
        total = total / rows.shape[0]
    out.copy_(total)


_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "product": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
