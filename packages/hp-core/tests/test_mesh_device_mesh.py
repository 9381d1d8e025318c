# SPDX-License-Identifier: Apache-2.0
"""``DeviceMesh`` in one process: planning, slicing, identity, the current mesh."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

import pytest

import hp_core.comm as comm
from hp_core.errors import MeshError, PlatformError
from hp_core.mesh import DeviceMesh, Grid, get_current_mesh, init_device_mesh


def plan(shape: tuple, names: tuple | None = None, rank: int = 0, rank_list: tuple = ()) -> DeviceMesh:
    return DeviceMesh("cpu", Grid(shape, names, rank_list), rank=rank)


def test_slicing_gives_the_sub_mesh_through_the_looking_rank() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"), rank=7)
    assert mesh.get_coordinate() == (1, 0, 1)
    assert mesh["tp"].rank_list == (6, 7, 8)
    assert mesh["dp"].rank_list == (1, 7)
    assert mesh["dp", "cp"].rank_list == (1, 4, 7, 10)
    assert mesh["cp", "dp"].rank_list == (1, 7, 4, 10)
    assert mesh["dp", "cp"].mesh_dim_names == ("dp", "cp")
    assert mesh["dp", "cp"]["cp"] == mesh["cp"]
    assert mesh["dp", "cp"].root is mesh
    assert mesh["tp"] is mesh["tp"]
    assert mesh["dp", "cp", "tp"] is mesh
    assert (mesh.size(), mesh.size("tp"), mesh.size(0), mesh.ndim) == (12, 3, 2, 3)


def test_local_ranks_count_along_the_axes_asked_in_their_order() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"), rank=8)
    assert mesh.get_coordinate() == (1, 0, 2)
    assert [mesh.get_local_rank(a) for a in ("dp", "cp", "tp", -1)] == [1, 0, 2, 2]
    assert mesh.get_local_rank() == 8
    assert mesh.get_local_rank(("tp", "dp")) == 5
    assert mesh["tp"].get_local_rank() == 2


def test_a_mesh_without_names_is_sliced_by_index() -> None:
    mesh = plan((2, 3), rank=4)
    assert mesh[1].rank_list == (3, 4, 5)
    assert mesh[-2].rank_list == (1, 4)
    assert mesh[1, 0].rank_list == (0, 3, 1, 4, 2, 5)
    assert mesh[1].mesh_dim_names is None
    assert mesh.flatten().rank_list == (0, 1, 2, 3, 4, 5)
    assert mesh.flatten("all").mesh_dim_names == ("all",)
    with pytest.raises(MeshError, match="has no names"):
        mesh["tp"]


def test_a_flattened_axis_can_be_sliced_by_name_from_the_root() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"), rank=7)
    flat = mesh["dp", "cp"].flatten()
    assert flat.mesh_dim_names == ("dp_cp",)
    assert flat.rank_list == (1, 4, 7, 10)
    assert mesh["dp_cp"] == flat
    assert mesh["dp_cp", "tp"].shape == (4, 3)
    assert mesh["dp_cp", "tp"]["dp_cp"] == flat
    assert mesh["dp_cp", "tp"].flatten("world").rank_list == tuple(range(12))
    assert mesh["dp", "cp"]["dp_cp"] == flat
    assert mesh["world"].size() == 12
    assert mesh["cp", "dp"].flatten("cp_dp").rank_list == (1, 7, 4, 10)
    assert mesh["dp", "cp"].flatten("dp_cp") is flat
    with pytest.raises(MeshError, match="slice the root"):
        mesh["tp"]["dp_cp"]
    with pytest.raises(MeshError, match=r"twice"):
        mesh["dp_cp", "dp"]
    with pytest.raises(
        MeshError, match=r"no axis 'dpcp': its axes are 'dp', 'cp', 'tp', 'dp_cp'.*did you mean 'dp_cp'"
    ):
        mesh["dpcp"]


def test_slicing_by_another_name_of_the_same_axes_gives_that_name() -> None:
    mesh = plan((4,), ("dp",), rank=2)
    mesh.flatten("world")
    assert mesh["world"].mesh_dim_names == ("world",)
    assert mesh["world"].rank_list == mesh.rank_list
    assert mesh["dp"] is mesh
    mesh = plan((2, 2), ("dp", "tp"))
    batch = mesh["dp"].flatten("batch")
    assert mesh["dp"]["batch"].mesh_dim_names == ("batch",)
    assert mesh["dp"]["batch"] == mesh["batch"] == batch


def test_a_flattened_name_counts_wherever_an_axis_is_asked_for() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"), rank=7)
    flat = mesh["dp", "cp"].flatten("batch")
    assert (mesh.size("batch"), mesh.size(("batch", "tp")), mesh.size(("tp", "dp"))) == (4, 12, 6)
    assert mesh.get_local_rank("batch") == flat.get_local_rank() == 2
    assert mesh.get_local_rank(("tp", "batch")) == 6
    assert mesh.spans("batch") == mesh.spans(("dp", "cp"))
    assert mesh.level("batch") == mesh.level(("dp", "cp"))
    assert mesh["dp", "cp"].size("batch") == 4
    for ask in (mesh.size, mesh.get_local_rank, mesh.spans, mesh.level):
        with pytest.raises(MeshError, match="twice"):
            ask(("batch", "dp"))
        with pytest.raises(MeshError, match=r"no axis 'bach': its axes are .*did you mean 'batch'"):
            ask("bach")
    with pytest.raises(MeshError, match="slice the root"):
        mesh["tp"].size("batch")


def test_what_is_no_axis_is_an_error_of_the_mesh() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"), rank=7)
    for axis in (None, slice(0, 1), 1.0, True, ["dp", "cp"], ("dp", None), b"dp"):
        with pytest.raises(MeshError, match="is no mesh axis: give a name or an index"):
            mesh[axis]
    for ask in (mesh.size, mesh.get_local_rank, mesh.get_group, mesh.spans):
        for axis in (slice(0, 1), 1.0, True, ("dp", None)):
            with pytest.raises(MeshError, match=r"is no mesh axis|not initialised"):
                ask(axis)
    with pytest.raises(MeshError, match="name at least one"):
        mesh.size(())


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "\tdp", "a\u00a0b", "a\0", 3, None])
def test_an_axis_name_is_a_word(name: object) -> None:
    with pytest.raises(MeshError, match="must be non-empty strings without spaces or control characters"):
        plan((2, 2), ("tp", name))
    mesh = plan((2, 2), ("dp", "tp"))
    if name is not None:
        with pytest.raises(MeshError, match="must be non-empty strings"):
            mesh.flatten(name)
        assert mesh.flatten().mesh_dim_names == ("dp_tp",)


def test_only_ranks_that_there_are_can_be_looked_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    mesh = plan((2, 2), ("dp", "tp"), rank_list=(7, 4, 5, 6))
    for rank in (8, 99, -1, 1.5, "4", True, None):
        with pytest.raises(MeshError, match=r"there is no rank .* to look from: .* have ranks 0 to 7"):
            mesh.at_rank(rank)
    assert mesh.at_rank(0).get_coordinate() is None
    assert mesh.at_rank(4)["tp"].at_rank(7).rank == 7
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert mesh.at_rank(15).get_coordinate() is None


def test_a_flattened_name_that_is_taken_raises() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"))
    mesh["dp", "cp"].flatten("both")
    for other, name in ((mesh["dp", "tp"], "both"), (mesh["cp", "dp"], "both"), (mesh["dp", "cp"], "tp")):
        with pytest.raises(MeshError, match="already has an axis of that name"):
            other.flatten(name)
    assert mesh["tp"].flatten("tp") == mesh["tp"]


def test_a_rank_outside_has_no_coordinate_and_everything_that_needs_one_says_so() -> None:
    mesh = plan((2, 2), ("dp", "tp"), rank=3, rank_list=(7, 4, 5, 6))
    assert mesh.get_coordinate() is None
    for ask in (lambda: mesh["tp"], mesh.get_group, mesh.get_local_rank, mesh.flatten):
        with pytest.raises(MeshError, match=r"rank 3 is not in the mesh \(dp=2, tp=2\) of ranks \[7, 4, 5, 6\]"):
            ask()
    seen = mesh.at_rank(5)
    assert seen == mesh
    assert seen.get_coordinate() == (1, 0)
    assert seen["tp"].rank_list == (5, 6)


def test_identity_is_device_type_shape_names_and_every_rank() -> None:
    mesh = plan((2, 2), ("dp", "tp"))
    assert mesh == plan((2, 2), ("dp", "tp"), rank=3)
    assert hash(mesh) == hash(plan((2, 2), ("dp", "tp"), rank=3))
    others = [
        plan((2, 2), ("dp", "cp")),
        plan((2, 2)),
        plan((4, 1), ("dp", "tp")),
        plan((2, 2), ("dp", "tp"), rank_list=(0, 1, 3, 2)),
        plan((2, 2), ("dp", "tp"), rank_list=(4, 5, 6, 7)),
        DeviceMesh("cuda", mesh.grid),
    ]
    assert len({mesh, *others}) == 7
    assert mesh != "mesh"
    # The same axis on other rows is another mesh.
    assert mesh["tp"] != mesh.at_rank(2)["tp"]


def test_pickling_keeps_ranks_flattened_names_and_the_root_and_looks_with_the_readers_rank() -> None:
    mesh = plan((2, 2, 3), ("dp", "cp", "tp"), rank=7)
    flat = mesh["dp", "cp"].flatten()
    again, tensor_axis, flat_again = pickle.loads(pickle.dumps((mesh, mesh["tp"], flat)))
    assert (again, tensor_axis, flat_again) == (mesh, mesh["tp"], flat)
    assert again.rank == 0
    assert again["dp_cp"].rank_list == (0, 3, 6, 9)
    assert tensor_axis.root is again
    assert tensor_axis.rank_list == (6, 7, 8)
    assert tensor_axis.get_coordinate() is None


def test_the_current_mesh_is_the_innermost_of_the_blocks() -> None:
    one, two = plan((2,)), plan((4,))
    assert get_current_mesh() is None
    with one:
        assert get_current_mesh() is one
        with two as entered, one:
            assert entered is two
            assert get_current_mesh() is one
        assert get_current_mesh() is one
        seen: list = []
        thread = threading.Thread(target=lambda: seen.append(get_current_mesh()))
        thread.start()
        thread.join()
        assert seen == [None]
    with pytest.raises(RuntimeError, match="boom"), one:
        raise RuntimeError("boom")
    assert get_current_mesh() is None
    with pytest.raises(MeshError, match="must nest"):
        one.__exit__(None, None, None)


def test_repr_shows_axes_and_ranks_and_stays_short() -> None:
    assert repr(plan((2, 2), ("dp", "tp"))) == "DeviceMesh('cpu', (dp=2, tp=2), ranks=[0, 1, 2, 3])"
    assert repr(plan((64,))) == "DeviceMesh('cpu', (64,), ranks=[0, 1, …, 63])"


def test_planning_takes_the_rank_from_the_environment_and_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "2")
    mesh = init_device_mesh("npu", (128, 8), mesh_dim_names=("dp", "tp"), init_backend=False)
    assert mesh.get_coordinate() == (0, 5)
    assert mesh.size() == 1024
    with pytest.raises(MeshError, match="communication is not initialised"):
        mesh.get_group("tp")
    monkeypatch.setenv("RANK", "five")
    with pytest.raises(MeshError, match="RANK='five' is not a whole number"):
        init_device_mesh("cpu", (2,), init_backend=False)


def test_a_mesh_larger_than_the_world_raises_before_any_backend_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        MeshError,
        match=r"a mesh of shape \(2, 4\) needs 8 ranks but the world has 2: start with `hp run -n 8` or make",
    ):
        init_device_mesh("cpu", (2, 4))
    with pytest.raises(MeshError, match=r"rank_list names rank 2 but the world has 2 ranks, 0 to 1"):
        init_device_mesh("cpu", (2,), rank_list=(0, 2))
    assert not comm.is_initialized()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh_shape": (2, 2), "mesh_dim_names": ("dp",)}, "one name per axis"),
        ({"mesh_shape": (2,), "rank_list": ()}, "rank_list is empty"),
        ({"mesh_shape": (2,), "rank_list": (1, 1)}, "more than once"),
        ({"mesh_shape": 0}, "at least 1"),
        ({"mesh_shape": True}, "must be whole numbers"),
        ({"mesh_shape": (2, True)}, "must be whole numbers"),
        ({"mesh_shape": None}, "must be whole numbers"),
        ({"mesh_shape": 2.0}, "must be whole numbers"),
        ({"mesh_shape": (2,), "rank_list": 5}, "rank_list=5 must be a list of ranks"),
        ({"mesh_shape": (2,), "rank_list": (0, True)}, "must be whole numbers"),
        ({"mesh_shape": (2,), "mesh_dim_names": 5}, "must be non-empty strings"),
    ],
)
def test_arguments_that_do_not_fit_raise(arguments: dict, message: str) -> None:
    with pytest.raises(MeshError, match=message):
        init_device_mesh("cpu", init_backend=False, **arguments)


def test_an_int_and_one_name_make_a_one_axis_mesh() -> None:
    mesh = init_device_mesh("cpu", 4, mesh_dim_names="dp", init_backend=False)
    assert (mesh.shape, mesh.mesh_dim_names) == ((4,), ("dp",))


def test_planning_a_mesh_imports_no_framework() -> None:
    code = (
        "import sys\n"
        "from hp_core.mesh import init_device_mesh\n"
        "mesh = init_device_mesh('npu', (2, 4), mesh_dim_names=('dp', 'tp'), init_backend=False)\n"
        "assert mesh['tp'].flatten('x').size() == 4\n"
        "print([m for m in ('torch', 'mindspore', 'numpy') if m in sys.modules])"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean)
    assert out.stdout.strip() == "[]"


def test_a_dry_run_needs_no_device() -> None:
    code = (
        "import hp_core.comm as comm\n"
        "from hp_core.mesh import init_device_mesh\n"
        "mesh = init_device_mesh('npu', (2, 4), mesh_dim_names=('dp', 'tp'))\n"
        "print(comm.rank(), mesh.get_group('tp').ranks, mesh.get_local_rank('tp'), mesh.level('dp').name)\n"
    )
    environment = {**os.environ, "HP_COMM": "fake", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout == "5 (4, 5, 6, 7) 1 cluster\n", done.stderr


def test_a_device_that_is_not_there_raises_before_the_backend_starts() -> None:
    with pytest.raises(PlatformError, match=r"unknown device 'gpu'.*did you mean 'cuda'"):
        init_device_mesh("gpu", (1,))
    assert not comm.is_initialized()
