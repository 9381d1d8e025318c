# SPDX-License-Identifier: Apache-2.0
"""The live panel of a run, drawn with rich from a ``ProgressState``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hp_trainer.progress.lines import coarse, rate
from hp_trainer.progress.state import ProgressState
from hp_trainer.report import format as fmt
from hp_trainer.report import series

_GAP = "   "
_LEVELS = "▁▂▃▄▅▆▇█"
_PHASE_COLORS = {
    "data": "magenta",
    "forward": "bright_blue",
    "backward": "blue",
    "communication": "yellow",
    "optimizer": "green",
    "other": "bright_black",
}


def panel(state: ProgressState, now_s: float) -> RenderableType:
    """Return the panel: the way done and time left, the last step's numbers, where its time went, held-out losses."""
    rows: list[RenderableType] = [_way(state, now_s), _numbers(state), _phases(state)]
    held_out = _held_out(state)
    if held_out is not None:
        rows.append(held_out)
    return Panel(Group(*rows), title=Text(state.name, style="bold"), title_align="left", border_style="bright_black")


def _way(state: ProgressState, now_s: float) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    left = state.left_s(now_s)
    words = coarse(now_s - state.started_s)
    if state.step < state.num_steps:
        words += f" · {coarse(left)} left" if left is not None else " · first step"
    bar = ProgressBar(total=1.0, completed=state.share_done, complete_style="blue", finished_style="green")
    table.add_row(Text(f"step {state.step:,}/{state.num_steps:,}", style="bold"), bar, words)
    return table


def _numbers(state: ProgressState) -> RenderableType:
    metrics = state.metrics
    loss = metrics.get("loss")
    bad = bool(metrics) and not series.finite([loss])
    return _Flow(
        [
            _pair("loss", "NaN" if bad else fmt.loss(loss), style="bold red" if bad else "bold"),
            _pair("lr", rate(metrics.get("lr"))),
            _pair("tokens/s", fmt.count(metrics.get("tokens_per_s"))),
            _pair("memory", fmt.bytes_(state.memory_bytes)),
            Text(sparkline(list(state.losses), 24), style="blue"),
        ]
    )


def _pair(name: str, value: str, style: str = "bold") -> Text:
    return Text.assemble((f"{name} ", "bright_black"), (value, style))


class _Flow:
    """Parts in a row, broken between them where the terminal is narrow, and never within (rich breaks at any space)."""

    def __init__(self, parts: Iterable[Text]) -> None:
        self._parts = list(parts)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(no_wrap=True, overflow="ellipsis")
        for part in self._parts:
            if line and line.cell_len + len(_GAP) + part.cell_len > options.max_width:
                yield line
                line = Text(no_wrap=True, overflow="ellipsis")
            if line:
                line.append(_GAP)
            line.append_text(part)
        yield line


def _phases(state: ProgressState) -> RenderableType:
    shares = state.phase_shares()
    if not shares:
        return Text("waiting for the first step", style="bright_black")
    return _Flow(
        Text.assemble(("■ ", _PHASE_COLORS.get(name, "cyan")), _pair(name, fmt.percent(share), ""))
        for name, share in shares
    )


def _held_out(state: ProgressState) -> RenderableType | None:
    if not state.evaluations:
        return None
    losses = [fmt.loss(result.get("loss")) for result in state.evaluations]
    shown = losses if len(losses) <= 6 else [losses[0], "…", *losses[-4:]]
    return Text.assemble(
        ("held-out loss ", "bright_black"), (" → ".join(shown), "bold"), no_wrap=True, overflow="ellipsis"
    )


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the course of ``values`` in at most ``width`` characters; a gap (NaN) is a cross."""
    means = series.bucket_means(values, width) if values else []
    numbers = series.finite(means)
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    scale = (len(_LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join("×" if mean is None else _LEVELS[round((mean - low) * scale)] for mean in means)
