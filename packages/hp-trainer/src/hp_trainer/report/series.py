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
    """Return at each entry the straight line through its neighbours, fitted with weights ``exp(-2 distance / span)``.

    It looks both ways and follows a slope, so it neither lags behind a falling curve nor bends at its ends as means
    do. A gap stays a gap and weighs nothing. Takes time linear in the length.
    """
    decay = math.exp(-2.0 / span)
    before = _decayed_moments(values, decay)
    after = _decayed_moments(values[::-1], decay)[::-1]
    result: list[float | None] = []
    for value, (b0, b1, b2, bv, bdv), (a0, a1, a2, av, adv) in zip(values, before, after, strict=True):
        if value is None or not math.isfinite(value):
            result.append(None)
            continue
        # Both hold the entry itself, at distance 0; distances before it are negative.
        s0, s1, s2, sv, sdv = a0 + b0 - 1.0, a1 - b1, a2 + b2, av + bv - value, adv - bdv
        determinant = s0 * s2 - s1 * s1
        result.append((s2 * sv - s1 * sdv) / determinant if determinant > 1e-9 * s0 * s0 else sv / s0)
    return result


def _decayed_moments(values: Values, decay: float) -> list[tuple[float, float, float, float, float]]:
    """Return at each entry the weighted sums of 1, d, d², v, d·v over the finite values v up to it, d entries back."""
    s0 = s1 = s2 = sv = sdv = 0.0
    moments = []
    for value in values:
        s0, s1, s2 = decay * s0, decay * (s1 + s0), decay * (s2 + 2.0 * s1 + s0)
        sv, sdv = decay * sv, decay * (sdv + sv)
        if value is not None and math.isfinite(value):
            s0, sv = s0 + 1.0, sv + value
        moments.append((s0, s1, s2, sv, sdv))
    return moments


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
