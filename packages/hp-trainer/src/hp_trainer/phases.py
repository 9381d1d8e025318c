# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

#: In the order in which a step goes through them.
PHASES = ("data", "forward", "backward", "communication", "optimizer")


class PhaseTimer:
    """Sums the seconds that one step spends in each phase on this rank.

    Args:
        synchronize: Waits for the device, called at the borders of phases; None on a CPU. Without it, the time of an
            accelerator's kernels would be counted in whichever phase happens to wait.
    """

    def __init__(self, synchronize: Callable[[], object] | None = None) -> None:
        self._synchronize = synchronize
        self._seconds = dict.fromkeys(PHASES, 0.0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time as ``name``, one of `PHASES`."""
        start = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - start

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, by phase, and start anew."""
        seconds, self._seconds = self._seconds, dict.fromkeys(PHASES, 0.0)
        return seconds

    def _now(self) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter()
