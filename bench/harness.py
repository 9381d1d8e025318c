# SPDX-License-Identifier: Apache-2.0
"""What every script in `bench/` shares: alternate the sides, take medians, print a table and a JSON line."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measured case.

    Attributes:
        case: What was measured, with its unit.
        ours: Our figure.
        peer: The figure of what people use today, or of the limit.
        ratio: ``ours / peer``.
        goal: The largest ratio (or figure) that is good enough; None for a row that only informs.
        ok: Whether the goal is met; True where there is none.
    """

    case: str
    ours: float
    peer: float
    ratio: float
    goal: float | None
    ok: bool


def compare(case: str, ours: float, peer: float, *, goal: float | None = None) -> Row:
    """Return the row of ``ours`` against ``peer``, where less is better and ``goal`` bounds their ratio."""
    ratio = ours / peer if peer else float("inf")
    return Row(case, ours, peer, ratio, goal, goal is None or ratio <= goal)


def alternate(
    sides: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 1,
    barrier: Callable[[], object] | None = None,
    seldom: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Time each side once a round, in an order that turns by one each round.

    A slow minute of the machine then hits all the sides alike, and no side always runs after the same other.

    Args:
        sides: Name and what to run.
        rounds: Rounds that count.
        warmup: Rounds before those, thrown away.
        seldom: Sides that only inform: timed every other round, to save time.
        barrier: Called before the clock starts and before it stops, so that all ranks are measured together.

    Returns:
        The seconds of each side, one figure a round.
    """
    seldom = seldom or {}
    everything = {**sides, **seldom}
    times: dict[str, list[float]] = {name: [] for name in everything}
    for turn in range(warmup + rounds):
        names = list(everything if turn < warmup or (turn - warmup) % 2 == 0 else sides)
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            if barrier is not None:
                barrier()
            start = time.perf_counter()
            everything[name]()
            if barrier is not None:
                barrier()
            if turn >= warmup:
                times[name].append(time.perf_counter() - start)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return each side's median."""
    return {name: statistics.median(values) for name, values in times.items()}


def report(rows: Iterable[Row], as_json: bool) -> bool:
    """Print the rows as a table and, if asked, as one last line of JSON; return whether every goal is met."""
    rows = list(rows)
    width = max((len(row.case) for row in rows), default=4)
    print(f"{'case':<{width}}  {'ours':>10}  {'peer':>10}  {'ratio':>7}  {'goal':>6}")
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:.2f}"
        verdict = "" if row.goal is None else ("ok" if row.ok else "MISSED")
        line = f"{row.case:<{width}}  {row.ours:>10.4g}  {row.peer:>10.4g}  {row.ratio:>7.3f}  {goal:>6}  {verdict}"
        print(line.rstrip())
    good = all(row.ok for row in rows)
    if as_json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "ok": good}), flush=True)
    return good
