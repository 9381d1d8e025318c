# SPDX-License-Identifier: Apache-2.0
"""Costs of collectives: against messages simulated round by round, and the choices they lead to."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hp_core.mesh.device_mesh as device_mesh
from hp_core.errors import MeshError
from hp_core.mesh import (
    DeviceMesh,
    Grid,
    Level,
    Span,
    Topology,
    algorithms,
    axis_cost_s,
    cheapest,
    collective_cost_s,
    spans,
)

MB = 1e6


def hosts(per_host: int, inside: float, outside: float, *, uplink: float | None = None) -> Topology:
    """Hosts of ``per_host`` ranks; bytes a second inside and between them."""
    return Topology((Level("host", per_host, inside, 1e-6), Level("cluster", None, outside, 10e-6, uplink)))


# A simulator of rounds of messages, written without the formulas: the reference.


def round_s(messages: list, topology: Topology) -> float:
    """Messages (source, destination, bytes) that run at once; the round ends with the slowest."""
    leaving: Counter = Counter()
    for source, destination, _ in messages:
        level = topology.spanned((source, destination))
        if level > 0:
            leaving[level, topology.box(level - 1, source)] += 1
    slowest = 0.0
    for source, destination, num_bytes in messages:
        index = topology.spanned((source, destination))
        level = topology.levels[index]
        rate = level.bytes_per_s
        if index > 0 and level.uplink_bytes_per_s is not None:
            rate = min(rate, level.uplink_bytes_per_s / leaving[index, topology.box(index - 1, source)])
        slowest = max(slowest, level.latency_s + num_bytes / rate)
    return slowest


def ring_s(groups: list, num_bytes: float, topology: Topology) -> float:
    size = len(groups[0])
    messages = [(g[i], g[(i + 1) % size], num_bytes / size) for g in groups for i in range(size)]
    return (size - 1) * round_s(messages, topology)


def hierarchical_s(groups: list, num_bytes: float, topology: Topology, per_host: int) -> float:
    """A reduce-scatter inside hosts, then one among hosts by each local rank for its part."""
    inside = [g[i : i + per_host] for g in groups for i in range(0, len(g), per_host)]
    between = [g[i::per_host] for g in groups for i in range(per_host)]
    cost = ring_s(inside, num_bytes, topology) if per_host > 1 else 0.0
    return cost + (ring_s(between, num_bytes / per_host, topology) if len(between[0]) > 1 else 0.0)


def pairwise_s(group: tuple, num_bytes: float, topology: Topology) -> float:
    """Round ``k``: everyone exchanges with the rank ``k`` away in the bits of its index (powers of two only)."""
    size = len(group)
    return sum(
        round_s([(group[i], group[i ^ step], num_bytes / size) for i in range(size)], topology)
        for step in range(1, size)
    )


@settings(max_examples=60, deadline=None)
@given(
    num_hosts=st.integers(1, 4),
    per_host=st.integers(1, 4),
    num_bytes=st.floats(1.0, 1e9),
    slowdown=st.floats(1.0, 100.0),
    uplink=st.one_of(st.none(), st.floats(1e8, 1e11)),
)
def test_ring_and_hierarchical_cost_what_their_rounds_do(
    num_hosts: int, per_host: int, num_bytes: float, slowdown: float, uplink: float | None
) -> None:
    topology = hosts(per_host, 100e9, 100e9 / slowdown, uplink=uplink)
    group = tuple(range(num_hosts * per_host))
    if len(group) == 1:
        return
    ring = collective_cost_s("all_gather", num_bytes, group, topology, algorithm="ring")
    # The uplink can be faster than the links inside only without limiting anything: rates fall outwards here.
    assert ring == pytest.approx(ring_s([group], num_bytes, topology), rel=1e-9)
    twice = collective_cost_s("all_reduce", num_bytes, group, topology, algorithm="ring")
    assert twice == pytest.approx(2 * ring)
    by_levels = collective_cost_s("reduce_scatter", num_bytes, group, topology, algorithm="hierarchical")
    assert by_levels == pytest.approx(hierarchical_s([group], num_bytes, topology, per_host), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    num_hosts=st.sampled_from([1, 2, 4]),
    per_host=st.sampled_from([1, 2, 4]),
    num_bytes=st.floats(1.0, 1e9),
    uplink=st.one_of(st.none(), st.floats(1e8, 1e11)),
)
def test_all_to_all_costs_what_its_rounds_do(
    num_hosts: int, per_host: int, num_bytes: float, uplink: float | None
) -> None:
    topology = hosts(per_host, 100e9, 10e9, uplink=uplink)
    group = tuple(range(num_hosts * per_host))
    expected = pairwise_s(group, num_bytes, topology)
    assert collective_cost_s("all_to_all", num_bytes, group, topology) == pytest.approx(expected, rel=1e-9)


def test_groups_of_an_axis_share_the_uplink_that_they_leave_by() -> None:
    topology = hosts(4, 100e9, 50e9, uplink=20e9)
    mesh = DeviceMesh("cpu", Grid((2, 4), ("dp", "tp")), rank=0, topology=topology)
    groups = list(mesh.grid.groups("dp"))
    expected = ring_s(groups, 8 * MB, topology)
    assert axis_cost_s("all_gather", 8 * MB, mesh, "dp", algorithm="ring") == pytest.approx(expected)
    alone = collective_cost_s("all_gather", 8 * MB, groups[0], topology, algorithm="ring")
    latency_s = topology.level("cluster").latency_s
    assert expected - latency_s == pytest.approx(4 * (ring_s(groups[:1], 8 * MB, topology) - latency_s))
    assert alone == pytest.approx(ring_s(groups[:1], 8 * MB, topology))
    together = collective_cost_s("all_gather", 8 * MB, groups[0], topology, algorithm="ring", siblings=groups)
    assert together == pytest.approx(expected)
    # Without a shared uplink nobody waits for anybody.
    free = mesh.with_topology(hosts(4, 100e9, 50e9))
    assert axis_cost_s("all_gather", 8 * MB, free, "dp", algorithm="ring") == pytest.approx(
        collective_cost_s("all_gather", 8 * MB, groups[0], free.topology, algorithm="ring")
    )


def test_formulas_of_one_level_by_hand() -> None:
    topology = Topology((Level("host", None, 1e9, 1e-5),))
    group = range(8)

    def cost(kind: str, algorithm: str) -> float:
        return collective_cost_s(kind, 8 * MB, group, topology, algorithm=algorithm)

    assert cost("all_reduce", "ring") == pytest.approx(14 * 1e-5 + 2 * 7e-3)
    assert cost("all_reduce", "recursive") == pytest.approx(6 * 1e-5 + 2 * 7e-3)
    assert cost("all_reduce", "hierarchical") == pytest.approx(14 * 1e-5 + 2 * 7e-3)
    assert cost("all_gather", "recursive") == pytest.approx(3 * 1e-5 + 7e-3)
    assert cost("reduce_scatter", "ring") == pytest.approx(7 * 1e-5 + 7e-3)
    assert cost("all_to_all", "pairwise") == pytest.approx(7 * 1e-5 + 7e-3)
    assert cost("broadcast", "binomial") == pytest.approx(3 * (1e-5 + 8e-3))
    assert cost("broadcast", "scatter") == pytest.approx(10 * 1e-5 + 14e-3)
    assert cost("p2p", "direct") == pytest.approx(1e-5 + 8e-3)
    assert cost("barrier", "dissemination") == pytest.approx(3e-5)


@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p", "barrier"]),
    size=st.integers(1, 12),
    small=st.floats(0, 1e8),
    more=st.floats(0, 1e8),
)
def test_costs_grow_with_bytes_and_a_group_of_one_is_free(kind: str, size: int, small: float, more: float) -> None:
    topology = hosts(4, 100e9, 10e9, uplink=10e9)
    group = spans([range(size)], topology)[0]
    low, high = collective_cost_s(kind, small, group), collective_cost_s(kind, small + more, group)
    assert high >= low >= 0
    assert (low > 0) is (size > 1)
    assert (
        cheapest(kind, small, group).cost_s
        == low
        == min(collective_cost_s(kind, small, group, algorithm=name) for name in algorithms(kind))
    )


# Choices: the figures decide.


def test_other_bandwidths_change_the_choice_between_flat_ring_and_hierarchical() -> None:
    def choice(topology: Topology, num_bytes: float = 64 * MB, size: int = 32) -> str:
        group = spans([range(size)], topology)[0]
        ring = collective_cost_s("all_reduce", num_bytes, group, algorithm="ring")
        levels = collective_cost_s("all_reduce", num_bytes, group, algorithm="hierarchical")
        return "ring" if ring <= levels else "hierarchical"

    # Every rank has its own slow link out: the hierarchical one uses all eight, the ring one.
    assert choice(hosts(8, 400e9, 25e9)) == "hierarchical"
    # As fast outside as inside, through one shared link that the eight parts would queue for.
    assert choice(hosts(8, 400e9, 400e9, uplink=100e9)) == "hierarchical"
    assert choice(hosts(8, 10e9, 400e9, uplink=10e9)) == "ring"
    # Two ranks a host behind one link that is the bottleneck: bytes are the same, rounds are not.
    assert choice(hosts(8, 400e9, 25e9, uplink=25e9), num_bytes=1e3) == "hierarchical"


def test_other_bandwidths_change_which_axis_is_gathered_first() -> None:
    """S(0) over two axes to replicated: the axis gathered last carries the most bytes."""
    grid = Grid((4, 8), ("between", "inside"))

    def first(topology: Topology) -> str:
        mesh = DeviceMesh("npu", grid, rank=0, topology=topology)
        whole = 256 * MB
        outer_first = axis_cost_s("all_gather", whole / 8, mesh, "between") + axis_cost_s(
            "all_gather", whole, mesh, "inside"
        )
        inner_first = axis_cost_s("all_gather", whole / 4, mesh, "inside") + axis_cost_s(
            "all_gather", whole, mesh, "between"
        )
        return "between" if outer_first < inner_first else "inside"

    assert first(hosts(8, 400e9, 25e9)) == "between"
    assert first(hosts(8, 25e9, 400e9)) == "inside"


def test_latency_and_bandwidth_decide_between_all_to_all_and_all_gather_for_a_redistribution() -> None:
    """S(0) to S(1): an all-to-all moves 1/n of the bytes in n-1 messages, an all-gather takes log n rounds."""

    def choice(latency_s: float, bytes_per_s: float) -> str:
        group = spans([range(16)], Topology((Level("host", None, bytes_per_s, latency_s),)))[0]
        whole = 1 * MB
        exchange = collective_cost_s("all_to_all", whole / 16, group)
        gather = collective_cost_s("all_gather", whole, group)
        return "all_to_all" if exchange < gather else "all_gather"

    assert choice(1e-6, 1e9) == "all_to_all"
    assert choice(1e-3, 100e9) == "all_gather"


def test_the_size_decides_between_the_two_broadcasts() -> None:
    group = spans([range(16)], Topology((Level("host", None, 1e9, 1e-5),)))[0]
    assert cheapest("broadcast", 100, group).algorithm == "binomial"
    assert cheapest("broadcast", 100 * MB, group).algorithm == "scatter"


def test_spans_count_parts_and_ranks_of_each_level() -> None:
    topology = Topology(
        (
            Level("host", 4, 100e9, 1e-6),
            Level("super-node", 16, 50e9, 5e-6, uplink_bytes_per_s=60e9),
            Level("cluster", None, 10e9, 20e-6),
        )
    )
    (span,) = spans([range(32)], topology)
    assert [(hop.num_parts, hop.num_inside, hop.num_sharing) for hop in span.hops] == [(4, 1, 1), (4, 4, 1), (2, 16, 1)]
    assert span.hops[2].uplink_bytes_per_s == math.inf
    strided = spans([range(i, 32, 4) for i in range(4)], topology)
    assert len(set(strided)) == 1
    assert [(hop.num_parts, hop.num_inside, hop.num_sharing) for hop in strided[0].hops] == [(4, 1, 4), (2, 4, 4)]
    (uneven,) = spans([(0, 1, 2, 4)], topology)
    assert (uneven.size, [(hop.num_parts, hop.num_inside) for hop in uneven.hops]) == (4, [(3, 1), (2, 3)])
    assert isinstance(uneven, Span)


def test_the_structure_of_a_large_mesh_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner asks thousands of times: 4096 ranks, the structure once, then formulas."""
    looked: list[str] = []
    groups = Grid.groups
    monkeypatch.setattr(device_mesh, "spans", lambda *args: looked.append("spans") or spans(*args))
    monkeypatch.setattr(Grid, "groups", lambda *args: looked.append("groups") or groups(*args))
    mesh = DeviceMesh(
        "npu", Grid((16, 32, 8), ("pp", "dp", "tp")), rank=0, topology=hosts(8, 400e9, 25e9, uplink=100e9)
    )
    costs = {axis_cost_s("all_reduce", MB, mesh, "dp") for _ in range(100)}
    assert len(costs) == 1
    assert sorted(looked) == ["groups", "spans"]
    assert len(mesh.spans("dp")) < 10  # distinct ones, not one for each of the 128 groups


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda t: collective_cost_s("allreduce", 1, (0, 1), t),
            r"'allreduce': there are all_reduce.*did you mean 'all_reduce'",
        ),
        (
            lambda t: collective_cost_s("all_reduce", 1, (0, 1), t, algorithm="rng"),
            r"no algorithm 'rng'.*did you mean 'ring'",
        ),
        (lambda t: collective_cost_s("all_reduce", -1, (0, 1), t), "num_bytes=-1"),
        (lambda t: collective_cost_s("all_reduce", float("nan"), (0, 1), t), "must not be negative"),
        (lambda t: collective_cost_s("all_reduce", 1, (0, 1)), "needs a topology"),
    ],
)
def test_questions_that_make_no_sense_raise(call, message: str) -> None:
    with pytest.raises(MeshError, match=message):
        call(hosts(4, 1e9, 1e9))
