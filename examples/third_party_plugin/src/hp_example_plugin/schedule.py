# SPDX-License-Identifier: Apache-2.0
"""GPipe with a limit on the micro-batches in flight."""

from __future__ import annotations

from hp_core.kinds import Action


def limited_gpipe(num_stages: int, num_micro_batches: int, max_in_flight: int | None = None) -> list[list[Action]]:
    """Return each rank's actions: forwards of up to ``max_in_flight`` micro-batches, then their backwards, and so on.

    GPipe runs all forwards before the first backward and keeps the activations of all micro-batches; here a rank
    keeps those of ``max_in_flight`` at most, and pays with a pipeline bubble for each round.

    Args:
        num_stages: Stages, one a rank.
        num_micro_batches: Micro-batches of a step.
        max_in_flight: Limit; None is GPipe.

    Raises:
        ValueError: for a number below 1.
    """
    limit = num_micro_batches if max_in_flight is None else max_in_flight
    for name, value in (
        ("num_stages", num_stages),
        ("num_micro_batches", num_micro_batches),
        ("max_in_flight", limit),
    ):
        if value < 1:
            raise ValueError(f"{name} is {value}, expected 1 or more")
    ranks = []
    for stage in range(num_stages):
        actions: list[Action] = []
        for first in range(0, num_micro_batches, limit):
            chunk = range(first, min(first + limit, num_micro_batches))
            actions += [("F", stage, micro_batch) for micro_batch in chunk]
            actions += [("B", stage, micro_batch) for micro_batch in chunk]
        ranks.append(actions)
    return ranks
