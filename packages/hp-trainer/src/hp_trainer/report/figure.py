# SPDX-License-Identifier: Apache-2.0
"""What the charts are made of: axes, lines and their ticks, as Plotly's plain dictionaries.

[Note: Colour roles] A figure does not name colours but roles, the names of CSS variables (``--train``): the page's
script puts in the value that the theme gives them, so that one figure serves light, dark and print. Titles and legends
are HTML around the figure, which wraps on a narrow screen as Plotly's own do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hp_trainer.report import series

MAX_POINTS = 1200
MAX_MARKERS = 40


@dataclass
class Chart:
    """One chart: ``figure`` for Plotly, and the words around it. ``legend``: (mark, colour role, label)."""

    key: str
    title: str
    unit: str
    summary: str
    figure: dict[str, Any]
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    wide: bool = False


def axes(xs: Sequence[float], ys: series.Values, *, zero: bool = False, log: bool = False) -> dict[str, Any]:
    """Return the layout shared by all charts: step axis below, value axis left, one hover box for all lines."""
    x_axis: dict[str, Any] = {"title": {"text": "step"}, "tickformat": ",~f", "hoverformat": ",.0f"}
    x_axis["unifiedhovertitle"] = {"text": "step %{x}"}
    span = max(xs, default=0) - min(xs, default=0)
    if span <= 8:  # Plotly would put ticks at half steps
        x_axis["dtick"] = 1
    if xs:
        pad = max(0.5, 0.015 * span)
        x_axis["range"] = [min(xs) - pad, max(xs) + pad]
    if log:
        y_axis: dict[str, Any] = {"type": "log", "tickformat": "~g", "dtick": _log_tick(ys)}
    else:
        y_axis = {"tickformat": _tick_format(ys, zero=zero)}
        if zero:
            y_axis["rangemode"] = "tozero"
    return {"xaxis": x_axis, "yaxis": y_axis}


def _tick_format(ys: series.Values, *, zero: bool) -> str:
    """Return the format that gives every tick of an axis over ``ys`` as many decimals as its smallest step needs."""
    numbers = series.finite(ys)
    low, high = (min(numbers, default=0.0), max(numbers, default=0.0))
    span = high - (min(0.0, low) if zero else low)
    if span <= 0 or not math.isfinite(span):
        return ",~g"
    if not 1e-4 <= max(abs(low), abs(high)) < 1e7:
        return ".3~g"
    # About six ticks at 1, 2 or 5 times a power of ten: the least such step that is not below a sixth of the span.
    power = math.floor(math.log10(span / 6))
    lead = span / 6 / 10.0**power
    decimals = max(0, -power - (1 if lead > 5.0 else 0))
    return f",.{decimals}f" if decimals <= 6 else "~g"


def _log_tick(ys: series.Values) -> str | int:
    """Return ticks at 1, 2 and 5 over few decades, at whole decades over many."""
    numbers = series.finite(ys)
    return "D2" if math.log10(max(numbers) / min(numbers)) < 3 else 1


def needs_log(values: series.Values) -> bool:
    """Say whether spikes would flatten the rest of the curve on a linear axis."""
    numbers = series.finite(values)
    middle = series.median(numbers)
    return bool(numbers) and middle is not None and min(numbers) > 0 and max(numbers) > 30 * middle


def _clean(values: series.Values) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _pick(values: Sequence[Any], indices: Sequence[int]) -> list[Any]:
    return [values[i] for i in indices]


def _line(name: str, role: str, xs: Sequence[float], ys: series.Values, hover: str, **style: Any) -> dict[str, Any]:
    """Return a line trace; few points also get markers, or a single step would draw nothing."""
    few = len(series.finite(ys)) <= MAX_MARKERS
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "name": name,
        "x": list(xs),
        "y": _clean(ys),
        "line": {"color": role, "width": 2, **style},
        "hovertemplate": hover,
    }
    if few:
        trace["marker"] = {"color": role, "size": 5 if len(ys) > 1 else 9}
    return trace


def thinned_line(
    name: str, role: str, xs: Sequence[float], ys: series.Values, hover: str, **style: Any
) -> dict[str, Any]:
    """Return a line of about ``MAX_POINTS`` points at most that keeps the spikes; ``style`` is Plotly's ``line``."""
    kept = series.thin(ys, MAX_POINTS)
    return _line(name, role, _pick(xs, kept), _pick(ys, kept), hover, **style)


def smoothed_line(
    name: str, role: str, xs: Sequence[float], ys: series.Values, span: int, hover: str
) -> dict[str, Any]:
    """Return the smoothed line (see `series.smoothed`) over about ``span`` steps."""
    curve = series.smoothed(ys, span)
    kept = [bucket[-1] for bucket in series.buckets(len(curve), MAX_POINTS)]
    trace = _line(name, role, _pick(xs, kept), _pick(curve, kept), hover, width=2.5)
    trace.update({"mode": "lines", "connectgaps": True})
    return trace
