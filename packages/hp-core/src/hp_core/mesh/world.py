# SPDX-License-Identifier: Apache-2.0
"""What a mesh knows of the world: this process' rank and how many there are."""

from __future__ import annotations

import os

from hp_core.errors import MeshError
from hp_core.mesh.grid import Grid, whole_number


def current_rank() -> int:
    """Return this process' rank: of the running backend, else ``RANK``, else 0."""
    import hp_core.comm as comm

    return comm.rank() if comm.is_initialized() else _from_environment("RANK", 0)


def current_world_size() -> int:
    """Return the number of processes: of the running backend, else ``WORLD_SIZE``, else 1."""
    import hp_core.comm as comm

    return comm.world_size() if comm.is_initialized() else _from_environment("WORLD_SIZE", 1)


def check_rank(rank: int, grid: Grid) -> None:
    """Raise unless there is such a rank.

    Raises:
        MeshError: Neither the world nor the mesh, which may be planned for a larger one, goes that far.
    """
    num_ranks = max(current_world_size(), max(grid.ranks) + 1)
    if whole_number(rank) is None or not 0 <= rank < num_ranks:
        raise MeshError(
            f"there is no rank {rank!r} to look from: the mesh {grid.describe()} and its world have ranks 0 to "
            f"{num_ranks - 1}"
        )


def hosts_of_world() -> list[str] | None:
    """Return the host of every rank, in rank order, or ``None`` where no backend runs or it is a dry run."""
    import hp_core.comm as comm

    if not comm.is_initialized() or comm.world().session.simulated:
        return None
    return [member.host for member in comm.world().session.members]


def _from_environment(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise MeshError(
            f"environment variable {name}={value!r} is not a whole number: unset it or start with `hp run`"
        ) from None
