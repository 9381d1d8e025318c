# SPDX-License-Identifier: Apache-2.0
"""``init_device_mesh``: the usual way to a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hp_core.errors import MeshError
from hp_core.mesh.device_mesh import DeviceMesh
from hp_core.mesh.grid import Grid, as_several
from hp_core.mesh.topology import Topology
from hp_core.mesh.world import current_world_size


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int] | int,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    rank_list: Sequence[int] | None = None,
    init_backend: bool = True,
    topology: Topology | None = None,
) -> DeviceMesh:
    """Lay ranks out in a mesh with axes.

    Every rank of the mesh calls it with the same arguments; ranks outside may, too, and get a mesh in which they
    have no coordinate. Nothing is communicated beyond what starting the backend does: groups are made when asked for.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or ``"npu"``.
        mesh_shape: Number of ranks along each axis.
        mesh_dim_names: One name per axis; without names axes are known by index.
        rank_list: The ranks, row-major (the last axis varies fastest), in any order and over any part of the world;
            ``0, 1, 2, …`` by default.
        init_backend: Start `hp_core.comm` if it does not run yet, on device ``LOCAL_RANK`` of this host (where it
            runs already, or there is no ``LOCAL_RANK``, the current device stays). ``False`` plans only: no framework
            is imported, the mesh may be larger than the world, and the looking rank is ``RANK`` or 0.
        topology: Where ranks are and how fast they reach each other; by default the hosts that they run on with round
            figures (`DeviceMesh.topology`).

    Returns:
        The mesh, seen from this rank.

    Raises:
        MeshError: If shape, names, ranks and the world do not fit together.
        PlatformError: If the device is not there (``init_backend=True`` only).
        CommError: If the backend cannot be started.
    """
    from hp_core.plugins import hooks

    if rank_list is not None and not isinstance(rank_list, Iterable):
        raise MeshError(f"rank_list={rank_list!r} must be a list of ranks, such as range(8)")
    given = () if rank_list is None else tuple(rank_list)
    if rank_list is not None and not given:
        raise MeshError(f"rank_list is empty but a mesh of shape {mesh_shape} has ranks: leave it out for 0, 1, 2, …")
    grid = Grid(
        tuple(mesh_shape) if isinstance(mesh_shape, Iterable) else (mesh_shape,),
        None if mesh_dim_names is None else as_several(mesh_dim_names),
        given,
    )
    if init_backend:
        import hp_core.comm as comm

        # Before the backend starts, too: a mesh that cannot be must not wait for a rendezvous.
        _check_world(grid, current_world_size(), rank_list is not None)
        comm.init_backend(device_type)
        _check_world(grid, comm.world_size(), rank_list is not None)
    mesh = DeviceMesh(device_type, grid, topology=topology)
    hooks().hp_mesh_created(mesh=mesh)
    return mesh


def _check_world(grid: Grid, world_size: int, ranks_given: bool) -> None:
    if grid.size > world_size:
        raise MeshError(
            f"a mesh of shape {grid.shape} needs {grid.size} ranks but the world has {world_size}: "
            f"start with `hp run -n {grid.size}` or make the mesh smaller"
        )
    if max(grid.ranks) >= world_size:
        where = "rank_list" if ranks_given else "the mesh"
        raise MeshError(
            f"{where} names rank {max(grid.ranks)} but the world has {world_size} ranks, 0 to {world_size - 1}: "
            f"start with `hp run -n {max(grid.ranks) + 1}` or give other ranks"
        )
