# SPDX-License-Identifier: Apache-2.0
"""``DeviceMesh``: named axes over ranks, as one rank sees them.

A mesh is a `Grid` plus a device type and the rank that looks at it. Slicing
(``mesh["tp"]``) gives the sub-mesh through the looking rank. Groups are made by `hp_core.comm` when
they are first asked for, by their members only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hp_core.errors import MeshError, did_you_mean
from hp_core.mesh.cost import Span, spans
from hp_core.mesh.current import pop_mesh, push_mesh
from hp_core.mesh.grid import Axis, Grid, as_several, check_once
from hp_core.mesh.topology import Level, Topology
from hp_core.mesh.world import check_rank, current_rank, hosts_of_world

if TYPE_CHECKING:
    from hp_core.comm import Group


class DeviceMesh:
    """A grid of ranks with axes, seen from one rank.

    Make one with `init_device_mesh` or `from_group`. Two meshes are equal, and hash
    alike, when device type, shape, names and every rank are; neither the rank that looks nor a topology counts.
    Pickling keeps ranks and names; the process that unpickles looks with its own rank and makes its own groups.
    """

    def __init__(
        self, device_type: str, grid: Grid, *, rank: int | None = None, topology: Topology | None = None
    ) -> None:
        """Wrap ``grid``.

        Args:
            device_type: ``"cpu"``, ``"cuda"``, ``"npu"``…
            grid: Shape, names and ranks.
            rank: The rank that looks at the mesh; this process' own by default. Another one is for planning.
            topology: Where ranks are and how fast they reach each other; see `topology`.
        """
        self._device_type = device_type
        self._grid = grid
        self._rank = current_rank() if rank is None else rank
        self._root = self
        # For each axis the root's axes that it runs over, first slowest.
        self._base: tuple[tuple[int, ...], ...] = tuple((axis,) for axis in range(grid.ndim))
        self._flattened: dict[str, tuple[int, ...]] = {}  # the root's: name -> its axes
        self._submeshes: dict[tuple[tuple[tuple[int, ...], ...], tuple[str, ...] | None], DeviceMesh] = {}
        self._spans: dict[tuple[int, ...], tuple[Span, ...]] = {}
        self._topology = topology
        self._group: Group | None = None

    # What it is

    @property
    def device_type(self) -> str:
        """Type of the devices, such as ``"cpu"``."""
        return self._device_type

    @property
    def grid(self) -> Grid:
        """The pure part: shape, names, ranks and everything that can be computed from them."""
        return self._grid

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of ranks along each axis."""
        return self._grid.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._grid.ndim

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """Name of each axis, or ``None`` for a mesh without names."""
        return self._grid.names

    @property
    def rank_list(self) -> tuple[int, ...]:
        """Every rank, row-major (the last axis varies fastest)."""
        return self._grid.ranks

    @property
    def root(self) -> DeviceMesh:
        """The mesh that this one was sliced from, or itself."""
        return self._root

    def size(self, axis: Axis | Sequence[Axis] | None = None) -> int:
        """Return the number of ranks along an axis, several, or of the whole mesh (``None``).

        Raises:
            MeshError: If the axis is unknown.
        """
        return math.prod(self.shape[chosen] for chosen in self._axes(axis))

    # Where this rank is

    @property
    def rank(self) -> int:
        """The global rank that looks at the mesh."""
        return self._rank

    def get_rank(self) -> int:
        """Return the global rank that looks at the mesh."""
        return self._rank

    def get_coordinate(self) -> tuple[int, ...] | None:
        """Return this rank's index along each axis, or ``None`` if it is not in the mesh."""
        return self._grid.coordinate(self._rank)

    def get_local_rank(self, axis: Axis | Sequence[Axis] | None = None) -> int:
        """Return this rank's index along an axis, several (first slowest), or in the whole mesh (``None``).

        Equals ``get_group(axis).rank`` and needs no communication.

        Raises:
            MeshError: If this rank is not in the mesh, or the axis is unknown.
        """
        coordinate = self._member("get_local_rank")
        index = 0
        for chosen in self._axes(axis):
            index = index * self.shape[chosen] + coordinate[chosen]
        return index

    def at_rank(self, rank: int) -> DeviceMesh:
        """Return this mesh as ``rank`` sees it: for planning other ranks' work. It gives no groups.

        Raises:
            MeshError: If there is no such rank: neither the mesh nor the world goes that far.
        """
        check_rank(rank, self._root._grid)
        seen = DeviceMesh(self._device_type, self._grid, rank=rank, topology=self._topology)
        if self._root is not self:
            seen._root, seen._base = self._root.at_rank(rank), self._base
        seen._flattened = dict(self._flattened)
        return seen

    # Slicing

    def __getitem__(self, axes: Axis | tuple[Axis, ...]) -> DeviceMesh:
        """Return the sub-mesh through this rank along one axis or several, in the order given.

        Names of axes flattened before (`flatten`) count, too. No communication.

        Raises:
            MeshError: If an axis is unknown or used twice, or this rank is not in the mesh.
        """
        wanted = axes if isinstance(axes, tuple) else (axes,)
        if not wanted:
            raise MeshError("mesh[()] names no axis: give at least one")
        dims = tuple(self._resolve(axis) for axis in wanted)
        names = None
        if self._grid.names is not None:
            names = tuple(a if isinstance(a, str) else self._grid.axis_name(a) for a in wanted)
        if names == self._grid.names and dims == tuple((axis,) for axis in range(self.ndim)):
            return self
        return self._slice(dims, names)

    def flatten(self, name: str | None = None) -> DeviceMesh:
        """Return the one-axis mesh over all ranks of this one, in their order.

        The name can be used for slicing this mesh's root from then on: after ``mesh["dp", "cp"].flatten("dp_cp")``,
        ``mesh["dp_cp"]`` and ``mesh["dp_cp", "tp"]`` work. No communication.

        Args:
            name: Name of the new axis; the names joined by ``_`` by default.

        Raises:
            MeshError: If the name is taken by another axis of the root, or this rank is not in the mesh.
        """
        self._member("flatten")
        if name is None and self._grid.names is not None:
            name = "_".join(self._grid.names)
        if name is None:
            return self._slice((tuple(range(self.ndim)),), None)
        base = tuple(itertools.chain.from_iterable(self._base))
        known = dict(self._root._flattened)
        if self._root.mesh_dim_names is not None:
            known |= {own: (axis,) for axis, own in enumerate(self._root.mesh_dim_names)}
        if known.get(name, base) != base:
            raise MeshError(
                f"flatten({name!r}): the mesh {self._root._grid.describe()} already has an axis of that name: "
                "choose another"
            )
        flat = self._slice((tuple(range(self.ndim)),), (name,))
        if name not in known:
            self._root._flattened[name] = base
        return flat

    # Topology

    @property
    def topology(self) -> Topology:
        """Where the world's ranks are and how fast they reach each other.

        What was given to `init_device_mesh` or `with_topology`. Else, with the default
        figures of the device type, the hosts that the ranks run on; for a mesh that is only planned, hosts of
        ``LOCAL_WORLD_SIZE`` ranks (`Topology.default()`).
        """
        if self._topology is None:
            hosts = hosts_of_world() or []
            if max(self._root._grid.ranks) < len(hosts):
                self._topology = Topology.from_hosts(hosts, self._device_type)
            else:
                self._topology = Topology.default(self._device_type)
        return self._topology

    def with_topology(self, topology: Topology) -> DeviceMesh:
        """Return this mesh with another topology; it equals this one, as a topology is no part of the identity."""
        mesh = DeviceMesh(self._device_type, self._grid, rank=self._rank, topology=topology)
        mesh._root = mesh if self._root is self else self._root
        mesh._base, mesh._flattened, mesh._group = self._base, dict(self._flattened), self._group
        return mesh

    def level(self, axis: Axis | Sequence[Axis] | None = None) -> Level:
        """Return the innermost topology level that holds each group along an axis (several, the whole mesh).

        Raises:
            MeshError: If the axis is unknown or the topology does not hold the ranks.
        """
        spanned = max(self.topology.spanned(group) for group in self._grid.groups(self._axes(axis)))
        return self.topology.levels[spanned]

    def spans(self, axis: Axis | Sequence[Axis] | None = None) -> tuple[Span, ...]:
        """Return what groups along an axis (several, the whole mesh) cross when all run at once; distinct ones only.

        Raises:
            MeshError: If the axis is unknown or the topology does not hold the ranks.
        """
        axes = self._axes(axis)
        if axes not in self._spans:
            self._spans[axes] = tuple(dict.fromkeys(spans(self._grid.groups(axes), self.topology)))
        return self._spans[axes]

    # Groups

    def get_group(self, axis: Axis | Sequence[Axis] | None = None) -> Group:
        """Return the group of this rank along an axis, several (first slowest), or of the whole mesh (``None``).

        The group is made at the first call, by its members, and kept by `hp_core.comm`: every member must
        ask for its groups in the same order, as any program that runs on all ranks alike does.

        Raises:
            MeshError: If this rank is not in the mesh, no backend runs, or the mesh looks with another rank.
        """
        import hp_core.comm as comm

        self._member("get_group")
        if not comm.is_initialized():
            raise MeshError(
                f"mesh {self._grid.describe()} has no groups: communication is not initialised; make the mesh with "
                "init_backend=True or call hp_core.comm.init_backend() first"
            )
        if comm.rank() != self._rank:
            raise MeshError(
                f"this mesh is seen from rank {self._rank} for planning, but this process is rank {comm.rank()}: "
                "take groups from a mesh made without at_rank()"
            )
        chosen = self._axes(axis)
        if self._group is not None and chosen == tuple(range(self.ndim)):
            return self._group
        if chosen == tuple(range(self.ndim)):
            return comm.new_group(self._grid.ranks)
        return comm.new_group(self._slice((chosen,), None)._grid.ranks)

    @classmethod
    def from_group(
        cls,
        group: Group,
        device_type: str,
        *,
        mesh_shape: Sequence[int] | None = None,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """Return a mesh over the ranks of an existing group, in its order. Called by the members; no communication.

        Args:
            group: Its ranks are the mesh's; it is what ``get_group()`` of the whole mesh returns.
            device_type: Type of the devices.
            mesh_shape: Shape to lay the ranks out in, row-major; one axis by default.
            mesh_dim_names: One name per axis.

        Raises:
            MeshError: If shape, names and the group's size do not fit together.
        """
        from hp_core.plugins import hooks

        shape = (len(group.ranks),) if mesh_shape is None else tuple(mesh_shape)
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        mesh = cls(device_type, Grid(shape, names, tuple(group.ranks)))
        mesh._group = group
        hooks().hp_mesh_created(mesh=mesh)
        return mesh

    # As a context

    def __enter__(self) -> DeviceMesh:
        """Make this the mesh that ``get_current_mesh()`` returns until the block ends."""
        push_mesh(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pop_mesh(self)

    # As a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self is other or (self._device_type == other._device_type and self._grid == other._grid)

    def __hash__(self) -> int:
        return hash((self._device_type, self._grid))

    def __repr__(self) -> str:
        ranks = self._grid.ranks
        shown = str(list(ranks)) if len(ranks) <= 16 else f"[{ranks[0]}, {ranks[1]}, …, {ranks[-1]}]"
        return f"DeviceMesh({self._device_type!r}, {self._grid.describe()}, ranks={shown})"

    def __getstate__(self) -> dict[str, Any]:
        root = None if self._root is self else self._root
        return {
            "device_type": self._device_type,
            "grid": self._grid,
            "root": root,
            "base": self._base,
            "flattened": self._flattened,
            "topology": self._topology,
        }

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        DeviceMesh.__init__(self, state["device_type"], state["grid"], topology=state["topology"])
        self._root = self if state["root"] is None else state["root"]
        self._base, self._flattened = state["base"], state["flattened"]

    # Inside

    def _member(self, what: str) -> tuple[int, ...]:
        coordinate = self._grid.coordinate(self._rank)
        if coordinate is None:
            raise MeshError(
                f"{what}: rank {self._rank} is not in the mesh {self._grid.describe()} of ranks "
                f"{list(self._grid.ranks)}: ask only where mesh.get_coordinate() is not None"
            )
        return coordinate

    def _axes(self, axis: Axis | Sequence[Axis] | None) -> tuple[int, ...]:
        """Return the axes of this mesh that one axis, several, or all (``None``) run over; flattened ones count."""
        if axis is None:
            return tuple(range(self.ndim))
        return check_once(tuple(itertools.chain.from_iterable(map(self._resolve, as_several(axis)))), axis)

    def _resolve(self, axis: Axis) -> tuple[int, ...]:
        """Return the axes of this mesh that ``axis``, an own or a flattened one, runs over."""
        flattened = self._root._flattened
        if not isinstance(axis, str) or axis in (self._grid.names or ()) or axis not in flattened:
            if isinstance(axis, str) and self._grid.names is not None and axis not in self._grid.names:
                known = list(dict.fromkeys((*self._grid.names, *flattened)))
                raise MeshError(
                    f"mesh {self._grid.describe()} has no axis {axis!r}: its axes are "
                    f"{', '.join(map(repr, known))}{did_you_mean(axis, known)}"
                )
            return (self._grid.axis(axis),)
        # The flattened axis in terms of this mesh's own axes, which may be flattened themselves.
        rest, chosen = flattened[axis], []
        while rest:
            own = next((i for i, base in enumerate(self._base) if rest[: len(base)] == base), None)
            if own is None:
                raise MeshError(
                    f"axis {axis!r} was flattened in the root mesh {self._root._grid.describe()} over axes that "
                    f"the mesh {self._grid.describe()} does not have: slice the root"
                )
            chosen.append(own)
            rest = rest[len(self._base[own]) :]
        return tuple(chosen)

    def _slice(self, dims: tuple[tuple[int, ...], ...], names: tuple[str, ...] | None) -> DeviceMesh:
        key = (dims, names)
        if key not in self._submeshes:
            at = self._member(f"slicing along {names or dims}")
            mesh = DeviceMesh(self._device_type, self._grid.subgrid(dims, at, names), rank=self._rank)
            mesh._topology = self._topology
            mesh._root = self._root
            mesh._base = tuple(tuple(itertools.chain.from_iterable(self._base[i] for i in dim)) for dim in dims)
            self._submeshes[key] = mesh
        return self._submeshes[key]
