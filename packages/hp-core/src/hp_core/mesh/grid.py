# SPDX-License-Identifier: Apache-2.0
"""The pure part of a mesh: an n-dimensional grid of rank numbers.

Nothing here knows a process, a device or a framework, so a plan for ten thousand ranks is made
and tested in one process. ``Grid`` is a value: immutable, comparable, hashable, picklable.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hp_core.errors import MeshError, did_you_mean

Axis = int | str


@dataclass(frozen=True)
class Grid:
    """Ranks laid out row-major (the last axis varies fastest) in a box of ``shape``.

    Attributes:
        shape: Number of ranks along each axis, each at least 1.
        names: One name per axis, or ``None`` for a grid whose axes are known by index only.
        ranks: Every rank, row-major; any order, any subset of a world. ``range(size)`` by default.

    Raises:
        MeshError: If sizes, names and ranks do not fit together.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None
    ranks: tuple[int, ...] = ()
    _index: dict[int, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        shape = _check_shape(self.shape)
        size = math.prod(shape)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "names", _check_names(self.names, shape))
        # `()` stands for the default: no grid is without ranks, as every size is at least 1.
        given = tuple(self.ranks) if len(self.ranks) else None
        ranks = tuple(range(size)) if given is None else _check_ranks(given, shape)
        object.__setattr__(self, "ranks", ranks)
        object.__setattr__(self, "_index", {rank: index for index, rank in enumerate(ranks)})

    def __reduce__(self) -> tuple[Any, ...]:
        return (Grid, (self.shape, self.names, self.ranks))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def axis(self, axis: Axis) -> int:
        """Return the index of an axis given by name or by index (negative counts from the end).

        Raises:
            MeshError: If there is no such axis; the message lists the axes and near matches.
        """
        if isinstance(axis, str):
            if self.names is None:
                raise MeshError(
                    f"mesh axis {axis!r} was asked for by name, but the mesh of shape {self.shape} has no names: "
                    "give mesh_dim_names when making it, or use the axis' index"
                )
            if axis not in self.names:
                raise MeshError(
                    f"mesh has no axis {axis!r}: its axes are {', '.join(map(repr, self.names))}"
                    f"{did_you_mean(axis, self.names)}"
                )
            return self.names.index(axis)
        index = whole_number(axis)
        if index is None:
            raise MeshError(f"{axis!r} is no mesh axis: give a name or an index, or several as a tuple")
        if not -self.ndim <= index < self.ndim:
            raise MeshError(f"mesh axis {index} is out of range for a mesh of {self.ndim} axes, shape {self.shape}")
        return index % self.ndim

    def axes(self, axes: Axis | Sequence[Axis] | None) -> tuple[int, ...]:
        """Return the indices of one axis, several, or all (``None``), in the order given.

        Raises:
            MeshError: If an axis is unknown or named twice, or if none is given.
        """
        if axes is None:
            return tuple(range(self.ndim))
        return check_once(tuple(self.axis(a) for a in as_several(axes)), axes)

    def axis_name(self, axis: Axis) -> str:
        """Return the name of an axis, or ``"axis 0"`` and so on where there are no names."""
        index = self.axis(axis)
        return f"axis {index}" if self.names is None else self.names[index]

    def coordinate(self, rank: int) -> tuple[int, ...] | None:
        """Return where ``rank`` is, one index per axis, or ``None`` if it is not in the grid."""
        index = self._index.get(rank)
        if index is None:
            return None
        coordinate = []
        for size in reversed(self.shape):
            index, along = divmod(index, size)
            coordinate.append(along)
        return tuple(reversed(coordinate))

    def subgrid(self, dims: Sequence[Sequence[int]], at: Sequence[int], names: tuple[str, ...] | None = None) -> Grid:
        """Return the grid through coordinate ``at`` whose axes are ``dims``.

        Args:
            dims: For each axis of the result the axes of this grid that it runs over, first slowest. One
                axis each keeps them as they are; several are flattened into one. The order is free.
            at: Coordinate in this grid; its entries along ``dims`` do not matter.
            names: Names of the result's axes.

        Raises:
            MeshError: If an axis is used twice.
        """
        flat = [axis for dim in dims for axis in dim]
        if len(set(flat)) != len(flat):
            raise MeshError(f"sub-mesh axes {tuple(map(tuple, dims))} use an axis of shape {self.shape} twice")
        shape = tuple(math.prod(self.shape[axis] for axis in dim) for dim in dims)
        where = list(at)
        ranks = []
        for along in itertools.product(*(range(self.shape[axis]) for axis in flat)):
            for axis, index in zip(flat, along, strict=True):
                where[axis] = index
            ranks.append(self.ranks[self._offset(where)])
        return Grid(shape, names, tuple(ranks))

    def groups(self, axes: Axis | Sequence[Axis] | None) -> Iterator[tuple[int, ...]]:
        """Yield every group along ``axes``: together they hold each rank once.

        Each is the ranks in the order of ``axes`` (first slowest), the groups in row-major order of the other axes.
        """
        chosen = self.axes(axes)
        others = [axis for axis in range(self.ndim) if axis not in chosen]
        for along in itertools.product(*(range(self.shape[axis]) for axis in others)):
            at = [0] * self.ndim
            for axis, index in zip(others, along, strict=True):
                at[axis] = index
            yield self.subgrid([chosen], at).ranks

    def describe(self) -> str:
        """Return the grid in words for messages: ``(dp=2, tp=4)``, or ``(2, 4)`` without names."""
        if self.names is None:
            return str(self.shape)
        return "(" + ", ".join(f"{name}={size}" for name, size in zip(self.names, self.shape, strict=True)) + ")"

    def _offset(self, coordinate: Sequence[int]) -> int:
        offset = 0
        for index, size in zip(coordinate, self.shape, strict=True):
            offset = offset * size + index
        return offset


def as_several(axes: Any) -> tuple[Any, ...]:
    """Return the axes given by one or by a sequence, as a tuple; nothing is checked."""
    return tuple(axes) if isinstance(axes, Sequence) and not isinstance(axes, str) else (axes,)


def check_once(chosen: tuple[int, ...], axes: Any) -> tuple[int, ...]:
    """Return ``chosen``, the indices that ``axes`` stand for.

    Raises:
        MeshError: There is none, or one twice.
    """
    if not chosen:
        raise MeshError("no mesh axis given: name at least one")
    if len(set(chosen)) != len(chosen):
        raise MeshError(f"mesh axes {axes!r} name an axis twice: name each once")
    return chosen


def whole_number(value: Any) -> int | None:
    """Return ``value`` as an int, or None where it is none; a truth value is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _whole_numbers(values: Sequence[Any]) -> tuple[int, ...] | None:
    numbers = tuple(number for number in map(whole_number, values) if number is not None)
    return numbers if len(numbers) == len(values) else None


def _check_shape(shape: Any) -> tuple[int, ...]:
    sizes = shape if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    checked = _whole_numbers(sizes)
    if checked is None:
        raise MeshError(f"mesh shape {shape!r} must be whole numbers, one per axis, such as (2, 4)")
    if not checked:
        raise MeshError("mesh shape () has no axis: give at least one size, such as (1,)")
    for size in checked:
        if size < 1:
            raise MeshError(f"mesh shape {checked} has an axis of size {size}: every size must be at least 1")
    return checked


def _check_names(names: Any, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    if names is None:
        return None
    checked = as_several(names)
    if not all(isinstance(name, str) and name.isprintable() and name.split() == [name] for name in checked):
        raise MeshError(f"mesh axis names {checked!r} must be non-empty strings without spaces or control characters")
    if len(checked) != len(shape):
        raise MeshError(
            f"mesh shape {shape} has {len(shape)} axes but {len(checked)} names were given "
            f"({', '.join(map(repr, checked))}): give one name per axis"
        )
    for name in checked:
        if checked.count(name) > 1:
            raise MeshError(f"mesh axis name {name!r} is used twice in {checked!r}: every axis needs its own name")
    return checked


def _check_ranks(ranks: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    checked = _whole_numbers(ranks)
    if checked is None:
        raise MeshError(f"mesh ranks {ranks!r} must be whole numbers")
    size = math.prod(shape)
    if len(checked) != size:
        raise MeshError(
            f"a mesh of shape {shape} needs {size} ranks but rank_list has {len(checked)}: give {size} ranks, or a "
            f"shape whose sizes multiply to {len(checked)}"
        )
    if min(checked) < 0:
        raise MeshError(f"mesh rank {min(checked)} is negative: ranks count from 0")
    if len(set(checked)) != size:
        twice = sorted(rank for rank in set(checked) if checked.count(rank) > 1)
        raise MeshError(f"mesh ranks {twice} appear more than once in rank_list: every rank has one place")
    return checked
