# SPDX-License-Identifier: Apache-2.0
"""What goes where in the ``hier`` backend, with lists in place of memory: no processes, no framework."""

from __future__ import annotations

import random

import pytest

from hp_native.hier_plan import cut, joined, lane_pieces, overlaps, part, place, plan_exchange

#: The host of each rank.
PLACEMENTS = ["AABB", "AAB", "ABAB", "BAAB", "ABBB", "AABBB", "ABCABC", "AABBCC", "ABBCCC", "AB", "ABABAAC"]


def seen_by_all(hosts: str) -> list:
    return [place(hosts, rank) for rank in range(len(hosts))]


def pieces_of(values: list, sizes) -> list[list]:
    assert sum(sizes) == len(values)
    return [values[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]


def all_to_all(inputs: list[list], sizes: list, members: list[int]) -> list[list]:
    cuts = [pieces_of(values, size) for values, size in zip(inputs, sizes, strict=True)]
    return [[value for row in cuts for value in row[index]] for index in range(len(members))]


@pytest.mark.parametrize("hosts", PLACEMENTS)
def test_each_rank_has_its_place_and_lanes_have_one_rank_a_host(hosts: str) -> None:
    everyone = seen_by_all(hosts)
    for rank, placement in enumerate(everyone):
        assert placement.size == len(hosts)
        assert placement.here[placement.local] == rank
        assert placement.find(rank) == (placement.host, placement.local)
        assert [hosts[each] for each in placement.here] == [hosts[rank]] * hosts.count(hosts[rank])
        assert placement.num_lanes == min(hosts.count(name) for name in hosts)
        if placement.lane is not None:
            assert len({hosts[each] for each in placement.lane}) == len(placement.lane) == len(set(hosts))
            assert placement.lane[placement.host] == rank
            assert all(everyone[each].lane == placement.lane for each in placement.lane)
    in_lanes = sum(placement.lane is not None for placement in everyone)
    assert in_lanes == everyone[0].num_lanes * len(everyone[0].hosts)


def test_a_rank_that_is_not_of_the_group_has_no_place() -> None:
    with pytest.raises(ValueError, match="rank 4 is not one of the group's 4"):
        place("AABB", 0).find(4)


@pytest.mark.parametrize("total", [0, 1, 2, 7, 64])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 5])
def test_parts_are_even(total: int, num_parts: int) -> None:
    parts = cut(total, num_parts)
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def test_ranks_in_no_lane_carry_nothing() -> None:
    assert lane_pieces(place("AAABB", 0), 7) == [3, 4, 0]
    assert lane_pieces(place("AAABB", 4), 7) == [3, 4]


def test_overlaps_are_what_both_partitions_share() -> None:
    assert overlaps([3, 0, 5], [4, 4]) == [[3, 0], [0, 0], [1, 4]]
    rng = random.Random(0)
    for _ in range(50):
        first = [rng.randrange(5) for _ in range(rng.randint(1, 5))]
        second = cut(sum(first), rng.randint(1, 4))
        owner = [i for i, length in enumerate(first) for _ in range(length)]
        other = [j for j, length in enumerate(second) for _ in range(length)]
        expected = [
            [list(zip(owner, other, strict=True)).count((i, j)) for j in range(len(second))] for i in range(len(first))
        ]
        assert overlaps(first, second) == expected


def test_moves_that_follow_each_other_are_one() -> None:
    assert joined([(0, 4, 2), (2, 6, 3), (5, 0, 4), (9, 9, 0)]) == ((0, 4, 5), (5, 0, 4))


@pytest.mark.parametrize("hosts", PLACEMENTS)
@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_all_ranks_meet_and_each_value_goes_to_another_host_once(hosts: str, seed: int) -> None:
    rng = random.Random(seed)
    sizes = tuple([5] * len(hosts) if seed == 0 else [rng.choice([0, 1, 2, 7, 12]) for _ in hosts])
    pieces = [[(rank, index) for index in range(size)] for rank, size in enumerate(sizes)]
    whole = [value for piece in pieces for value in piece]
    everyone = seen_by_all(hosts)
    plans = [plan_exchange(placement, sizes) for placement in everyone]
    slices: dict[int, list] = {}
    for ranks in everyone[0].hosts:
        came = all_to_all([pieces[rank] for rank in ranks], [plans[rank].to_lanes for rank in ranks], list(ranks))
        for rank, values in zip(ranks, came, strict=True):
            slices[rank] = values
            assert len(values) == sum(plans[rank].from_members)
            assert everyone[rank].lane is not None or not values
    carried: dict[int, list] = {rank: [] for rank in range(len(hosts))}
    for rank, placement in enumerate(everyone):
        if placement.lane is not None:
            assert [len(slices[each]) for each in placement.lane] == list(plans[rank].between)
            carried[rank] = [value for each in placement.lane for value in slices[each]]
    # What goes between hosts: each slice, from the only rank that has it, to the lane's others.
    assert sorted(value for rank in slices for value in slices[rank]) == sorted(whole)
    for rank, placement in enumerate(everyone):
        by_lane = [value for each in placement.here for value in carried[each]]
        assert [len(carried[each]) for each in placement.here] == list(plans[rank].by_lane)
        result: list = [None] * sum(sizes)
        for source, target, length in plans[rank].moves:
            result[target : target + length] = by_lane[source : source + length]
        assert result == whole


@pytest.mark.parametrize("hosts", PLACEMENTS)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_reduced_comes_back_to_its_owner(hosts: str, seed: int) -> None:
    rng = random.Random(seed)
    sizes = tuple([3] * len(hosts) if seed == 0 else [rng.choice([0, 1, 2, 7, 12]) for _ in hosts])
    everyone = seen_by_all(hosts)
    plans = [plan_exchange(placement, sizes) for placement in everyone]
    inputs = [[1000**rank * (index + 1) for index in range(sum(sizes))] for rank in range(len(hosts))]
    partial: dict[int, list[int]] = {}
    for ranks in everyone[0].hosts:
        arranged = []
        for rank in ranks:
            by_lane = [0] * sum(sizes)
            for target, source, length in plans[rank].moves:
                by_lane[target : target + length] = inputs[rank][source : source + length]
            arranged.append(by_lane)
        sums = [sum(column) for column in zip(*arranged, strict=True)]
        for rank, values in zip(ranks, pieces_of(sums, plans[ranks[0]].by_lane), strict=True):
            partial[rank] = values
    total: dict[int, list[int]] = {rank: [] for rank in range(len(hosts))}
    for rank, placement in enumerate(everyone):
        if placement.lane is not None:
            sums = [sum(column) for column in zip(*(partial[each] for each in placement.lane), strict=True)]
            total[rank] = pieces_of(sums, plans[rank].between)[placement.host]
    expected = pieces_of([sum(column) for column in zip(*inputs, strict=True)], sizes)
    for ranks in everyone[0].hosts:
        came = all_to_all([total[rank] for rank in ranks], [plans[rank].from_members for rank in ranks], list(ranks))
        assert came == [expected[rank] for rank in ranks]
        assert [len(values) for values in came] == [sum(plans[rank].to_lanes) for rank in ranks]


@pytest.mark.parametrize("hosts", PLACEMENTS)
def test_pieces_are_parted_into_those_of_this_host_and_the_others(hosts: str) -> None:
    rng = random.Random(hosts)
    order = tuple(rng.sample(range(len(hosts)), len(hosts)))
    sizes = tuple(rng.choice([0, 1, 3, 4]) for _ in hosts)
    values = [(rank, index) for rank, size in enumerate(sizes) for index in range(size)]
    for rank in range(len(hosts)):
        placement = place(hosts, rank)
        parted = part(placement, sizes, order)
        for ranks, lengths, moves in (
            (placement.here, parted.here, parted.here_moves),
            (order, parted.away, parted.away_moves),
        ):
            packed: list = [None] * sum(lengths)
            for source, target, length in moves:
                packed[target : target + length] = values[source : source + length]
            away = ranks is order
            wanted = [each for each in ranks if not (away and each in placement.here)]
            assert packed == [(each, index) for each in wanted for index in range(sizes[each])]
            assert list(lengths) == [0 if away and each in placement.here else sizes[each] for each in ranks]
