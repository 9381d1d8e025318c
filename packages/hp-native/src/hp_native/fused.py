# SPDX-License-Identifier: Apache-2.0
"""Matrix products that communicate while they compute, for torch on CPUs of one host.

* `all_gather_matmul`: ``all_gather(x) @ weight``. No gathered copy is made: each block of rows is multiplied where its
  rank has put it, this rank's own first, while the others arrive.
* `matmul_reduce_scatter`: ``reduce_scatter(x @ weight)``. Each rank's block of the product is written straight into
  that rank's memory, this rank's own last; then each adds up its blocks in rank order.

Each is the other's backward, as in Megatron-LM's sequence parallelism (arXiv 2205.05198, section 4.2.2); computing on a
piece while the next arrives is "Overlap Communication with Dependent Computation via Decomposition" (ASPLOS 2023).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch

from hp_core import comm
from hp_core.comm.arguments import check_sizes
from hp_core.comm.group import Group
from hp_core.errors import CommError
from hp_native.symmetric import empty, peer, signal, wait_signal

#: Half of an allocation's signals say that a block came, half that it is not needed any more.
_MAX_RANKS = 32


class _Exchange:
    """Memory of a group through which blocks pass, in two halves that take turns.

    A rank fills a half again when all others have done with what it put there two calls ago.
    """

    def __init__(self, group: Group) -> None:
        if group.size > _MAX_RANKS:
            raise CommError(f"fused products serve groups of up to {_MAX_RANKS} ranks; {group.name} has {group.size}")
        self._group = group
        self._half_bytes = 0
        self._memory: Any = None
        self._num_calls = 0

    def begin(self, nbytes: int) -> None:
        """Make room for ``nbytes`` on each rank; equal on all ranks, which begin together."""
        if nbytes > self._half_bytes:
            self._half_bytes = max(-(-nbytes // 4096) * 4096, 2 * self._half_bytes)
            self._memory = empty(2 * self._half_bytes, torch.uint8, self._group)
            self._num_calls = 0
        self._num_calls += 1
        for other in self._others():
            if self._num_calls > 2:
                wait_signal(self._memory, self._num_calls - 2, _MAX_RANKS + other)

    def _others(self) -> Iterator[int]:
        """The other ranks, beginning with the next: so that not all ask the same rank at once."""
        rank, size = self._group.rank, self._group.size
        return iter([(rank + step) % size for step in range(1, size)])

    def block(self, rank: int, offset: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return the memory of ``rank`` from ``offset`` on as a tensor."""
        count = dtype.itemsize
        for length in shape:
            count *= length
        start = self._half_bytes * (self._num_calls % 2) + offset
        own = self._memory[start : start + count]
        found: torch.Tensor = own if rank == self._group.rank else peer(own, rank)
        return found.view(dtype).view(tuple(shape))

    def sent(self, rank: int) -> None:
        """Tell ``rank`` that this rank's block is there."""
        signal(self._memory, rank, self._group.rank)

    def sent_to_all(self) -> None:
        """Tell all others."""
        for other in self._others():
            self.sent(other)

    def arrive(self, rank: int) -> None:
        """Wait for the block of ``rank``."""
        wait_signal(self._memory, self._num_calls, rank)

    def taken(self, rank: int) -> None:
        """Tell ``rank`` that its block is not needed any more."""
        signal(self._memory, rank, _MAX_RANKS + self._group.rank)


_exchanges: weakref.WeakKeyDictionary[Group, _Exchange] = weakref.WeakKeyDictionary()


def _exchange(group: Group) -> _Exchange:
    found = _exchanges.get(group)
    if found is None:
        found = _exchanges[group] = _Exchange(group)
    return found


def _blocks(group: Group, x: torch.Tensor, sizes: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (rank, its rows) for all ranks, this one first, and the others as they arrive. Rows are read in place."""
    if group.size == 1:
        yield 0, x
        return
    exchange = _exchange(group)
    width, dtype = x.shape[1], x.dtype
    exchange.begin(max(sizes) * width * dtype.itemsize)
    if x.numel():
        exchange.block(group.rank, 0, x.shape, dtype).copy_(x)
    exchange.sent_to_all()
    yield group.rank, x
    for step in range(1, group.size):
        rank = (group.rank + step) % group.size
        exchange.arrive(rank)
        shape = (sizes[rank], width)
        yield rank, exchange.block(rank, 0, shape, dtype) if sizes[rank] else x.new_empty(shape)
        exchange.taken(rank)


def _split(tensor: torch.Tensor, sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(torch.split(tensor, list(sizes)))


def _apply(
    function: type[torch.autograd.Function],
    x: torch.Tensor,
    weight: torch.Tensor,
    group: Group,
    counts: Sequence[int],
    unit: int,
) -> torch.Tensor:
    rows = [count * unit for count in counts]
    return cast(torch.Tensor, function.apply(x, weight, group, rows))  # type: ignore[no-untyped-call]


def _gather_product(x: torch.Tensor, weight: torch.Tensor, group: Group, sizes: Sequence[int]) -> torch.Tensor:
    out = x.new_empty((sum(sizes), weight.shape[1]))
    pieces = _split(out, sizes)
    for rank, rows in _blocks(group, x, sizes):
        torch.mm(rows, weight, out=pieces[rank])
    return out


def _scatter_product(x: torch.Tensor, weight: torch.Tensor, group: Group, sizes: Sequence[int]) -> torch.Tensor:
    if group.size == 1:
        return x @ weight
    width, dtype = weight.shape[1], x.dtype
    exchange = _exchange(group)
    slot_bytes = -(-max(sizes) * width * dtype.itemsize // 64) * 64
    exchange.begin(slot_bytes * group.size)
    rows = _split(x, sizes)
    me, mine = group.rank, (sizes[group.rank], width)
    for step in range(1, group.size + 1):
        rank = (me + step) % group.size
        if rank != me:
            if sizes[rank]:
                torch.mm(rows[rank], weight, out=exchange.block(rank, slot_bytes * me, (sizes[rank], width), dtype))
            exchange.sent(rank)
    own = rows[me] @ weight
    # In rank order, and 16-bit floats in float32: the same sum as reduce_scatter's.
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    total = torch.zeros(mine, dtype=wide)
    for rank in range(group.size):
        if rank == me:
            total += own
            continue
        exchange.arrive(rank)
        if sizes[me]:
            total += exchange.block(me, slot_bytes * rank, mine, dtype)
        exchange.taken(rank)
    return total.to(dtype)


class AllGatherMatmul(torch.autograd.Function):
    """``all_gather(x) @ weight`` as `all_gather_matmul` calls it, on 2-d tensors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Group, sizes: Sequence[int]) -> torch.Tensor:
        """Multiply each rank's rows by ``weight``."""
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.sizes = group, sizes
        return _gather_product(x, weight, group, sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Scatter the gradient of ``x``; that of ``weight`` needs all rows again, which are read where they lie."""
        (grad,) = grads
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        for_x = for_weight = None
        if ctx.needs_input_grad[1]:
            pieces = _split(grad, ctx.sizes)
            for_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
            for rank, rows in _blocks(ctx.group, x, ctx.sizes):
                for_weight.addmm_(rows.t(), pieces[rank])
        if ctx.needs_input_grad[0]:
            for_x = _scatter_product(grad, weight.t(), ctx.group, ctx.sizes)
        return for_x, for_weight, None, None


class MatmulReduceScatter(torch.autograd.Function):
    """``reduce_scatter(x @ weight)`` as `matmul_reduce_scatter` calls it, on 2-d tensors."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Group, sizes: Sequence[int]) -> torch.Tensor:
        """Multiply, and send each rank its rows of the product."""
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.sizes = group, sizes
        return _scatter_product(x, weight, group, sizes)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """Multiply each rank's rows of the gradient as they arrive."""
        (grad,) = grads
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        for_x = for_weight = None
        rows = _split(x, ctx.sizes)
        if ctx.needs_input_grad[0]:
            for_x = grad.new_empty(x.shape)
        if ctx.needs_input_grad[1]:
            for_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        pieces = None if for_x is None else _split(for_x, ctx.sizes)
        for rank, block in _blocks(ctx.group, grad, ctx.sizes):
            if pieces is not None:
                torch.mm(block, weight.t(), out=pieces[rank])
            if for_weight is not None:
                for_weight.addmm_(rows[rank].t(), block)
        return for_x, for_weight, None, None


def all_gather_matmul(
    x: torch.Tensor, weight: torch.Tensor, group: Group | None = None, *, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Return ``all_gather(x) @ weight``, with gradients; every rank of the group calls it.

    The backward sends what the forward does, twice where both inputs need gradients (a reduce-scatter for ``x``, the
    rows again for ``weight``); the gathered rows are never held as a whole. The group keeps memory for two calls.

    Args:
        x: Shape (rows, …, k): this rank's rows, on a CPU. A floating-point dtype.
        weight: Shape (k, n), of the same dtype; each rank has its own.
        group: At most 32 CPU ranks of one host; by default the world.
        sizes: Rows of each rank, equal on all ranks; by default all have as many as this one.

    Returns:
        Shape (rows of all ranks, …, n).

    Raises:
        CommError: shapes, dtypes, sizes or the group do not fit, or a rank failed.
        CommTimeoutError: a rank did not come in time.
    """
    group = comm.world() if group is None else group
    counts = _counts("all_gather_matmul", x, weight, group, sizes, [x.shape[0]] * group.size if x.ndim else [])
    if counts[group.rank] != x.shape[0]:
        raise CommError(
            f"all_gather_matmul on group {group.name}: sizes[{group.rank}] is {counts[group.rank]}, but this rank's "
            f"tensor has {x.shape[0]} rows"
        )
    rest = x.shape[1:-1]
    flat = x.reshape(-1, x.shape[-1])
    out = _apply(AllGatherMatmul, flat, weight, group, counts, rest.numel())
    return out.view(sum(counts), *rest, weight.shape[1])


def matmul_reduce_scatter(
    x: torch.Tensor, weight: torch.Tensor, group: Group | None = None, *, sizes: Sequence[int] | None = None
) -> torch.Tensor:
    """Return this rank's rows of the sum over ranks of ``x @ weight``, with gradients; every rank calls it.

    Args:
        x: Shape (rows of all ranks, …, k), on a CPU; each rank has its own. A floating-point dtype.
        weight: Shape (k, n), of the same dtype.
        group: At most 32 CPU ranks of one host; by default the world.
        sizes: Rows that each rank keeps, adding up to those of ``x``; by default equal.

    Returns:
        Shape (rows of this rank, …, n).

    Raises:
        CommError: shapes, dtypes, sizes or the group do not fit, or a rank failed.
        CommTimeoutError: a rank did not come in time.
    """
    group = comm.world() if group is None else group
    equal = [x.shape[0] // group.size] * group.size if x.ndim else []
    counts = _counts("matmul_reduce_scatter", x, weight, group, sizes, equal)
    if sum(counts) != x.shape[0]:
        raise CommError(
            f"matmul_reduce_scatter on group {group.name}: the tensor has {x.shape[0]} rows, which are not the sum of "
            f"sizes {list(counts)}"
        )
    rest = x.shape[1:-1]
    flat = x.reshape(-1, x.shape[-1])
    out = _apply(MatmulReduceScatter, flat, weight, group, counts, rest.numel())
    return out.view(counts[group.rank], *rest, weight.shape[1])


def _counts(
    kind: str, x: torch.Tensor, weight: torch.Tensor, group: Group, sizes: Sequence[int] | None, equal: list[int]
) -> list[int]:
    if x.ndim < 2 or weight.ndim != 2 or x.shape[-1] != weight.shape[0]:
        raise CommError(
            f"{kind}: x of shape (rows, …, k) and weight of shape (k, n) are expected, not {tuple(x.shape)} and "
            f"{tuple(weight.shape)}"
        )
    if x.dtype != weight.dtype or not x.dtype.is_floating_point or x.device.type != "cpu":
        raise CommError(
            f"{kind}: x and weight of one floating-point dtype on a CPU are expected, not {x.dtype} on {x.device} and "
            f"{weight.dtype}"
        )
    return equal if sizes is None else check_sizes("sizes", sizes, group)
