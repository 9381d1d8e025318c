# SPDX-License-Identifier: Apache-2.0
"""Levels, boxes and which level a group spans."""

from __future__ import annotations

import pickle

import pytest

from hp_core.errors import MeshError
from hp_core.mesh import DeviceMesh, Grid, Level, Topology, init_device_mesh

HOST = Level("host", 4, 100e9, 1e-6)
SUPER_NODE = Level("super-node", 16, 50e9, 5e-6)
CLUSTER = Level("cluster", None, 10e9, 20e-6)
THREE = Topology((HOST, SUPER_NODE, CLUSTER))


@pytest.mark.parametrize(
    ("ranks", "level"), [((2,), 0), ((0, 3), 0), ((3, 4), 1), ((0, 4, 8, 12), 1), ((15, 16), 2), (range(64), 2)]
)
def test_a_group_spans_the_innermost_level_that_holds_it(ranks: tuple, level: int) -> None:
    assert THREE.spanned(ranks) == level


def test_a_mesh_knows_the_level_of_each_axis() -> None:
    mesh = DeviceMesh("npu", Grid((2, 4, 4), ("pp", "dp", "tp")), rank=9, topology=THREE)
    assert [mesh.level(axis).name for axis in ("tp", "dp", "pp")] == ["host", "super-node", "cluster"]
    assert mesh.level(("dp", "tp")).name == "super-node"
    assert mesh.level().name == "cluster"
    assert mesh["tp"].topology is THREE
    assert mesh["dp", "tp"].level("dp").name == "super-node"
    # Ranks laid out the other way put tp between hosts.
    turned = tuple(mesh.grid.subgrid([[2], [1], [0]], (0, 0, 0)).ranks)
    other = DeviceMesh("npu", Grid((4, 4, 2), ("pp", "dp", "tp"), turned), rank=0, topology=THREE)
    assert other.level("tp").name == "cluster"
    assert other.level("pp").name == "host"


def test_with_topology_changes_no_identity_and_leaves_the_original() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"), init_backend=False)
    other = mesh.with_topology(THREE)
    assert other == mesh
    assert hash(other) == hash(mesh)
    assert other.topology is THREE
    assert mesh.topology == Topology.default("cpu")
    assert other["tp"].topology is THREE
    assert other["tp"].root is other
    sub = mesh["tp"].with_topology(THREE)
    assert (sub.topology, sub.root) == (THREE, mesh)
    assert pickle.loads(pickle.dumps(other)).topology == THREE
    given = init_device_mesh("cpu", (4,), init_backend=False, topology=THREE)
    assert given.topology is THREE


def test_ranks_on_hosts_in_any_arrangement() -> None:
    topology = Topology.from_hosts(["b", "a", "b", "a", "a"])
    assert topology.boxes == ((0, 1, 0, 1, 1), (0, 0, 0, 0, 0))
    assert [level.name for level in topology.levels] == ["host", "cluster"]
    assert topology.levels[0].num_ranks == 3
    assert topology.spanned((1, 3, 4)) == 0
    assert topology.spanned((0, 1)) == 1
    with pytest.raises(MeshError, match="places ranks 0 to 4, not rank 5"):
        topology.spanned((0, 5))
    with pytest.raises(MeshError, match="got none"):
        Topology.from_hosts([])


def test_the_default_is_hosts_of_local_world_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert [level.name for level in Topology.default("cuda").levels] == ["host"]
    assert Topology.default("cuda").spanned((0, 1000)) == 0
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    topology = Topology.default("cuda")
    assert (topology.spanned(range(8)), topology.spanned((7, 8))) == (0, 1)
    assert topology.levels[0].bytes_per_s > topology.levels[1].bytes_per_s
    for wrong in ("eight", "0", "-2"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", wrong)
        with pytest.raises(MeshError, match=f"LOCAL_WORLD_SIZE='{wrong}' is not a positive"):
            Topology.default("cuda")


def test_figures_of_a_level_can_be_replaced() -> None:
    changed = THREE.with_level("super-node", bytes_per_s=1e9)
    assert changed.level("super-node").bytes_per_s == 1e9
    assert changed.level("host") == HOST
    assert THREE.level("super-node").bytes_per_s == 50e9
    with pytest.raises(MeshError, match=r"no level 'supernode': it has host, super-node, cluster; did you mean"):
        THREE.with_level("supernode", bytes_per_s=1e9)
    with pytest.raises(MeshError, match="bytes_per_s=0"):
        THREE.with_level("host", bytes_per_s=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Topology(()), "at least one level"),
        (lambda: Topology((HOST, HOST)), "repeat a name"),
        (lambda: Topology((CLUSTER, HOST)), "does not hold a whole number"),
        (lambda: Topology((HOST, Level("rack", 6, 1e9, 0.0))), "'rack' of 6 ranks does not hold a whole number"),
        (lambda: Topology((SUPER_NODE, HOST)), "does not hold a whole number"),
        (lambda: Level("host", 0, 1e9, 0.0), "num_ranks=0"),
        (lambda: Level("host", 1, -1.0, 0.0), "bytes_per_s=-1.0: it must be positive"),
        (lambda: Level("host", 1, float("nan"), 0.0), "must be positive"),
        (lambda: Level("host", 1, 1e9, -1e-6), "must not be negative"),
        (lambda: Level("host", 1, 1e9, 0.0, uplink_bytes_per_s=0.0), "uplink_bytes_per_s=0.0"),
        (lambda: Topology((HOST, CLUSTER), boxes=((0, 0),)), "for each of 2 levels"),
        (lambda: Topology((HOST, CLUSTER), boxes=((0, 0), (0, 1))), "rank 1 is in host 0 but in another cluster"),
        (lambda: Topology((HOST,)).spanned((3, 4)), r"ranks \[3, 4\] are not in one 'host' of 4 ranks"),
    ],
)
def test_a_topology_that_cannot_be_raises(make, message: str) -> None:
    with pytest.raises(MeshError, match=message):
        make()
