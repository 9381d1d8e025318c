# SPDX-License-Identifier: Apache-2.0
"""Collectives of float32 tensors that travel in bfloat16 or 8 bits and accumulate in float32.

Error bounds, of each element (x_r is rank r's value, q the encoding's error of one value):

* ``"bf16"``: |q(x)| <= 2**-8 |x|; values whose magnitude exceeds bfloat16's become infinite.
* ``"e4m3"``: |q(x)| <= max(2**-4 |x|, 2**-10 m / 448) where m is the largest magnitude among the 128 values that share
  a scale (counted from the start of each rank's piece of each step); infinities become NaN.
* `reduce_scatter`: the sum of q(x_r) over the other ranks (a rank's own piece is not encoded), and float32's rounding.
* `all_reduce`: that, and q of the result, which is encoded once more.
* `all_gather`: q(x).

All ranks get the same bits, for any timing. (The format is "E4M3" of "OCP 8-bit Floating Point Specification".)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hp_core import comm
from hp_core.comm.arguments import as_group, check_out, check_own, check_sizes, check_sum, equal_pieces, rows
from hp_core.comm.group import Group
from hp_core.comm.run import run_call
from hp_core.comm.tensors import check_tensor
from hp_core.comm.types import Tensor, dtype_name
from hp_core.errors import CommError
from hp_native.channel import ShmChannel

Wire = Literal["bf16", "e4m3"]
_WIRES = {"bf16": 1, "e4m3": 2}


def _prepare(kind: str, tensor: Tensor, group: Group | None, wire: str) -> tuple[Group, ShmChannel, int]:
    group = comm.world() if group is None else as_group(group)
    check_tensor(kind, tensor, group, kind == "all_reduce")
    if wire not in _WIRES:
        raise CommError(f"{kind}: wire {wire!r} is not one of {', '.join(map(repr, _WIRES))}")
    if dtype_name(tensor.dtype) != "float32":
        raise CommError(f"{kind}: low precision is for float32 tensors, not {dtype_name(tensor.dtype)}")
    channel = group.channel
    if not isinstance(channel, ShmChannel):
        raise CommError(
            f"{kind}: low precision needs a group of at least two CPU ranks on one host; {group.name} is served by "
            f"{group.backend}"
        )
    return group, channel, _WIRES[wire]


def all_reduce(
    tensor: Tensor,
    op: Literal["sum", "avg"] = "sum",
    group: Group | None = None,
    *,
    wire: Wire = "bf16",
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Reduce ``tensor`` in place, as `hp_core.comm.all_reduce` does; every rank of the group calls it.

    Args:
        tensor: float32, any shape, the same on all ranks.
        op: ``"sum"`` or ``"avg"``.
        group: By default the world.
        wire: How values travel.
        async_op: Return a Work.
        timeout_s: By default that of ``init_backend``.

    Returns:
        ``tensor``, or a Work whose ``wait()`` returns it.

    Raises:
        CommError: the dtype, operation, wire or group does not fit, a rank failed or made another call.
        CommTimeoutError: it did not complete in time.
    """
    group, channel, number = _prepare("all_reduce", tensor, group, wire)
    _check_op(op)
    call = group.begin("all_reduce", tensor, timeout_s, f"{op} in {wire}")
    return run_call(call, channel.wire_all_reduce, (tensor, op, number), async_op)


def reduce_scatter(
    tensor: Tensor,
    op: Literal["sum", "avg"] = "sum",
    group: Group | None = None,
    *,
    wire: Wire = "bf16",
    sizes: Sequence[int] | None = None,
    out: Tensor | None = None,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Reduce and keep this rank's piece of dim 0, as `hp_core.comm.reduce_scatter` does.

    Args:
        tensor: float32, at least 1-d, the same shape on all ranks.
        op: ``"sum"`` or ``"avg"``.
        group: By default the world.
        wire: How values travel.
        sizes: Rows of each rank's piece; by default equal.
        out: Contiguous tensor to write into.
        async_op: Return a Work.
        timeout_s: By default that of ``init_backend``.

    Raises:
        CommError: an argument does not fit, a rank failed or made another call.
        CommTimeoutError: it did not complete in time.
    """
    group, channel, number = _prepare("reduce_scatter", tensor, group, wire)
    _check_op(op)
    shape = rows("reduce_scatter", tensor)
    if sizes is None:
        sizes = [equal_pieces("reduce_scatter", "sizes=[...]", shape, group)] * group.size
    sizes = check_sizes("sizes", sizes, group)
    check_sum("reduce_scatter", "sizes", sizes, shape, group)
    if out is not None:
        check_out("reduce_scatter", out, tensor, (sizes[group.rank], *shape[1:]), group)
    call = group.begin("reduce_scatter", tensor, timeout_s, f"{op} in {wire}", sizes)
    return run_call(call, channel.wire_reduce_scatter, (tensor, op, sizes, out, number), async_op)


def all_gather(
    tensor: Tensor,
    group: Group | None = None,
    *,
    wire: Wire = "bf16",
    sizes: Sequence[int] | None = None,
    out: Tensor | None = None,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Concatenate along dim 0, as `hp_core.comm.all_gather` does; a rank's own part is rounded like the others.

    Args:
        tensor: float32, at least 1-d; dims after the first are the same on all ranks.
        group: By default the world.
        wire: How values travel.
        sizes: Rows of each rank; by default equal.
        out: Contiguous tensor to write into.
        async_op: Return a Work.
        timeout_s: By default that of ``init_backend``.

    Raises:
        CommError: an argument does not fit, a rank failed or made another call.
        CommTimeoutError: it did not complete in time.
    """
    group, channel, number = _prepare("all_gather", tensor, group, wire)
    shape = rows("all_gather", tensor)
    sizes = check_sizes("sizes", [shape[0]] * group.size if sizes is None else sizes, group)
    check_own("all_gather", sizes, shape, group)
    if out is not None:
        check_out("all_gather", out, tensor, (sum(sizes), *shape[1:]), group)
    call = group.begin("all_gather", tensor, timeout_s, f"in {wire}", sizes)
    return run_call(call, channel.wire_all_gather, (tensor, sizes, out, number), async_op)


def _check_op(op: str) -> None:
    if op not in ("sum", "avg"):
        raise CommError(f"reduce operation {op!r}: in low precision there are 'sum' and 'avg'")
