# SPDX-License-Identifier: Apache-2.0
"""Which rank moves what, within its host and between hosts: on ints alone, nothing is communicated here.

[Note: Lanes] The ranks of a group lie on hosts in any way. Lane ``j`` is the ``j``-th rank of every host, so that there
are as many lanes as the smallest host has ranks, and ranks beyond that are in none. What has to go between hosts is cut
into as many slices, each of which one lane carries: every byte goes to another host once, and all lanes work at the
same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

#: Copies of (where from, where to, how many) elements.
Moves = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a group are, seen from one of them; all ranks are indices within the group.

    Attributes:
        hosts: The ranks on each host, in group order; hosts in the order of their first ranks.
        host: Index of this rank's host.
        local: Index of this rank on it.
    """

    hosts: tuple[tuple[int, ...], ...]
    host: int
    local: int

    @property
    def here(self) -> tuple[int, ...]:
        """The ranks on this host."""
        return self.hosts[self.host]

    @property
    def num_lanes(self) -> int:
        """See [Note: Lanes]."""
        return min(len(ranks) for ranks in self.hosts)

    @property
    def lane(self) -> tuple[int, ...] | None:
        """The ranks of this rank's lane, in the order of hosts; None when it is in none."""
        return tuple(ranks[self.local] for ranks in self.hosts) if self.local < self.num_lanes else None

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return sum(len(ranks) for ranks in self.hosts)

    def find(self, rank: int) -> tuple[int, int]:
        """Return the index of the host of ``rank``, and that of ``rank`` on it."""
        for host, ranks in enumerate(self.hosts):
            if rank in ranks:
                return host, ranks.index(rank)
        raise ValueError(f"rank {rank} is not one of the group's {self.size}")


def place(hosts: Sequence[str], rank: int) -> Placement:
    """Return the placement of a group.

    Args:
        hosts: The host of each rank of the group.
        rank: The rank that asks.
    """
    found: dict[str, list[int]] = {}
    for index, name in enumerate(hosts):
        found.setdefault(name, []).append(index)
    here = list(found).index(hosts[rank])
    return Placement(tuple(tuple(ranks) for ranks in found.values()), here, found[hosts[rank]].index(rank))


def cut(total: int, num_parts: int) -> list[int]:
    """Return the lengths of ``num_parts`` consecutive parts of ``total``, which differ by one at most."""
    return [total * (part + 1) // num_parts - total * part // num_parts for part in range(num_parts)]


def lane_pieces(placement: Placement, total: int) -> list[int]:
    """Return how much of ``total`` each rank of this host carries; 0 for those that are in no lane."""
    return cut(total, placement.num_lanes) + [0] * (len(placement.here) - placement.num_lanes)


def overlaps(first: Sequence[int], second: Sequence[int]) -> list[list[int]]:
    """Return how much part ``i`` of one partition of a range has in common with part ``j`` of another.

    Args:
        first: Lengths of the parts of one.
        second: Lengths of the parts of the other; they add up to as much.
    """
    ends, other_ends = list(accumulate(first)), list(accumulate(second))
    return [
        [
            max(0, min(end, other_end) - max(end - length, other_end - other))
            for other, other_end in zip(second, other_ends, strict=True)
        ]
        for length, end in zip(first, ends, strict=True)
    ]


@dataclass(frozen=True)
class Exchange:
    """How pieces of all ranks meet (an all-gather), or what is reduced goes to its owners (the same backwards).

    The pieces of one host lie one after another in its block, which is cut into a slice for each lane. "By lane" is the
    order of slices: all that lane 0 carries, of each host, then lane 1, and so on.

    Attributes:
        to_lanes: How much of its piece this rank gives to each rank of its host.
        from_members: How much this rank's slice has of each of its host's ranks.
        between: Lengths of this lane's slices, by host.
        by_lane: How much each rank of this host carries of all hosts together.
        moves: From the order by lane to that of ranks.
    """

    to_lanes: tuple[int, ...]
    from_members: tuple[int, ...]
    between: tuple[int, ...]
    by_lane: tuple[int, ...]
    moves: Moves


@lru_cache(maxsize=1024)
def plan_exchange(placement: Placement, sizes: tuple[int, ...]) -> Exchange:
    """Return how the pieces of all ranks are exchanged.

    Args:
        placement: Where they are.
        sizes: Length of each rank's piece.
    """
    lanes = placement.num_lanes
    blocks = [[sizes[rank] for rank in ranks] for ranks in placement.hosts]
    slices = [cut(sum(block), lanes) for block in blocks]
    none = [0] * (len(placement.here) - lanes)
    own = [row + none for row in overlaps(blocks[placement.host], slices[placement.host])]
    starts = [end - size for size, end in zip(sizes, accumulate(sizes), strict=True)]
    moves: list[tuple[int, int, int]] = []
    position = 0
    for lane in range(lanes):
        for ranks, block, cuts in zip(placement.hosts, blocks, slices, strict=True):
            for rank, row in zip(ranks, overlaps(block, cuts), strict=True):
                if row[lane]:
                    moves.append((position, starts[rank] + sum(row[:lane]), row[lane]))
                    position += row[lane]
    carries = placement.lane is not None
    return Exchange(
        to_lanes=tuple(own[placement.local]),
        from_members=tuple(row[placement.local] for row in own),
        between=tuple(cuts[placement.local] for cuts in slices) if carries else (),
        by_lane=(*(sum(cuts[lane] for cuts in slices) for lane in range(lanes)), *none),
        moves=joined(moves),
    )


def joined(moves: Sequence[tuple[int, int, int]]) -> Moves:
    """Return ``moves`` with those that continue the one before made one."""
    found: list[tuple[int, int, int]] = []
    for source, target, length in moves:
        if found and (source, target) == (found[-1][0] + found[-1][2], found[-1][1] + found[-1][2]):
            found[-1] = (*found[-1][:2], found[-1][2] + length)
        elif length:
            found.append((source, target, length))
    return tuple(found)


@dataclass(frozen=True)
class Parted:
    """The pieces for (or from) each rank of a group, parted into those of this host and the others.

    Attributes:
        here: Lengths, by index on this host.
        away: Lengths, in the order asked for; 0 for ranks of this host.
        here_moves: From the pieces of all ranks, one after another, to those of this host.
        away_moves: The same for the others.
    """

    here: tuple[int, ...]
    away: tuple[int, ...]
    here_moves: Moves
    away_moves: Moves


@lru_cache(maxsize=1024)
def part(placement: Placement, sizes: tuple[int, ...], order: tuple[int, ...]) -> Parted:
    """Return how pieces are parted.

    Args:
        placement: Where the ranks are.
        sizes: Length of the piece of each rank.
        order: The ranks of the group in the order of the channel that serves those of other hosts.
    """
    starts = [end - size for size, end in zip(sizes, accumulate(sizes), strict=True)]
    here = tuple(sizes[rank] for rank in placement.here)
    away = tuple(0 if rank in placement.here else sizes[rank] for rank in order)
    here_moves, away_moves = (
        joined(
            [
                (starts[rank], end - size, size)
                for rank, size, end in zip(ranks, lengths, accumulate(lengths), strict=True)
            ]
        )
        for ranks, lengths in ((placement.here, here), (order, away))
    )
    return Parted(here, away, here_moves, away_moves)
