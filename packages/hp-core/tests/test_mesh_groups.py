# SPDX-License-Identifier: Apache-2.0
"""Groups of meshes on real ranks: every one is checked by a collective through it."""

from __future__ import annotations

import pickle

import pytest

from hp_core.testing import ranks


def _gathered(mesh, axis) -> list[int]:
    """Global ranks in the order of the group along ``axis``, by an all-gather through it."""
    import torch

    import hp_core.comm as comm

    group = mesh.get_group(axis)
    assert group.rank == mesh.get_local_rank(axis)
    return comm.all_gather(torch.tensor([comm.rank()]), group).tolist()


def _one_axis_of_two() -> dict:
    from hp_core.mesh import init_device_mesh

    straight = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    swapped = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",), rank_list=(1, 0))
    square = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    return {
        "straight": _gathered(straight, "dp"),
        "swapped": _gathered(swapped, "dp"),
        "swapped coordinate": swapped.get_coordinate(),
        "size one": _gathered(square, "dp"),
        "whole": _gathered(square, None),
        "same": straight.get_group() is straight.get_group("dp"),
    }


def test_groups_follow_the_order_of_the_rank_list() -> None:
    for rank, seen in enumerate(ranks(2).run(_one_axis_of_two)):
        assert seen == {
            "straight": [0, 1],
            "swapped": [1, 0],
            "swapped coordinate": (1 - rank,),
            "size one": [rank],
            "whole": [0, 1],
            "same": True,
        }


def _two_by_two(rank_list: tuple) -> dict:
    from hp_core.mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), rank_list=rank_list)
    flat = mesh["tp", "dp"].flatten("all")
    return {
        "dp": _gathered(mesh, "dp"),
        "tp": _gathered(mesh, "tp"),
        "both": _gathered(mesh, ("dp", "tp")),
        "turned": _gathered(mesh, ("tp", "dp")),
        "flat": _gathered(flat, "all"),
        "flat by name": _gathered(mesh, "all") if mesh.get_group("all") is flat.get_group() else "another group",
        "sub": _gathered(mesh["tp"], None),
        "sub is axis": mesh["tp"].get_group() is mesh.get_group("tp"),
    }


@pytest.mark.parametrize("rank_list", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_every_axis_has_its_group_on_four_ranks(rank_list: tuple) -> None:
    a, b, c, d = rank_list
    for rank, seen in enumerate(ranks(4).run(_two_by_two, rank_list)):
        assert seen == {
            "dp": [a, c] if rank in (a, c) else [b, d],
            "tp": [a, b] if rank in (a, b) else [c, d],
            "both": [a, b, c, d],
            "turned": [a, c, b, d],
            "flat": [a, c, b, d],
            "flat by name": [a, c, b, d],
            "sub": [a, b] if rank in (a, b) else [c, d],
            "sub is axis": True,
        }


def _over_some_ranks() -> object:
    import hp_core.comm as comm
    from hp_core.errors import MeshError
    from hp_core.mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("pp",), rank_list=(2, 3, 0))
    if mesh.get_coordinate() is None:
        try:
            mesh.get_group("pp")
        except MeshError as error:
            return str(error)
        return f"rank {comm.rank()} got a group it is not in"
    return _gathered(mesh, "pp")


def test_a_mesh_over_some_ranks_works_there_and_raises_elsewhere() -> None:
    zero, one, two, three = ranks(4).run(_over_some_ranks)
    assert zero == two == three == [2, 3, 0]
    assert "rank 1 is not in the mesh (pp=3) of ranks [2, 3, 0]" in one


def _disjoint_at_once() -> list:
    """Each half makes meshes that the other half never hears of, a different number of them."""
    import hp_core.comm as comm
    from hp_core.mesh import init_device_mesh

    mine = (1, 0) if comm.rank() < 2 else (2, 3)
    rounds = 1 if comm.rank() < 2 else 3
    got = []
    for turn in range(rounds):
        order = mine if turn % 2 == 0 else mine[::-1]
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"), rank_list=order)
        got.append(_gathered(mesh, "dp"))
    world = init_device_mesh("cpu", (4,))
    return [*got, _gathered(world, 0)]


def test_disjoint_meshes_are_made_by_different_ranks_at_once() -> None:
    zero, one, two, three = ranks(4).run(_disjoint_at_once)
    assert zero == one == [[1, 0], [0, 1, 2, 3]]
    assert two == three == [[2, 3], [3, 2], [2, 3], [0, 1, 2, 3]]


def _from_group() -> tuple:
    import hp_core.comm as comm
    from hp_core.mesh import DeviceMesh

    group = comm.new_group([3, 2, 1, 0])
    mesh = DeviceMesh.from_group(group, "cpu", mesh_shape=(2, 2), mesh_dim_names=("dp", "tp"))
    line = DeviceMesh.from_group(comm.world(), "cpu")
    return (
        mesh.get_group() is group,
        _gathered(mesh, "tp"),
        line.get_group() is comm.world(),
        line.get_group(0) is comm.world(),
        mesh.get_coordinate(),
    )


def test_a_mesh_from_a_group_keeps_the_group_and_its_order() -> None:
    for rank, seen in enumerate(ranks(4).run(_from_group)):
        assert seen == (True, [3, 2] if rank > 1 else [1, 0], True, True, divmod(3 - rank, 2))


def _unpickled(data: bytes) -> tuple:
    mesh, sub = pickle.loads(data)
    return mesh.get_coordinate(), _gathered(mesh, "tp"), sub.get_coordinate(), mesh.at_rank(3)["tp"].rank_list


def test_an_unpickled_mesh_looks_with_its_new_process_rank() -> None:
    from hp_core.mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), init_backend=False)
    seen = ranks(4).run(_unpickled, pickle.dumps((mesh, mesh["tp"])))
    assert [s[0] for s in seen] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [s[1] for s in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [s[2] for s in seen] == [(0,), (1,), None, None]
    assert {s[3] for s in seen} == {(2, 3)}


def _planning_view() -> str:
    import hp_core.comm as comm
    from hp_core.errors import MeshError
    from hp_core.mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    try:
        mesh.at_rank(1 - comm.rank()).get_group(0)
    except MeshError as error:
        return str(error)
    return "no error"


def test_a_view_from_another_rank_gives_no_group() -> None:
    for rank, message in enumerate(ranks(2).run(_planning_view)):
        assert f"seen from rank {1 - rank} for planning, but this process is rank {rank}" in message


def _too_large() -> str:
    from hp_core.errors import MeshError
    from hp_core.mesh import init_device_mesh

    try:
        init_device_mesh("cpu", (2, 4))
    except MeshError as error:
        return str(error)
    return "no error"


def test_a_mesh_larger_than_a_running_world_raises_on_every_rank() -> None:
    for message in ranks(2).run(_too_large):
        assert "needs 8 ranks but the world has 2: start with `hp run -n 8`" in message


def test_making_a_mesh_calls_the_hook() -> None:
    from hp_core.mesh import init_device_mesh
    from hp_core.plugins import hookimpl, manager

    class Listener:
        def __init__(self) -> None:
            self.seen: list = []

        @hookimpl
        def hp_mesh_created(self, mesh) -> None:
            self.seen.append(mesh)

    listener = Listener()
    manager().register(listener)
    try:
        mesh = init_device_mesh("cpu", (2, 2), init_backend=False)
        mesh[0]  # slices are not announced
    finally:
        manager().unregister(listener)
    assert listener.seen == [mesh]


def _topology_of_a_running_world() -> tuple:
    import hp_core.comm as comm
    from hp_core.mesh import init_device_mesh

    comm.init_backend("cpu")
    mesh = init_device_mesh("cpu", (2,))
    larger = init_device_mesh("cpu", (2, 4), init_backend=False)
    return mesh.topology.boxes, mesh.level().name, larger.topology.boxes


def test_the_default_topology_is_the_hosts_that_the_ranks_run_on() -> None:
    for boxes, level, larger in ranks(2).run(_topology_of_a_running_world):
        assert boxes == ((0, 0), (0, 0))
        assert level == "host"
        assert larger is None
