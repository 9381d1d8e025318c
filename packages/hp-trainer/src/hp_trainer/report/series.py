# SPDX-License-Identifier: Apache-2.0
"""Sequences of numbers: smoothing, thinning, means. Pure functions; NaN and None are gaps, never poison."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

Values = Sequence[float | None]


def finite(values: Iterable[float | None]) -> list[float]:
    """Return the finite numbers among ``values``, in order."""
    return [value for value in values if value is not None and math.isfinite(value)]


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the finite numbers, or None where there is none."""
    numbers = finite(values)
    return statistics.median(numbers) if numbers else None


def smooth_span(num_steps: int) -> int:
    """Return over about how many steps a curve of ``num_steps`` is smoothed: a twentieth, from 4 to 100."""
    return max(4, min(100, round(num_steps / 20)))


def smoothed(values: Values, span: int) -> list[float | None]:
    """Return the mean of ``values`` around each entry, weighted ``exp(-distance)`` on the scale of ``span`` entries.

    It looks both ways, so it does not lag behind a falling curve as a running mean does, and it is unbiased at the
    ends. A gap stays a gap and weighs nothing. Takes time linear in the length.
    """
    decay = math.exp(-2.0 / span)
    ahead = _decayed_sums(values, decay)
    behind = _decayed_sums(values[::-1], decay)[::-1]
    result: list[float | None] = []
    for value, (sum_a, weight_a), (sum_b, weight_b) in zip(values, ahead, behind, strict=True):
        if value is None or not math.isfinite(value):
            result.append(None)
        else:  # both sums hold the value itself
            result.append((sum_a + sum_b - value) / (weight_a + weight_b - 1.0))
    return result


def _decayed_sums(values: Values, decay: float) -> list[tuple[float, float]]:
    """Return at each entry the decayed sum of the finite numbers up to it, and of their weights."""
    total, weight = 0.0, 0.0
    sums = []
    for value in values:
        known = value is not None and math.isfinite(value)
        total = decay * total + (value if known and value is not None else 0.0)
        weight = decay * weight + (1.0 if known else 0.0)
        sums.append((total, weight))
    return sums


def buckets(length: int, limit: int) -> list[range]:
    """Cut ``range(length)`` into at most ``limit`` neighbouring ranges whose sizes differ by at most one."""
    num = min(length, limit)
    return [range(length * i // num, length * (i + 1) // num) for i in range(num)]


def thin(values: Values, limit: int) -> list[int]:
    """Return at most about ``limit`` indices that keep the curve's look: ends, and each bucket's lowest and highest.

    Spikes survive, as an average would not let them; the first gap in a bucket is kept too, so that a NaN shows.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    kept = {0, len(values) - 1}
    for bucket in buckets(len(values), max(1, limit // 2)):
        numbers = [i for i in bucket if (value := values[i]) is not None and math.isfinite(value)]
        if numbers:
            kept.add(min(numbers, key=lambda i: values[i] or 0.0))
            kept.add(max(numbers, key=lambda i: values[i] or 0.0))
        gap = next((i for i in bucket if i not in numbers), None)
        if gap is not None:
            kept.add(gap)
    return sorted(kept)


def bucket_means(values: Values, limit: int) -> list[float | None]:
    """Return the mean of the finite numbers in each of at most ``limit`` buckets; None for an empty one."""
    means: list[float | None] = []
    for bucket in buckets(len(values), limit):
        numbers = finite(values[i] for i in bucket)
        means.append(statistics.fmean(numbers) if numbers else None)
    return means
