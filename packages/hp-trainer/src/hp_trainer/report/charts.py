# SPDX-License-Identifier: Apache-2.0
"""The charts of a run. Colours are roles: see [Note: Colour roles] in ``figure``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hp_trainer.phases import PHASES
from hp_trainer.report import format as fmt
from hp_trainer.report import series
from hp_trainer.report.data import RunData
from hp_trainer.report.figure import MAX_POINTS, Chart, axes, needs_log, smoothed_line, thinned_line

MAX_BARS = 120
MAX_RANK_LINES = 8
NOISY = 200  # from so many steps on, a jagged curve is drawn faint, with its smoothed course or its median on top
RANK_ROLES = tuple(f"--rank-{i}" for i in range(MAX_RANK_LINES))


def all_charts(run: RunData) -> list[Chart]:
    """Return the charts for which the run has numbers, in the page's order."""
    charts = (loss_chart(run), lr_chart(run), grad_norm_chart(run), throughput_chart(run), memory_chart(run))
    return [chart for chart in charts if chart is not None]


def loss_chart(run: RunData) -> Chart | None:
    """Training loss of each step, its smoothed course, and the held-out loss where it was measured."""
    xs = [step.step for step in run.steps]
    losses = [step.loss for step in run.steps]
    held_out = [(item.step, item.loss) for item in run.evaluations if series.finite([item.loss])]
    if not series.finite(losses) and not held_out:
        return None
    traces, legend, notes = [], [], []
    numbers = series.finite(losses)
    if numbers:
        smooth = len(numbers) >= 12
        role = "--train-faint" if smooth else "--train"
        traces.append(thinned_line("train", role, xs, losses, "%{y:.4f}", width=1.25 if smooth else 2))
        legend.append(("line", role, "train, each step"))
        if smooth:
            span = series.smooth_span(len(numbers))
            traces.append(smoothed_line("train, smoothed", "--train", xs, losses, span, "%{y:.4f}"))
            legend.append(("line", "--train", f"train, smoothed over about {span} steps"))
        ends = " at the first step, {} at the last" if len(numbers) > 1 else " at the only step"
        notes.append(f"Training loss: {fmt.loss(numbers[0])}{ends.format(fmt.loss(numbers[-1]))}.")
    if held_out:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": "held-out",
                "x": [step for step, _ in held_out],
                "y": [value for _, value in held_out],
                "line": {"color": "--heldout", "width": 1.5, "dash": "dot"},
                "marker": {
                    "color": "--heldout",
                    "size": 10,
                    "symbol": "diamond",
                    "line": {"color": "--card", "width": 1.5},
                },
                "hovertemplate": "%{y:.4f}",
            }
        )
        legend.append(("diamond", "--heldout", "held-out"))
        notes.append(f"Held-out loss: {' → '.join(fmt.loss(v) for v in _ends([v for _, v in held_out]))}.")
    num_bad = sum(1 for value in losses if value is not None and not math.isfinite(value))
    if num_bad:
        traces.append(_not_finite_marks(xs, losses))
        legend.append(("cross", "--bad", "train, NaN or infinite"))
        notes.append(f"{num_bad:,} of {len(losses):,} steps have no finite loss.")
    log = needs_log(losses)
    if log:
        notes.append("Logarithmic scale.")
    layout = axes([*xs, *(step for step, _ in held_out)], [*losses, *(value for _, value in held_out)], log=log)
    return Chart(
        "loss", "Loss", "nats per token", " ".join(notes), {"data": traces, "layout": layout}, legend, wide=True
    )


def _ends(values: Sequence[Any]) -> list[Any]:
    return [values[0], values[-1]] if len(values) > 1 else list(values)


def _plain_chart(
    run: RunData,
    key: str,
    title: str,
    unit: str,
    role: str,
    values: series.Values,
    hover: str,
    summary: str,
    *,
    smooth: bool = False,
) -> Chart | None:
    """One line from zero over the steps; None where there is no number."""
    if not series.finite(values):
        return None
    xs = [step.step for step in run.steps]
    log = needs_log(values)
    traces = [thinned_line(title.lower(), role, xs, values, hover, width=1.75)]
    legend: list[tuple[str, str, str]] = []
    if smooth and len(values) >= NOISY:
        span = series.smooth_span(len(values))
        traces[0].update({"opacity": 0.35, "line": {"color": role, "width": 1}})
        traces.append(smoothed_line("smoothed", role, xs, values, span, hover))
        legend = [("line faint", role, "each step"), ("line", role, f"smoothed over about {span} steps")]
    if log:
        summary += " Logarithmic scale."
    return Chart(key, title, unit, summary, {"data": traces, "layout": axes(xs, values, zero=True, log=log)}, legend)


def _not_finite_marks(xs: Sequence[float], losses: series.Values) -> dict[str, Any]:
    """Return crosses at the steps whose loss is NaN or infinite, at the height of the last finite loss before them."""
    height = next(iter(series.finite(losses)), 0.0)
    points: list[tuple[float, float]] = []
    for x, value in zip(xs, losses, strict=True):
        if value is None:
            continue
        if math.isfinite(value):
            height = value
        else:
            points.append((x, height))
    kept = [points[bucket[0]] for bucket in series.buckets(len(points), MAX_POINTS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "train",
        "x": [x for x, _ in kept],
        "y": [y for _, y in kept],
        "marker": {"color": "--bad", "size": 9, "symbol": "x-thin", "line": {"color": "--bad", "width": 2}},
        "hovertemplate": "not finite",
    }


def lr_chart(run: RunData) -> Chart | None:
    """The learning rate of each step."""
    values = [step.lr for step in run.steps]
    numbers = series.finite(values)
    # One power of ten in the title instead of one at every tick.
    power = math.floor(math.log10(max(numbers))) if numbers and max(numbers) > 0 else 0
    power = power if power < -2 or power > 5 else 0
    unit = f"{fmt.TIMES}10{fmt.superscript(power)}" if power else ""
    scaled = [None if value is None else value / 10.0**power for value in values]
    summary = ""
    if numbers:
        peak, last = (
            f"{fmt.significant(value / 10.0**power)}{unit}" if value > 0.01 * max(numbers) else fmt.significant(value)
            for value in (max(numbers), numbers[-1])
        )
        summary = f"Peak {peak}, last {last}."
    return _plain_chart(run, "lr", "Learning rate", unit, "--rate", scaled, f"%{{y:.4~g}} {unit}".strip(), summary)


def grad_norm_chart(run: RunData) -> Chart | None:
    """The gradient norm of each step, before clipping."""
    values = [step.grad_norm for step in run.steps]
    numbers = series.finite(values)
    summary = f"Median {fmt.significant(series.median(numbers))}, highest {fmt.significant(max(numbers, default=0.0))}."
    unit, hover = "before clipping", "%{y:.4~g}"
    return _plain_chart(run, "grad", "Gradient norm", unit, "--grad", values, hover, summary, smooth=True)


def throughput_chart(run: RunData) -> Chart | None:
    """Tokens per second of each step over all ranks, with the median as a line."""
    values = [step.tokens_per_s for step in run.steps]
    middle = series.median(values)
    numbers = series.finite(values)
    summary = f"Median {fmt.count(middle)} tokens/s, lowest {fmt.count(min(numbers, default=0.0))}."
    unit, hover = "tokens/s, all ranks", "%{y:,.0f} tokens/s"
    chart = _plain_chart(run, "throughput", "Throughput", unit, "--speed", values, hover, summary)
    if chart is None:
        return None
    axis = chart.figure["layout"]["xaxis"]["range"]
    chart.figure["data"].append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "median",
            "x": axis,
            "y": [middle, middle],
            "line": {"color": "--ink", "width": 1.25, "dash": "dash"},
            "hoverinfo": "skip",
        }
    )
    if len(values) >= NOISY:  # or the median would drown
        chart.figure["data"][0]["line"]["width"] = 1
        chart.figure["data"][0]["opacity"] = 0.5
    chart.legend = [("line", "--speed", "each step"), ("dash", "--ink", f"median, {fmt.count(middle)}")]
    return chart


def memory_chart(run: RunData) -> Chart | None:
    """Peak memory of each rank over the steps: a line a rank, or the span between ranks where there are many."""
    num_ranks = max((len(step.memory_bytes) for step in run.steps), default=0)
    ranks: list[list[float | None]] = [
        [step.memory_bytes[rank] if rank < len(step.memory_bytes) else None for step in run.steps]
        for rank in range(num_ranks)
    ]
    numbers = [value for rank in ranks for value in series.finite(rank)]
    if not numbers:
        return None
    unit, size = fmt.byte_unit(max(numbers))
    xs = [step.step for step in run.steps]
    hover = "%{y:.4~g} " + unit
    if num_ranks <= MAX_RANK_LINES:
        lines = [(f"rank {rank}", RANK_ROLES[rank], values) for rank, values in enumerate(ranks)]
    else:
        columns = [series.finite(step.memory_bytes) for step in run.steps]
        lines = [
            ("highest rank", RANK_ROLES[1], [max(column, default=None) for column in columns]),
            ("median rank", RANK_ROLES[0], [series.median(column) for column in columns]),
            ("lowest rank", RANK_ROLES[2], [min(column, default=None) for column in columns]),
        ]
    traces, legend = [], []
    for index, (name, role, values) in enumerate(lines):
        scaled = [None if value is None else value / size for value in values]
        # Ranks often coincide: dashes let the line below show through.
        trace = thinned_line(name, role, xs, scaled, hover, width=2, dash="solid" if index == 0 else "dot")
        traces.append(trace)
        legend.append(("line" if index == 0 else "dots", role, name))
    highest = max(numbers)
    of_rank = next(rank for rank, values in enumerate(ranks) if highest in values)
    summary = f"Highest {fmt.bytes_(highest)}, on rank {of_rank}."
    layout = axes(xs, [value / size for value in numbers], zero=True)
    return Chart("memory", "Memory", f"{unit}, each rank", summary, {"data": traces, "layout": layout}, legend)


def phase_names(run: RunData) -> list[str]:
    """Return the phases that the run recorded: the usual ones in order, then others by name."""
    seen = {name for step in run.steps for name in step.phases_s}
    return [name for name in PHASES if name in seen] + sorted(seen - set(PHASES))


def phase_role(name: str) -> str:
    """Return the colour role of a phase; those that we do not know share one."""
    return f"--phase-{name}" if name in PHASES or name == "other" else "--phase-extra"


def phase_chart(run: RunData) -> Chart | None:
    """Seconds of each step by phase, stacked; the mean of neighbouring steps where there are too many bars to see."""
    names = phase_names(run)
    if not names:
        return None
    steps = [step.step for step in run.steps]
    groups = series.buckets(len(steps), MAX_BARS)
    per_bar = math.ceil(len(steps) / len(groups))
    columns: dict[str, list[float | None]] = {name: [step.phases_s.get(name) for step in run.steps] for name in names}
    columns["other"] = [step.other_s for step in run.steps]
    lengths = [step.step_s for step in run.steps]
    if not series.finite(lengths):
        lengths = [sum(step.phases_s.values()) for step in run.steps]
    numbers = series.finite(lengths)
    unit, size = ("ms", 1e-3) if (series.median(numbers) or 0.0) < 1.0 else ("s", 1.0)
    xs = [(steps[group[0]] + steps[group[-1]]) / 2 for group in groups]
    fill = 0.8 if len(groups) <= 30 else 1.0
    widths = [fill * (steps[group[-1]] - steps[group[0]] + 1) for group in groups]
    means = {name: series.bucket_means(column, MAX_BARS) for name, column in columns.items()}
    traces = [
        {
            "type": "bar",
            "name": name,
            "x": xs,
            "width": widths,
            "y": [None if mean is None else mean / size for mean in means[name]],
            "customdata": [fmt.duration(mean) for mean in means[name]],
            "marker": {"color": phase_role(name), "line": {"width": 0}},
            "hovertemplate": "%{customdata}",
        }
        for name in [*names, "other"]
    ]
    layout = axes([steps[0], steps[-1]], [value / size for value in numbers], zero=True)
    layout["barmode"] = "stack"
    longest = max(numbers)
    summary = (
        f"Median {fmt.duration(series.median(numbers))}, longest {fmt.duration(longest)} at step "
        f"{steps[lengths.index(longest)]:,}."
    )
    if per_bar > 1:
        summary += f" A bar is the mean of {per_bar} neighbouring steps."
        layout["xaxis"]["unifiedhovertitle"] = {"text": "around step %{x}"}
    return Chart(
        "phases", "Time per phase", f"{unit}, each step", summary, {"data": traces, "layout": layout}, wide=True
    )
