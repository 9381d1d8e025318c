# SPDX-License-Identifier: Apache-2.0
"""The collectives: one functional interface, whatever moves the bytes.

Each function is called by every rank of the group, in the same order on each. ``group=None`` is the world. In-place
functions write through any strides. Tensors that require grad are refused where gradients are being recorded: nothing
here enters autograd. ``async_op=True`` returns a `Work`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from hp_core.comm import session as _session
from hp_core.comm.arguments import (
    as_group,
    check_ops,
    check_out,
    check_own,
    check_rank,
    check_sizes,
    check_sum,
    equal_pieces,
    rows,
)
from hp_core.comm.group import Group
from hp_core.comm.run import run_call
from hp_core.comm.tensors import check_tensor
from hp_core.comm.types import P2P, Call, Tensor, reduction
from hp_core.errors import CommError


def _group(group: Group | None) -> Group:
    return _session.current().world if group is None else as_group(group)


def all_reduce(
    tensor: Tensor,
    op: str = "sum",
    group: Group | None = None,
    *,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Reduce ``tensor`` over the group, in place; every rank ends with the same bits.

    16-bit floating-point sums, averages and products accumulate in float32 on gloo.

    Args:
        tensor: Any shape, the same on all ranks; also strided, 0-d or empty.
        op: See `ReduceOp`.
        group: Whose ranks take part.
        async_op: Return a Work at once; ``tensor`` must not be touched until its ``wait()``.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Returns:
        ``tensor``, or a Work whose ``wait()`` returns it.

    Raises:
        CommError: the operation is not defined for the dtype, a rank failed, or a rank made another call.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    check_tensor("all_reduce", tensor, group, True)
    name = reduction(tensor.dtype, op)
    call = group.begin("all_reduce", tensor, timeout_s, name)
    return run_call(call, group.channel.all_reduce, (tensor, name), async_op)


def all_gather(
    tensor: Tensor,
    group: Group | None = None,
    *,
    sizes: Sequence[int] | None = None,
    out: Tensor | None = None,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Concatenate the tensors of all ranks along dim 0, in rank order.

    Args:
        tensor: Same shape on all ranks but for dim 0 where ``sizes`` is given. A 0-d tensor counts as shape (1,).
        group: Whose ranks take part.
        sizes: Length of dim 0 on each rank, equal on all ranks; by default all have the same shape.
        out: Contiguous tensor of the result's shape and dtype to write into.
        async_op: Return a Work at once.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Returns:
        The result, or a Work whose ``wait()`` returns it.

    Raises:
        CommError: sizes or ``out`` do not fit, a rank failed, or a rank made another call.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    check_tensor("all_gather", tensor, group)
    shape = tuple(tensor.shape) or (1,)
    if sizes is None:
        total = shape[0] * group.size
    else:
        sizes = check_sizes("sizes", sizes, group)
        check_own("all_gather", sizes, shape, group)
        total = sum(sizes)
        if min(sizes) == max(sizes):
            sizes = None
    if out is not None:
        check_out("all_gather", out, tensor, (total, *shape[1:]), group)
    call = group.begin("all_gather", tensor, timeout_s, "", sizes)
    return run_call(call, group.channel.all_gather, (tensor, sizes, out), async_op)


def reduce_scatter(
    tensor: Tensor,
    op: str = "sum",
    group: Group | None = None,
    *,
    sizes: Sequence[int] | None = None,
    out: Tensor | None = None,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Reduce ``tensor`` over the group and keep this rank's piece of dim 0.

    Args:
        tensor: Same shape on all ranks, at least 1-d; not changed.
        op: See `ReduceOp`.
        group: Whose ranks take part.
        sizes: Length of each rank's piece, equal on all ranks, adding up to dim 0; by default equal pieces.
        out: Contiguous tensor of the result's shape and dtype to write into.
        async_op: Return a Work at once; ``tensor`` must not be changed until its ``wait()``.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Returns:
        The piece, or a Work whose ``wait()`` returns it.

    Raises:
        CommError: sizes or ``out`` do not fit, a rank failed, or a rank made another call.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    check_tensor("reduce_scatter", tensor, group)
    name = reduction(tensor.dtype, op)
    shape = rows("reduce_scatter", tensor)
    if sizes is None:
        mine = equal_pieces("reduce_scatter", "sizes=[...]", shape, group)
    else:
        sizes = check_sizes("sizes", sizes, group)
        check_sum("reduce_scatter", "sizes", sizes, shape, group)
        mine = sizes[group.rank]
        if min(sizes) == max(sizes):
            sizes = None
    if out is not None:
        check_out("reduce_scatter", out, tensor, (mine, *shape[1:]), group)
    call = group.begin("reduce_scatter", tensor, timeout_s, name, sizes)
    return run_call(call, group.channel.reduce_scatter, (tensor, name, sizes, out), async_op)


def all_to_all(
    tensor: Tensor,
    group: Group | None = None,
    *,
    input_sizes: Sequence[int] | None = None,
    output_sizes: Sequence[int] | None = None,
    out: Tensor | None = None,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Send piece ``i`` of dim 0 to rank ``i``, and concatenate along dim 0 what every rank sent to this one.

    Args:
        tensor: At least 1-d; dims after the first are the same on all ranks. Not changed.
        group: Whose ranks take part.
        input_sizes: Rows sent to each rank, adding up to dim 0; by default equal pieces.
        output_sizes: Rows that come from each rank (rank ``i``'s ``input_sizes`` at this rank); equal by default.
        out: Contiguous tensor of the result's shape and dtype to write into.
        async_op: Return a Work at once; ``tensor`` must not be changed until its ``wait()``.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Returns:
        The result, or a Work whose ``wait()`` returns it.

    Raises:
        CommError: sizes or ``out`` do not fit, a rank failed, or a rank made another call.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    check_tensor("all_to_all", tensor, group)
    shape = rows("all_to_all", tensor)
    if (input_sizes is None) != (output_sizes is None):
        given, other = ("output_sizes", "input_sizes") if input_sizes is None else ("input_sizes", "output_sizes")
        raise CommError(f"all_to_all on group {group.name}: {given} is given without {other}; pass both or neither")
    if input_sizes is None or output_sizes is None:
        piece = equal_pieces("all_to_all", "input_sizes and output_sizes", shape, group)
        input_sizes = output_sizes = [piece] * group.size
    else:
        input_sizes = check_sizes("input_sizes", input_sizes, group)
        output_sizes = check_sizes("output_sizes", output_sizes, group)
        check_sum("all_to_all", "input_sizes", input_sizes, shape, group)
        sent, came = input_sizes[group.rank], output_sizes[group.rank]
        if sent != came:
            raise CommError(
                f"all_to_all on group {group.name}: rank {group.rank} sends itself {sent} rows (input_sizes), but "
                f"expects {came} (output_sizes)"
            )
    if out is not None:
        check_out("all_to_all", out, tensor, (sum(output_sizes), *shape[1:]), group)
    call = group.begin("all_to_all", tensor, timeout_s, "", (input_sizes, output_sizes))
    return run_call(call, group.channel.all_to_all, (tensor, input_sizes, output_sizes, out), async_op)


def broadcast(
    tensor: Tensor,
    src: int = 0,
    group: Group | None = None,
    *,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Overwrite ``tensor`` in place with that of rank ``src``.

    Args:
        tensor: Any shape, the same on all ranks; also strided, 0-d or empty.
        src: Rank within the group whose values every rank gets.
        group: Whose ranks take part.
        async_op: Return a Work at once; ``tensor`` must not be touched until its ``wait()``.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Returns:
        ``tensor``, or a Work whose ``wait()`` returns it.

    Raises:
        CommError: ``src`` is not in the group, a rank failed, or a rank made another call.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    check_tensor("broadcast", tensor, group, True)
    src = check_rank("broadcast", "src", src, group)
    call = group.begin("broadcast", tensor, timeout_s, f"src {src}")
    return run_call(call, group.channel.broadcast, (tensor, src), async_op)


def batch_p2p(
    ops: Sequence[P2P],
    group: Group | None = None,
    *,
    async_op: bool = False,
    timeout_s: float | None = None,
) -> Any:
    """Start several sends and receives at once; they complete in any order and cannot deadlock each other.

    Only the ranks that have something to send or receive call it. A receive gets the oldest send of the same peer
    and tag. Empty tensors are not sent.

    Args:
        ops: What to send and receive.
        group: Whose ranks ``peer`` counts.
        async_op: Return a Work at once; the tensors must not be touched until its ``wait()``.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Returns:
        None, or a Work whose ``wait()`` returns None.

    Raises:
        CommError: an operation is malformed, or a peer failed.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    check_ops(ops, group)
    call = group.begin_p2p(ops, timeout_s)
    return run_call(call, group.channel.batch_p2p, (ops,), async_op)


def barrier(group: Group | None = None, *, timeout_s: float | None = None) -> None:
    """Return when every rank of the group has called it.

    Args:
        group: Whose ranks take part.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Raises:
        CommError: a rank failed.
        CommTimeoutError: a rank did not come in time.
    """
    group = _group(group)
    call = group.begin("barrier", None, timeout_s)
    run_call(call, group.channel.barrier, (), False)


def all_gather_object(obj: Any, group: Group | None = None, *, timeout_s: float | None = None) -> list[Any]:
    """Return every rank's object, in rank order. Objects are pickled: only what trusted ranks of one job send.

    Args:
        obj: Anything that pickles; sizes may differ.
        group: Whose ranks take part.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Raises:
        CommError: the object does not pickle, or a rank failed.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    data = _pickled(obj, "all_gather_object")
    call = group.begin("all_gather_object", None, timeout_s)
    parts = _blocking(call, group.channel.all_gather_bytes, (data,))
    return [_unpickled(part, "all_gather_object", group, src) for src, part in enumerate(parts)]


def broadcast_object(obj: Any, src: int = 0, group: Group | None = None, *, timeout_s: float | None = None) -> Any:
    """Return the object of rank ``src``; what the other ranks pass is ignored.

    Args:
        obj: Anything that pickles.
        src: Rank within the group.
        group: Whose ranks take part.
        timeout_s: How long it may take; by default that of ``init_backend``.

    Raises:
        CommError: the object does not pickle, or a rank failed.
        CommTimeoutError: it did not complete in time.
    """
    group = _group(group)
    src = check_rank("broadcast_object", "src", src, group)
    data = _pickled(obj if src == group.rank else None, "broadcast_object")
    call = group.begin("broadcast_object", None, timeout_s, f"src {src}")
    parts = _blocking(call, group.channel.all_gather_bytes, (data,))  # all but one of which are None
    return _unpickled(parts[src], "broadcast_object", group, src)


def _blocking(call: Call, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    session = call.group.session
    session.waiting = call
    try:
        result = run(*args, call.timeout_s)
    except CommError:
        raise
    except Exception as exc:
        session.fail(call, exc)
    finally:
        session.waiting = None
    call.group.completed(call)
    return result


def _pickled(obj: Any, kind: str) -> bytes:
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise CommError(f"{kind}: an object of type {type(obj).__name__} does not pickle: {exc}") from exc


def _unpickled(data: bytes, kind: str, group: Group, src: int) -> Any:
    try:
        return pickle.loads(data)  # noqa: S301 - ranks of one job trust each other
    except Exception as exc:
        raise CommError(
            f"rank {group.ranks[group.rank]}: {kind} on group {group.name}: the object of rank {group.ranks[src]} "
            f"cannot be unpickled here: {type(exc).__name__}: {exc}"
        ) from exc
