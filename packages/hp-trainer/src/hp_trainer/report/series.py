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
    """Return the exponential mean of ``values`` over about ``span`` entries, without a bias to zero at the start.

    A gap stays a gap and leaves the mean as it was.
    """
    decay = 1.0 - 2.0 / (span + 1.0)
    total, weight = 0.0, 0.0
    result: list[float | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            result.append(None)
            continue
        total = decay * total + (1.0 - decay) * value
        weight = decay * weight + (1.0 - decay)
        result.append(total / weight)
    return result


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
