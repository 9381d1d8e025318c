# SPDX-License-Identifier: Apache-2.0
"""How long a collective takes: (kind, bytes, ranks, topology) to seconds. Pure; no clock, no communication.

[Note: Cost model] A message of ``m`` bytes takes ``latency + m / bandwidth`` (R. Hockney, "The communication
challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20, 1994), and a collective is its rounds of
messages (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
IJHPCA 19(1), 2005; the broadcast by scatter and all-gather is van de Geijn's, as given there). With n ranks, a
latency a and b seconds a byte, for B bytes:

==============  =============  ==================================================
reduce_scatter  ring           (n-1) a + (n-1)/n B b
all_gather      ring           (n-1) a + (n-1)/n B b
both            recursive      ceil(log2 n) a + (n-1)/n B b
both            hierarchical   the sum over levels of a ring among the boxes
all_reduce      any of them    reduce_scatter + all_gather
all_to_all      pairwise       (n-1) a + the bytes for every level over its bandwidth
broadcast       binomial       ceil(log2 n) (a + B b)
broadcast       scatter        (ceil(log2 n) + n-1) a + 2 (n-1)/n B b
barrier         dissemination  ceil(log2 n) a
p2p             direct         a + B b
==============  =============  ==================================================

A flat algorithm runs at the pace of the slowest level that it crosses. Where ranks share an uplink each gets its part:
a ring crosses every box border once per group, recursive and hierarchical rounds once per rank, and groups along the
same mesh axis run at the same time. Reduction arithmetic, memory copies and contention by others are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hp_core.errors import MeshError, did_you_mean
from hp_core.mesh.topology import Topology

if TYPE_CHECKING:
    from hp_core.mesh.device_mesh import DeviceMesh
    from hp_core.mesh.grid import Axis


class Choice(NamedTuple):
    """An algorithm and what it costs."""

    algorithm: str
    cost_s: float


@dataclass(frozen=True)
class Hop:
    """What a group crosses at one level: ``num_parts`` boxes of the next inner level, ``num_inside`` ranks in each."""

    num_parts: int
    num_inside: int
    bytes_per_s: float
    latency_s: float
    uplink_bytes_per_s: float
    num_sharing: int
    """Groups that send out of the same inner box at the same time."""

    def seconds_a_byte(self, num_flows: int) -> float:
        """Return seconds a byte of one flow while ``num_flows`` a group leave each inner box at the same time."""
        return 1.0 / min(self.bytes_per_s, self.uplink_bytes_per_s / (num_flows * self.num_sharing))


@dataclass(frozen=True)
class Span:
    """A group of ranks in a topology: all that the formulas need. Keep it where costs are asked for often."""

    size: int
    hops: tuple[Hop, ...]

    @property
    def latency_s(self) -> float:
        """Latency of the slowest level crossed."""
        return max((hop.latency_s for hop in self.hops), default=0.0)

    def pace(self, per_rank: bool) -> float:
        """Return seconds a byte of the slowest level crossed, by one flow a group or by one per rank."""
        return max((hop.seconds_a_byte(hop.num_inside if per_rank else 1) for hop in self.hops), default=0.0)


def spans(groups: Iterable[Sequence[int]], topology: Topology) -> list[Span]:
    """Return what each of several groups crosses while all run the same collective at the same time.

    A group that is unevenly spread over boxes is taken at its fullest box.

    Args:
        groups: Global ranks of each group.
        topology: Where they are.

    Raises:
        MeshError: If the topology has no place for a rank, or no level around a whole group.
    """
    members = [tuple(group) for group in groups]
    # For every level but the outermost: in how many groups each box has ranks. They share its uplink.
    load = [
        Counter(box for group in members for box in {topology.box(index, rank) for rank in group})
        for index in range(len(topology.levels) - 1)
    ]
    return [_span(group, topology, load) for group in members]


def _span(ranks: tuple[int, ...], topology: Topology, load: list[Counter[int]]) -> Span:
    hops: list[Hop] = []
    inner = list(ranks)
    for index in range(topology.spanned(ranks) + 1):
        level = topology.levels[index]
        boxes = [topology.box(index, rank) for rank in ranks]
        num_parts = max(Counter(box for box, _ in set(zip(boxes, inner, strict=True))).values())
        if num_parts > 1:
            hops.append(
                Hop(
                    num_parts=num_parts,
                    num_inside=max(Counter(inner).values()),
                    bytes_per_s=level.bytes_per_s,
                    latency_s=level.latency_s,
                    uplink_bytes_per_s=math.inf if level.uplink_bytes_per_s is None else level.uplink_bytes_per_s,
                    num_sharing=1 if index == 0 else max(load[index - 1][box] for box in inner),
                )
            )
        inner = boxes
    return Span(len(ranks), tuple(hops))


def algorithms(kind: str) -> tuple[str, ...]:
    """Return the names of the algorithms that the model knows for a kind of collective.

    Raises:
        MeshError: If the kind is unknown.
    """
    if kind not in _MODELS:
        raise MeshError(
            f"no cost model for collective {kind!r}: there are {', '.join(_MODELS)}{did_you_mean(kind, _MODELS)}"
        )
    return tuple(_MODELS[kind])


def cheapest(kind: str, num_bytes: float, group: Span) -> Choice:
    """Return the cheapest algorithm for a collective and its cost; the first of equals.

    Raises:
        MeshError: If the kind is unknown or ``num_bytes`` is negative.
    """
    return min((Choice(name, _evaluate(kind, num_bytes, group, name)) for name in algorithms(kind)), key=lambda c: c[1])


def collective_cost_s(
    kind: str,
    num_bytes: float,
    ranks: Sequence[int] | Span,
    topology: Topology | None = None,
    *,
    algorithm: str | None = None,
    siblings: Iterable[Sequence[int]] = (),
) -> float:
    """Return the time of a collective in seconds, 0 for a group of one.

    Args:
        kind: ``"all_reduce"``, ``"all_gather"``, ``"reduce_scatter"``, ``"all_to_all"``, ``"broadcast"``, ``"p2p"``
            or ``"barrier"``.
        num_bytes: Bytes of the whole tensor: what every rank ends with (all_reduce, all_gather, broadcast), starts
            with (reduce_scatter, all_to_all), or sends (p2p).
        ranks: Global ranks of the group, or their `Span`.
        topology: Where they are; not with a span.
        algorithm: One of `algorithms`; the cheapest by default.
        siblings: Groups that do the same at the same time (``ranks`` itself may be among them).

    Raises:
        MeshError: If kind, algorithm or ranks are unknown, or ``num_bytes`` is negative.
    """
    if isinstance(ranks, Span):
        group = ranks
    elif topology is None:
        raise MeshError("collective_cost_s of ranks needs a topology: give one, or a Span")
    else:
        others = [sibling for sibling in siblings if tuple(sibling) != tuple(ranks)]
        group = spans([ranks, *others], topology)[0]
    if algorithm is None:
        return cheapest(kind, num_bytes, group).cost_s
    return _evaluate(kind, num_bytes, group, algorithm)


def axis_cost_s(
    kind: str,
    num_bytes: float,
    mesh: DeviceMesh,
    axis: Axis | Sequence[Axis] | None = None,
    *,
    algorithm: str | None = None,
) -> float:
    """Return the time of a collective along a mesh axis (several, all), all groups along it running at once.

    Equal on all ranks: it is that of the slowest group. Arguments as in `collective_cost_s`.

    Raises:
        MeshError: If kind, axis or algorithm are unknown, or ``num_bytes`` is negative.
    """
    return max(collective_cost_s(kind, num_bytes, group, algorithm=algorithm) for group in mesh.spans(axis))


def _evaluate(kind: str, num_bytes: float, group: Span, algorithm: str) -> float:
    if not num_bytes >= 0:
        raise MeshError(f"num_bytes={num_bytes} of a collective must not be negative")
    known = algorithms(kind)
    if algorithm not in known:
        raise MeshError(
            f"no algorithm {algorithm!r} for {kind}: there are {', '.join(known)}{did_you_mean(algorithm, known)}"
        )
    return _MODELS[kind][algorithm](num_bytes, group) if group.size > 1 else 0.0


def _rounds(group: Span) -> int:
    return math.ceil(math.log2(group.size))


def _part(group: Span) -> float:
    return (group.size - 1) / group.size


def _ring(num_bytes: float, group: Span) -> float:
    return (group.size - 1) * group.latency_s + _part(group) * num_bytes * group.pace(per_rank=False)


def _recursive(num_bytes: float, group: Span) -> float:
    return _rounds(group) * group.latency_s + _part(group) * num_bytes * group.pace(per_rank=True)


def _hierarchical(num_bytes: float, group: Span) -> float:
    cost = 0.0
    for hop in group.hops:  # innermost first: what it leaves to each rank is what goes one level up
        crossing = (hop.num_parts - 1) / hop.num_parts * num_bytes
        cost += (hop.num_parts - 1) * hop.latency_s + crossing * hop.seconds_a_byte(hop.num_inside)
        num_bytes /= hop.num_parts
    return cost


def _pairwise(num_bytes: float, group: Span) -> float:
    cost, inside = 0.0, 1
    for hop in group.hops:
        reached = inside * hop.num_parts
        peers = reached - inside
        cost += peers * (hop.latency_s + num_bytes / group.size * hop.seconds_a_byte(hop.num_inside))
        inside = reached
    return cost


def _twice(model: Callable[[float, Span], float]) -> Callable[[float, Span], float]:
    return lambda num_bytes, group: 2 * model(num_bytes, group)


def _binomial(num_bytes: float, group: Span) -> float:
    return _rounds(group) * (group.latency_s + num_bytes * group.pace(per_rank=False))


def _scatter(num_bytes: float, group: Span) -> float:
    rounds = _rounds(group) + group.size - 1
    return rounds * group.latency_s + 2 * _part(group) * num_bytes * group.pace(per_rank=False)


def _direct(num_bytes: float, group: Span) -> float:
    return group.latency_s + num_bytes * group.pace(per_rank=False)


def _dissemination(num_bytes: float, group: Span) -> float:
    del num_bytes
    return _rounds(group) * group.latency_s


_MODELS: dict[str, dict[str, Callable[[float, Span], float]]] = {
    "all_reduce": {"ring": _twice(_ring), "recursive": _twice(_recursive), "hierarchical": _twice(_hierarchical)},
    "all_gather": {"ring": _ring, "recursive": _recursive, "hierarchical": _hierarchical},
    "reduce_scatter": {"ring": _ring, "recursive": _recursive, "hierarchical": _hierarchical},
    "all_to_all": {"pairwise": _pairwise},
    "broadcast": {"binomial": _binomial, "scatter": _scatter},
    "p2p": {"direct": _direct},
    "barrier": {"dissemination": _dissemination},
}
