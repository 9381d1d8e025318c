# SPDX-License-Identifier: Apache-2.0
"""Numbers of the report: how they are written, smoothed and thinned."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from hp_trainer.report import format as fmt
from hp_trainer.report import series
from hp_trainer.report.figure import axes


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "\N{EN DASH}"),
        (math.nan, "NaN"),
        (0.0, "0 ms"),
        (0.0000231, "0.023 ms"),
        (0.0061, "6.1 ms"),
        (0.0099999, "10 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (9.949, "9.95 s"),
        (9.96, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (192.4, "3 min 12 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (86400 * 3 + 3600 * 4, "3 d 04 h"),
    ],
)
def test_a_duration_is_written_in_the_units_that_matter(seconds: float | None, text: str) -> None:
    assert fmt.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (2.5e-4, "2.5×10⁻⁴"),
        (3e-4, "3×10⁻⁴"),
        (0.00123, "0.00123"),
        (-1.5, "\N{MINUS SIGN}1.50"),
        (10.04, "10.0"),
        (12345.6, "12,346"),
        (1.5e9, "1.5×10⁹"),
        (math.inf, "∞"),
        (None, "\N{EN DASH}"),
    ],
)
def test_significant_digits(value: float | None, text: str) -> None:
    assert fmt.significant(value) == text


def test_counts_sizes_losses_and_shares() -> None:
    assert fmt.count(1234567.4) == "1,234,567"
    assert [fmt.big_count(v) for v in (9999, 12345, 134515008, 7.24e9)] == ["9,999", "12.35 k", "134.5 M", "7.240 B"]
    assert [fmt.bytes_(v) for v in (0, 999, 1536, 2**20 * 700, 2**30 * 1.93)] == [
        "0 B",
        "999 B",
        "1.50 KiB",
        "700 MiB",
        "1.93 GiB",
    ]
    assert [fmt.loss(v) for v in (2.3074, 0.0, 12345.6, 0.00012)] == [
        "2.307",
        "0.000",
        "12,346",
        f"1.2{fmt.TIMES}10⁻⁴",
    ]
    assert [fmt.percent(v, 1) for v in (0.262, 0.0001, 0.0, 1.0)] == ["26.2 %", "< 0.1 %", "0.0 %", "100.0 %"]
    assert fmt.signed(-0.5, "0.500") == "\N{MINUS SIGN}0.500"
    assert fmt.signed(0.5, "0.500") == "+0.500"


def test_smoothing_follows_a_slope_to_its_ends_and_skips_gaps() -> None:
    assert series.smoothed([5.0] * 10, 4) == pytest.approx([5.0] * 10)
    slope: list[float | None] = [3.0 - 0.1 * i for i in range(50)]
    assert series.smoothed(slope, 8) == pytest.approx(slope)
    spike = series.finite(series.smoothed([0.0] * 10 + [1.0] + [0.0] * 10, 8))
    assert spike == pytest.approx(spike[::-1])
    assert max(spike) == spike[10] < 0.5
    slope[7], slope[8], slope[30] = None, math.nan, math.inf
    with_gaps = series.smoothed(slope, 8)
    assert [i for i, value in enumerate(with_gaps) if value is None] == [7, 8, 30]
    assert series.finite(with_gaps) == pytest.approx(series.finite(slope))
    assert series.smoothed([2.5], 4) == [2.5]
    assert series.smoothed([], 4) == []


def test_thinning_keeps_ends_extremes_and_gaps() -> None:
    values: list[float | None] = [float(i % 7) for i in range(10_000)]
    values[1234], values[5678], values[9000] = 100.0, -100.0, math.nan
    kept = series.thin(values, 200)
    assert len(kept) <= 210
    assert kept == sorted(set(kept))
    assert {0, 1234, 5678, 9000, 9999} <= set(kept)
    assert series.thin(values[:150], 200) == list(range(150))


def test_buckets_cover_everything_once() -> None:
    for length, limit in ((0, 5), (1, 5), (7, 3), (5000, 120)):
        cut = series.buckets(length, limit)
        assert [i for bucket in cut for i in bucket] == list(range(length))
        assert len(cut) == min(length, limit)


def test_bucket_means_are_over_the_finite_numbers() -> None:
    assert series.bucket_means([1.0, 3.0, math.nan, 5.0, None, math.inf], 3) == [2.0, 5.0, None]


@pytest.mark.parametrize(
    ("ys", "zero", "tick_format"),
    [
        ([1.27, 2.31], False, ",.1f"),
        ([1.271, 1.279], False, ",.3f"),
        ([990.0, 1100.0], True, ",.0f"),
        ([2.0], False, ",~g"),
        ([0.0, 1e30], True, ".3~g"),
        ([0.0, 1e-9], True, ".3~g"),
        ([-1.7e308, 1.7e308], False, ",~g"),
    ],
)
def test_ticks_of_an_axis_have_equal_decimals(ys: list[float], zero: bool, tick_format: str) -> None:
    assert axes([1, 2], ys, zero=zero)["yaxis"]["tickformat"] == tick_format


def test_a_short_run_has_no_ticks_between_steps() -> None:
    assert axes([1, 2, 3], [1.0])["xaxis"]["dtick"] == 1
    assert "dtick" not in axes(range(100), [1.0])["xaxis"]


def test_importing_the_report_and_its_command_loads_nothing_heavy() -> None:
    code = (
        "import sys, hp_trainer.report, hp_trainer.report.command; "
        "print([m for m in ('jinja2', 'plotly', 'yaml', 'torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
