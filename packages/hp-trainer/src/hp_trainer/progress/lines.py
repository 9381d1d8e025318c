# SPDX-License-Identifier: Apache-2.0
"""Progress as lines of text, for pipes, files and logs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hp_trainer.progress.state import ProgressState
from hp_trainer.report import format as fmt
from hp_trainer.report import series


def plain(text: str) -> str:
    """Return ``text`` in ASCII: a log may be read in any encoding."""
    for sign, ascii_ in ((fmt.MINUS, "-"), (fmt.MISSING, "-"), ("→", "->"), ("∞", "inf"), ("±", "+-")):
        text = text.replace(sign, ascii_)
    return text.encode("ascii", "backslashreplace").decode("ascii")


def rate(value: float | None) -> str:
    """Return a learning rate with an exponent, always as wide: ``2.93e-04``."""
    return f"{value:.2e}" if value is not None and math.isfinite(value) else fmt.significant(value)


def step_line(state: ProgressState, now_s: float) -> str:
    """Return the line of the last step: where it is, loss, rate, speed, memory, waiting, time left."""
    metrics, width = state.metrics, len(f"{state.num_steps:,}")
    parts = [
        f"step {state.step:>{width},}/{state.num_steps:,}",
        f"loss {_loss(metrics):>6}",
        f"lr {rate(metrics.get('lr'))}",
        f"{fmt.count(metrics.get('tokens_per_s')):>6} tokens/s",
        fmt.bytes_(state.memory_bytes),
    ]
    parts += [f"{name} {fmt.percent(share)}" for name, share in state.phase_shares() if name == "communication"]
    if metrics.get("skipped"):
        parts.append("update skipped")
    if state.step < state.num_steps:
        parts.append(f"{coarse(state.left_s(now_s))} left")
    return "  ".join(parts)


def _loss(metrics: Mapping[str, Any]) -> str:
    """Return the loss as text; the null that stands for NaN in a metrics file is NaN."""
    return fmt.loss(math.nan if metrics.get("loss") is None else metrics["loss"])


def evaluation_line(state: ProgressState, result: Mapping[str, Any]) -> str:
    """Return the line of an evaluation."""
    step, perplexity = int(result.get("step", state.step)), fmt.significant(result.get("perplexity"))
    return f"step {step:,}/{state.num_steps:,}  held-out loss {fmt.loss(result.get('loss'))}  perplexity {perplexity}"


def summary_lines(state: ProgressState, now_s: float, report: str) -> list[str]:
    """Return what is left on the screen after a run: what it did, what came of it, and where to read on."""
    done = [f"done: {_steps(state.step)} in {fmt.duration(now_s - state.started_s)}"]
    speed = series.median(state.speeds)
    if speed is not None:
        done.append(f"{fmt.count(speed)} tokens/s (median)")
    if state.peak_memory_bytes is not None:
        done.append(f"{fmt.bytes_(state.peak_memory_bytes)} on the rank that used most")
    lines = [", ".join(done)]
    if len(state.evaluations) > 1:
        first, last = state.evaluations[0], state.evaluations[-1]
        lines.append(
            f"held-out loss {fmt.loss(first.get('loss'))} → {fmt.loss(last.get('loss'))}, "
            f"perplexity {fmt.significant(first.get('perplexity'))} → {fmt.significant(last.get('perplexity'))}"
        )
    return [*lines, f"report: {report}"]


def start_line(state: ProgressState, world_size: int) -> str:
    """Return the line before the first step."""
    ranks = "1 rank" if world_size == 1 else f"{world_size:,} ranks"
    return f"{state.name}: {_steps(state.num_steps)} on {ranks}"


def stop_line(state: ProgressState, now_s: float, exc: BaseException) -> str:
    """Return how far a run came that ends by ``exc``."""
    took = coarse(now_s - state.started_s)
    return f"stopped after step {state.step:,}/{state.num_steps:,}, {took} into training: {type(exc).__name__}"


def coarse(seconds: float | None) -> str:
    """Return a duration in whole seconds or more, for a number that changes while one looks at it."""
    if seconds is None or not math.isfinite(seconds):
        return fmt.MISSING
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else fmt.duration(whole)


def _steps(num: int) -> str:
    return "1 step" if num == 1 else f"{num:,} steps"
