# SPDX-License-Identifier: Apache-2.0
"""Where ranks are and how fast they reach each other: levels such as host, super-node and cluster.

A level is a kind of box. Two ranks talk over the innermost level that has both in one box: two devices of one
host over the host's links, two hosts of one super-node over the super-node's, and so on.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hp_core.errors import MeshError, did_you_mean


@dataclass(frozen=True)
class Level:
    """One level of a topology.

    Attributes:
        name: What it is called: ``"host"``, ``"super-node"``, ``"cluster"``…
        num_ranks: Ranks in one box of this level; ``None`` (outermost only) for all there are.
        bytes_per_s: What one rank can send to another in the same box, in one direction.
        latency_s: Time of an empty message.
        uplink_bytes_per_s: What all ranks of one box of the next inner level can send out of it together, where they
            share a link (a host's one network card); ``None`` where every rank has a link of its own.
    """

    name: str
    num_ranks: int | None
    bytes_per_s: float
    latency_s: float
    uplink_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.num_ranks is not None and self.num_ranks < 1:
            raise MeshError(f"topology level {self.name!r} has num_ranks={self.num_ranks}: it must be at least 1")
        for what in ("bytes_per_s", "uplink_bytes_per_s"):
            value = getattr(self, what)
            if value is not None and not value > 0:
                raise MeshError(
                    f"topology level {self.name!r} has {what}={value}: it must be positive (bytes a second)"
                )
        if not self.latency_s >= 0:
            raise MeshError(f"topology level {self.name!r} has latency_s={self.latency_s}: it must not be negative")


@dataclass(frozen=True)
class Topology:
    """Levels from the innermost to the outermost, and the box of every rank.

    Attributes:
        levels: Innermost first; each holds a whole number of boxes of the one before.
        boxes: For every level the box of each rank of the world, where ranks are not placed one box after another;
            ``None`` for that usual placement (rank ``r`` in box ``r // num_ranks``).

    Raises:
        MeshError: If the levels do not nest.
    """

    levels: tuple[Level, ...]
    boxes: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise MeshError("a topology needs at least one level")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise MeshError(f"topology levels {names} repeat a name: give each its own")
        for inner, outer in itertools.pairwise(self.levels):
            if inner.num_ranks is None or (outer.num_ranks is not None and outer.num_ranks % inner.num_ranks):
                raise MeshError(
                    f"topology level {outer.name!r} of {outer.num_ranks} ranks does not hold a whole number of "
                    f"{inner.name!r} of {inner.num_ranks}: list levels innermost first, only the last without num_ranks"
                )
        if self.boxes is not None:
            self._check_boxes(self.boxes)

    @classmethod
    def from_hosts(cls, hosts: Sequence[str], device_type: str = "cpu") -> Topology:
        """Return the default topology of ranks on ``hosts`` (one name a rank, in rank order, in any arrangement).

        Raises:
            MeshError: If there is no host.
        """
        if not hosts:
            raise MeshError("a topology from hosts needs the host of every rank, got none")
        number = {host: index for index, host in enumerate(dict.fromkeys(hosts))}
        of_rank = tuple(number[host] for host in hosts)
        inside = max(of_rank.count(index) for index in number.values())
        host, cluster = _DEFAULT_LEVELS.get(device_type, _DEFAULT_LEVELS["cpu"])
        return cls((replace(host, num_ranks=inside), cluster), boxes=(of_rank, (0,) * len(hosts)))

    @classmethod
    def default(cls, device_type: str = "cpu") -> Topology:
        """Return a topology of hosts with ``LOCAL_WORLD_SIZE`` ranks each (one host where that is not set).

        Bandwidths and latencies are round figures per device type (see the table in ``docs/mesh.md``); measure your
        own and give them with ``mesh.with_topology`` where a plan depends on them.

        Raises:
            MeshError: If ``LOCAL_WORLD_SIZE`` is not a positive whole number.
        """
        host, cluster = _DEFAULT_LEVELS.get(device_type, _DEFAULT_LEVELS["cpu"])
        text = os.environ.get("LOCAL_WORLD_SIZE", "")
        if not text:
            return cls((host,))
        if not text.isdigit() or int(text) < 1:
            raise MeshError(f"environment variable LOCAL_WORLD_SIZE={text!r} is not a positive whole number: unset it")
        return cls((replace(host, num_ranks=int(text)), cluster))

    def level(self, name: str) -> Level:
        """Return the level called ``name``.

        Raises:
            MeshError: If there is none.
        """
        for level in self.levels:
            if level.name == name:
                return level
        names = [level.name for level in self.levels]
        raise MeshError(f"topology has no level {name!r}: it has {', '.join(names)}{did_you_mean(name, names)}")

    def with_level(self, name: str, **changes: Any) -> Topology:
        """Return this topology with other figures for one level: ``with_level("host", bytes_per_s=2e9)``.

        Raises:
            MeshError: If there is no such level or the figures are not possible.
        """
        changed = replace(self.level(name), **changes)
        return replace(self, levels=tuple(changed if level.name == name else level for level in self.levels))

    def box(self, level: int, rank: int) -> int:
        """Return the box of the ``level``-th level that ``rank`` is in.

        Raises:
            MeshError: If the rank has no place.
        """
        if self.boxes is not None:
            if not 0 <= rank < len(self.boxes[level]):
                raise MeshError(
                    f"topology places ranks 0 to {len(self.boxes[level]) - 1}, not rank {rank}: make it with "
                    "a place for every rank of the mesh"
                )
            return self.boxes[level][rank]
        num_ranks = self.levels[level].num_ranks
        return 0 if num_ranks is None else rank // num_ranks

    def spanned(self, ranks: Sequence[int]) -> int:
        """Return the index of the innermost level that has all ``ranks`` in one box.

        Raises:
            MeshError: If not even the outermost has.
        """
        for index in range(len(self.levels)):
            if len({self.box(index, rank) for rank in ranks}) <= 1:
                return index
        outermost = self.levels[-1]
        raise MeshError(
            f"ranks {sorted(ranks)[:8]}{'…' if len(ranks) > 8 else ''} are not in one {outermost.name!r} of "
            f"{outermost.num_ranks} ranks, the outermost level: add a level around it or raise its num_ranks"
        )

    def _check_boxes(self, boxes: tuple[tuple[int, ...], ...]) -> None:
        if len(boxes) != len(self.levels) or len({len(of_rank) for of_rank in boxes}) != 1:
            raise MeshError(f"topology boxes must give the box of every rank for each of {len(self.levels)} levels")
        for index, (inner, outer) in enumerate(itertools.pairwise(boxes)):
            around: dict[int, int] = {}
            for rank, (small, large) in enumerate(zip(inner, outer, strict=True)):
                if around.setdefault(small, large) != large:
                    raise MeshError(
                        f"topology boxes do not nest: rank {rank} is in {self.levels[index].name} {small} but in "
                        f"another {self.levels[index + 1].name} than that box's other ranks"
                    )


# Round figures, of the order of: gloo over one machine's loopback, measured with 2 ranks (all-reduce of 64 MB in
# 40 ms, barrier in 0.28 ms), and 10 Gbit/s Ethernet shared by a host; NVLink 4 and 400 Gbit/s a GPU; HCCS and
# 200 Gbit/s a NPU.
_DEFAULT_LEVELS: dict[str, tuple[Level, Level]] = {
    "cpu": (Level("host", None, 1.6e9, 150e-6), Level("cluster", None, 1.2e9, 200e-6, uplink_bytes_per_s=1.2e9)),
    "cuda": (Level("host", None, 400e9, 5e-6), Level("cluster", None, 45e9, 15e-6)),
    "npu": (Level("host", None, 180e9, 8e-6), Level("cluster", None, 22e9, 20e-6)),
}
