# SPDX-License-Identifier: Apache-2.0
"""What the terminal shows of a run, without a word of how."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hp_trainer.report import series

RECENT_STEPS = 20


@dataclass
class ProgressState:
    """A run as far as it has come. Times in seconds of the callback's clock, sizes in bytes."""

    name: str
    num_steps: int
    started_s: float
    steps_started_s: float = field(init=False)
    step: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    losses: deque[float | None] = field(default_factory=lambda: deque(maxlen=400))
    speeds: list[float | None] = field(default_factory=list)
    peak_memory_bytes: float | None = None
    evaluations: list[Mapping[str, Any]] = field(default_factory=list)
    step_ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS + 1))

    def __post_init__(self) -> None:
        self.steps_started_s = self.started_s

    def add_evaluation(self, result: Mapping[str, Any], now_s: float) -> None:
        """Take in an evaluation that has just ended; the one before training delays the first step."""
        self.evaluations.append(result)
        if self.step == 0:
            self.steps_started_s = now_s

    def add_step(self, metrics: Mapping[str, Any], now_s: float) -> None:
        """Take in the metrics of a step that has just ended."""
        self.step = int(metrics["step"])
        self.metrics = metrics
        self.losses.append(metrics.get("loss"))
        self.speeds.append(metrics.get("tokens_per_s"))
        memory = self.memory_bytes
        if memory is not None:
            self.peak_memory_bytes = max(memory, self.peak_memory_bytes or 0.0)
        self.step_ends_s.append(now_s)

    @property
    def memory_bytes(self) -> float | None:
        """The memory of the rank that uses most, at the last step."""
        return max(series.finite(self.metrics.get("memory_bytes") or ()), default=None)

    @property
    def share_done(self) -> float:
        """Steps done over steps to do, between 0 and 1."""
        return min(1.0, self.step / self.num_steps) if self.num_steps > 0 else 1.0

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds that the steps to come take at the pace of the last ones; None before the first step.

        The first step, which warms up, counts only until there are others; evaluations among the last steps count.
        """
        if not self.step_ends_s:
            return None
        ends = list(self.step_ends_s)
        if len(ends) > 1:
            pace, since = (ends[-1] - ends[0]) / (len(ends) - 1), now_s - ends[-1]
        else:
            pace, since = ends[0] - self.steps_started_s, now_s - ends[0]
        return max(0.0, (self.num_steps - self.step) * pace - min(since, pace))

    def phase_shares(self) -> list[tuple[str, float]]:
        """Return each phase's share of the last step, what no phase accounts for as ``other``."""
        phases = {name: value for name, value in (self.metrics.get("phases_s") or {}).items() if series.finite([value])}
        whole = max(math.fsum(phases.values()), *series.finite([self.metrics.get("step_s")]), 0.0)
        if whole <= 0.0:
            return []
        shares = [(name, value / whole) for name, value in phases.items()]
        return [*shares, ("other", max(0.0, 1.0 - math.fsum(share for _, share in shares)))]
