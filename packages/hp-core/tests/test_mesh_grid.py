# SPDX-License-Identifier: Apache-2.0
"""The pure grid of ranks, against numpy."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_core.errors import HPError, MeshError
from hp_core.mesh import Grid


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    size = math.prod(shape)
    ranks = draw(st.permutations(range(size + draw(st.integers(0, 5)))))[:size]
    names = tuple("abcd"[: len(shape)]) if draw(st.booleans()) else None
    return Grid(shape, names, tuple(ranks))


def as_array(grid: Grid) -> np.ndarray:
    return np.array(grid.ranks).reshape(grid.shape)


@given(grids())
def test_coordinates_are_numpys(grid: Grid) -> None:
    array = as_array(grid)
    for rank in grid.ranks:
        coordinate = grid.coordinate(rank)
        assert coordinate == tuple(int(i[0]) for i in np.where(array == rank))
    assert grid.coordinate(max(grid.ranks) + 1) is None


@given(grids(), st.data())
def test_a_subgrid_is_numpys_slice_transposed_to_the_order_asked(grid: Grid, data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(grid.ndim)))[: data.draw(st.integers(1, grid.ndim))]
    at = grid.coordinate(data.draw(st.sampled_from(grid.ranks)))
    index = tuple(slice(None) if axis in axes else at[axis] for axis in range(grid.ndim))
    kept = sorted(axes)
    expected = as_array(grid)[index].transpose([kept.index(axis) for axis in axes])
    got = grid.subgrid([[axis] for axis in axes], at)
    assert got.shape == expected.shape
    assert got.ranks == tuple(expected.ravel())
    flat = grid.subgrid([axes], at)
    assert flat.shape == (expected.size,)
    assert flat.ranks == got.ranks


@settings(max_examples=50)
@given(grids(), st.data())
def test_groups_along_axes_hold_every_rank_once_and_agree_with_each_ranks_subgrid(
    grid: Grid, data: st.DataObject
) -> None:
    axes = data.draw(st.permutations(range(grid.ndim)))[: data.draw(st.integers(1, grid.ndim))]
    groups = list(grid.groups(tuple(axes)))
    assert sorted(rank for group in groups for rank in group) == sorted(grid.ranks)
    for group in groups:
        for rank in group:
            assert grid.subgrid([axes], grid.coordinate(rank)).ranks == group


@given(grids(), grids())
def test_identity_is_shape_names_and_every_rank(one: Grid, other: Grid) -> None:
    same = (one.shape, one.names, one.ranks) == (other.shape, other.names, other.ranks)
    assert (one == other) is same
    copy = pickle.loads(pickle.dumps(one))
    assert copy == one
    assert hash(copy) == hash(one)
    assert copy.coordinate(one.ranks[-1]) == one.coordinate(one.ranks[-1])


def test_ranks_count_from_zero_row_major_by_default() -> None:
    grid = Grid((2, 3), ("dp", "tp"))
    assert grid.ranks == (0, 1, 2, 3, 4, 5)
    assert grid.coordinate(4) == (1, 1)
    assert list(grid.groups("tp")) == [(0, 1, 2), (3, 4, 5)]
    assert list(grid.groups("dp")) == [(0, 3), (1, 4), (2, 5)]
    assert list(grid.groups(("tp", "dp"))) == [(0, 3, 1, 4, 2, 5)]
    assert list(grid.groups(None)) == [(0, 1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((),), r"mesh shape \(\) has no axis"),
        (((2, 0),), r"mesh shape \(2, 0\) has an axis of size 0: every size must be at least 1"),
        (((-1, 2),), r"axis of size -1"),
        (((2.0, 2),), r"must be whole numbers"),
        ((("2",),), r"must be whole numbers"),
        (((2, 2), ("dp",)), r"has 2 axes but 1 names were given \('dp'\): give one name per axis"),
        (((2, 2), ("dp", "dp")), r"name 'dp' is used twice"),
        (((2, 2), ("dp", "")), r"non-empty strings"),
        (((2, 2), ("dp", 3)), r"non-empty strings"),
        (((2, 2), None, (0, 1, 2)), r"shape \(2, 2\) needs 4 ranks but rank_list has 3"),
        (((2, 2), None, (0, 1, 2, 1)), r"ranks \[1\] appear more than once"),
        (((2, 2), None, (0, 1, 2, -3)), r"rank -3 is negative"),
        (((2, 2), None, (0, 1, 2, "3")), r"must be whole numbers"),
    ],
)
def test_a_grid_that_cannot_be_raises_and_says_why(arguments: tuple, message: str) -> None:
    with pytest.raises(MeshError, match=message) as error:
        Grid(*arguments)
    assert isinstance(error.value, HPError)
    assert "\n" not in str(error.value)


def test_an_unknown_axis_names_the_axes_and_the_nearest() -> None:
    grid = Grid((2, 2), ("data", "tensor"))
    with pytest.raises(MeshError, match=r"no axis 'tensr': its axes are 'data', 'tensor'; did you mean 'tensor'\?"):
        grid.axis("tensr")
    with pytest.raises(MeshError, match=r"axis 2 is out of range for a mesh of 2 axes"):
        grid.axis(2)
    with pytest.raises(MeshError, match=r"has no names"):
        Grid((2, 2)).axis("dp")
    with pytest.raises(MeshError, match=r"twice"):
        grid.axes(("data", 0))
    with pytest.raises(MeshError, match=r"at least one"):
        grid.axes(())
    with pytest.raises(MeshError, match=r"twice"):
        grid.subgrid([[0], [0]], (0, 0))
    assert grid.axis(-1) == 1


def test_numpy_sizes_and_ranks_become_plain_ints() -> None:
    grid = Grid(tuple(np.array([2, 2])), None, tuple(np.array([3, 1, 0, 2])))
    assert grid == Grid((2, 2), None, (3, 1, 0, 2))
    assert all(type(value) is int for value in (*grid.shape, *grid.ranks))
