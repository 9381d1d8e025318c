# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of collectives; each raises ``CommError`` saying what was given and what was expected."""

from __future__ import annotations

from collections.abc import Sequence

from hp_core.comm.group import Group
from hp_core.comm.types import Tensor
from hp_core.errors import CommError


def rows(kind: str, tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of ``tensor``, which must have a dim 0 to split."""
    shape = tuple(tensor.shape)
    if not shape:
        raise CommError(f"{kind} splits dim 0, but the tensor is 0-d; use tensor.reshape(1)")
    return shape


def check_sizes(name: str, sizes: Sequence[int], group: Group) -> list[int]:
    """Return ``sizes`` as ints, one length for each rank of the group."""
    sizes = [int(size) for size in sizes]
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


def check_rank(kind: str, name: str, rank: int, group: Group) -> None:
    """Raise unless ``rank`` is an index within the group."""
    if not 0 <= rank < group.size:
        raise CommError(
            f"{kind} on group {group.name}: {name} {rank} is not a rank of the group (0 to {group.size - 1}; "
            f"ranks count within the group, whose world ranks are {list(group.ranks)})"
        )


def check_out(kind: str, out: Tensor, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless ``out`` can take a result of ``shape`` and of the dtype of ``tensor``."""
    if tuple(out.shape) != shape or out.dtype != tensor.dtype:
        raise CommError(
            f"{kind}: out has shape {tuple(out.shape)} and dtype {out.dtype}, but the result has shape {shape} and "
            f"dtype {tensor.dtype}"
        )
    if not out.is_contiguous():
        raise CommError(f"{kind}: out (shape {shape}) is not contiguous; pass a contiguous tensor and copy from it")
