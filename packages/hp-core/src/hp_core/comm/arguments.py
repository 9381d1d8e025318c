# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of collectives; each raises ``CommError`` saying what was given and what was expected."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from hp_core.comm.group import Group
from hp_core.comm.tensors import check_tensor, requires_grad
from hp_core.comm.types import P2P, Tensor
from hp_core.errors import CommError


def whole_numbers(what: str, values: Iterable[Any]) -> list[int]:
    """Return ``values`` as ints; a float is none, whatever its value."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise CommError(f"{what} = {values!r}: expected a list of whole numbers") from None


def whole_number(what: str, value: Any) -> int:
    """Return ``value`` as an int; a float is none, whatever its value."""
    try:
        return operator.index(value)
    except TypeError:
        raise CommError(f"{what} {value!r} is not a whole number") from None


def as_group(group: Any) -> Group:
    """Return ``group``, which must be one."""
    if not isinstance(group, Group):
        raise CommError(
            f"group={group!r} is a {type(group).__name__}, not a comm Group; pass what new_group() or "
            "mesh.get_group(axis) returns, or leave it out for the world"
        )
    return group


def rows(kind: str, tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of ``tensor``, which must have a dim 0 to split."""
    shape = tuple(tensor.shape)
    if not shape:
        raise CommError(f"{kind} splits dim 0, but the tensor is 0-d; use tensor.reshape(1)")
    return shape


def check_sizes(name: str, sizes: Sequence[int], group: Group) -> list[int]:
    """Return ``sizes`` as ints, one length for each rank of the group."""
    sizes = whole_numbers(f"{name} on group {group.name}", sizes)
    if len(sizes) != group.size or min(sizes) < 0:
        raise CommError(
            f"{name} = {sizes} on group {group.name}: expected {group.size} lengths >= 0, one for each rank of it"
        )
    return sizes


def check_sum(kind: str, name: str, sizes: Sequence[int], shape: tuple[int, ...], group: Group) -> None:
    """Raise unless ``sizes`` add up to dim 0."""
    if sum(sizes) != shape[0]:
        raise CommError(
            f"{kind} on group {group.name}: {name} = {list(sizes)} adds up to {sum(sizes)}, but the tensor has "
            f"{shape[0]} rows (shape {shape}); give the number of rows of each rank's piece, {shape[0]} in all"
        )


def equal_pieces(kind: str, names: str, shape: tuple[int, ...], group: Group) -> int:
    """Return how many rows each rank has of dim 0, which must divide; ``names``: what uneven pieces are given by."""
    if shape[0] % group.size:
        raise CommError(
            f"{kind} on group {group.name}: {shape[0]} rows (shape {shape}) do not divide into {group.size} equal "
            f"pieces; pass {names} for uneven ones"
        )
    return shape[0] // group.size


def check_own(kind: str, sizes: Sequence[int], shape: tuple[int, ...], group: Group) -> None:
    """Raise unless ``sizes``, dim 0 of each rank's tensor, says of this rank what its tensor has."""
    if sizes[group.rank] != shape[0]:
        raise CommError(
            f"{kind} on group {group.name}: sizes[{group.rank}] is {sizes[group.rank]}, but this rank's tensor "
            f"has {shape[0]} rows (shape {shape}); sizes lists dim 0 of each rank's tensor"
        )


def check_rank(kind: str, name: str, rank: Any, group: Group) -> int:
    """Return ``rank`` as an int, which must be an index within the group."""
    index = whole_number(f"{kind} on group {group.name}: {name}", rank)
    if not 0 <= index < group.size:
        raise CommError(
            f"{kind} on group {group.name}: {name} {rank} is not a rank of the group (0 to {group.size - 1}; "
            f"ranks count within the group, whose world ranks are {list(group.ranks)})"
        )
    return index


def check_ops(ops: Sequence[P2P], group: Group) -> None:
    """Raise unless ``ops`` is a list of operations that can be started."""
    if not isinstance(ops, list | tuple):
        raise CommError(f"batch_p2p on group {group.name}: expected a list of P2P, not {type(ops).__name__}")
    for op in ops:
        if not isinstance(op, P2P):
            raise CommError(f"batch_p2p on group {group.name}: {op!r} is not a P2P; pass P2P(kind, tensor, peer, tag)")
        if op.kind not in ("send", "recv"):
            raise CommError(f"batch_p2p on group {group.name}: kind {op.kind!r} is neither 'send' nor 'recv'")
        check_rank(f"batch_p2p {op.kind}", "peer", op.peer, group)
        if not 0 <= whole_number(f"batch_p2p on group {group.name}: tag", op.tag) < 2**30:
            raise CommError(f"batch_p2p on group {group.name}: tag {op.tag} is not in [0, 2**30)")
        check_tensor(f"batch_p2p {op.kind}", op.tensor, group, op.kind == "recv")


def check_out(kind: str, out: Tensor, tensor: Tensor, shape: tuple[int, ...], group: Group) -> None:
    """Raise unless ``out`` can take a result of ``shape`` and of the dtype of ``tensor``."""
    check_tensor(f"{kind}(out=…)", out, group)
    if requires_grad(out):
        group.session.refuse_grad(f"{kind}(out=…)", group)
    if tuple(out.shape) != shape or out.dtype != tensor.dtype:
        raise CommError(
            f"{kind}: out has shape {tuple(out.shape)} and dtype {out.dtype}, but the result has shape {shape} and "
            f"dtype {tensor.dtype}"
        )
    if not out.is_contiguous():
        raise CommError(f"{kind}: out (shape {shape}) is not contiguous; pass a contiguous tensor and copy from it")
