# SPDX-License-Identifier: Apache-2.0
"""Progress in a terminal and in a pipe, on a clock that the test moves."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hp_core.kinds import KIND_TABLE
from hp_trainer.callbacks import Callback
from hp_trainer.config import TrainConfig
from hp_trainer.progress import Progress
from hp_trainer.progress.lines import coarse, step_line
from hp_trainer.progress.panel import panel, sparkline
from hp_trainer.progress.state import ProgressState
from hp_trainer.run import Run

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Stage:
    """A run that is told to a `Progress` writing into ``file``."""

    num_steps: int
    terminal: bool = False
    width: int = 100
    rank: int = 0
    encoding: str = "utf-8"
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.bytes = io.BytesIO()
        file = io.TextIOWrapper(self.bytes, encoding=self.encoding, write_through=True)
        console = Console(
            file=file, force_terminal=self.terminal, width=self.width, height=20, _environ={"TERM": "xterm"}
        )
        self.progress = Progress(console, self.clock)
        config = TrainConfig.model_validate({"run": {"name": "demo"}, "train": {"steps": max(1, self.num_steps)}})
        self.run = Run(config, Path("runs/demo"), rank=self.rank, world_size=2)

    def steps(self, first: int, last: int, seconds: float, **changes: Any) -> None:
        for step in range(first, last + 1):
            self.clock.now_s += seconds
            self.progress.on_step_end(self.run, metrics(step, **changes))

    def evaluate(self, step: int, loss: float) -> None:
        result = {"step": step, "loss": loss, "perplexity": math.exp(loss), "num_tokens": 64}
        self.progress.on_evaluation(self.run, result)

    @property
    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def metrics(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 3.0 - 0.1 * step,
        "lr": 2.93e-4,
        "grad_norm": 1.0,
        "tokens": 1024 * step,
        "tokens_per_s": 1234.4,
        "step_s": 2.0,
        "phases_s": {"data": 0.02, "forward": 0.5, "backward": 1.0, "communication": 0.24, "optimizer": 0.2},
        "memory_bytes": [2 * 2**30, 5 * 2**29],
        **changes,
    }


def test_the_trainer_tells_the_events_that_the_registry_knows() -> None:
    assert tuple(name for name in vars(Callback) if name.startswith("on_")) == KIND_TABLE["callback"].any_of
    assert isinstance(Progress(), Callback)


def test_in_a_pipe_each_line_is_whole_and_nothing_but_ascii_text() -> None:
    stage = Stage(30)
    stage.progress.on_train_begin(stage.run)
    stage.evaluate(0, 2.5)
    stage.steps(1, 30, 2.0)
    stage.evaluate(30, 2.0)
    stage.progress.on_train_end(stage.run)
    assert stage.text.isascii()
    assert all(character == "\n" or character.isprintable() for character in stage.text)
    assert stage.lines[0] == "demo: 30 steps on 2 ranks"
    assert stage.lines[1] == "step 0/30  held-out loss 2.500  perplexity 12.2"
    assert stage.lines[2] == (
        "step  1/30  loss  2.900  lr 2.93e-04   1,234 tokens/s  2.50 GiB  communication 12 %  58 s left"
    )
    assert len([line for line in stage.lines if line.startswith("step")]) == 32
    assert "left" not in stage.lines[31]
    assert stage.lines[-3:] == [
        "done: 30 steps in 1 min 00 s, 1,234 tokens/s (median), 2.50 GiB on the rank that used most",
        "held-out loss 2.500 -> 2.000, perplexity 12.2 -> 7.39",
        "report: runs/demo/report.html",
    ]


def test_lines_come_once_a_second_at_first_and_rarely_later() -> None:
    stage = Stage(200_000)
    stage.progress.on_train_begin(stage.run)
    stage.steps(1, 100, 0.1)
    early = len(stage.lines)
    assert 9 <= early <= 12
    stage.steps(101, 100_000, 0.1)
    assert len(stage.lines) < 700  # of 100,000 steps, over close to three hours
    gaps = [int(a) - int(b) for a, b in zip(numbers(stage.lines)[1:], numbers(stage.lines), strict=False)]
    assert max(gaps) * 0.1 <= 31.0


def numbers(lines: list[str]) -> list[str]:
    return [match[1].replace(",", "") for line in lines if (match := re.match(r"step +([\d,]+)/", line))]


def test_the_last_step_always_has_its_line() -> None:
    stage = Stage(25)
    stage.progress.on_train_begin(stage.run)
    stage.steps(1, 25, 0.01)
    assert numbers(stage.lines) == ["1", "25"]


def test_other_ranks_are_silent() -> None:
    stage = Stage(3, rank=1)
    stage.progress.on_train_begin(stage.run)
    stage.evaluate(0, 2.0)
    stage.steps(1, 3, 2.0)
    stage.progress.on_train_end(stage.run)
    stage.progress.on_exception(stage.run, ValueError("x"))
    assert stage.text == ""


@pytest.mark.parametrize("width", [100, 60, 34])
def test_in_a_terminal_a_panel_shows_everything_at_any_width(width: int) -> None:
    stage = Stage(10, terminal=True, width=width)
    stage.progress.on_train_begin(stage.run)
    try:
        stage.evaluate(0, 2.5)
        stage.steps(1, 4, 2.0)
        stage.evaluate(4, 2.25)
        shown = drawn(stage)
    finally:
        stage.progress.on_train_end(stage.run)
    assert max(len(line) for line in shown.splitlines()) <= width
    words = re.sub(r"[│\s]+", " ", shown)
    for expected in (
        "step 4/10",
        "12 s left",
        "loss 2.600",
        "lr 2.93e-04",
        "tokens/s 1,234",
        "memory 2.50 GiB",
        "communication 12 %",
        "other 2 %",
        "2.500",
    ):
        assert expected in words, (expected, words)
    text = ESCAPES.sub("", stage.text)
    assert "report: runs/demo/report.html" in text
    assert stage.text.count("\x1b[?25l") == stage.text.count("\x1b[?25h") == 1  # the cursor comes back


def drawn(stage: Stage) -> str:
    """The panel as it stands."""
    assert stage.progress._live is not None
    console = Console(file=io.StringIO(), width=stage.width, record=True, _environ={})
    console.print(stage.progress._live.get_renderable())
    return console.export_text()


def test_a_terminal_without_unicode_or_cursor_gets_lines() -> None:
    stage = Stage(2, terminal=True, encoding="ascii")
    stage.progress.on_train_begin(stage.run)
    stage.steps(1, 2, 2.0, loss=math.nan)
    stage.progress.on_train_end(stage.run)
    assert "\x1b" not in stage.text
    assert "loss    NaN" in stage.lines[1]


def test_a_failure_gives_the_terminal_back_and_says_how_far_the_run_came() -> None:
    stage = Stage(10, terminal=True)
    stage.progress.on_train_begin(stage.run)
    stage.steps(1, 3, 2.0)
    stage.progress.on_exception(stage.run, ValueError("boom"))
    assert stage.text.endswith("stopped after step 3/10, 6 s into training: ValueError\n")
    assert stage.text.count("\x1b[?25l") == stage.text.count("\x1b[?25h")
    stage.progress.on_exception(stage.run, ValueError("again"))  # harmless


def test_a_failure_before_training_began_is_silent() -> None:
    stage = Stage(10)
    stage.progress.on_exception(stage.run, ValueError("no model"))
    assert stage.text == ""


def test_no_steps_and_missing_numbers_break_nothing() -> None:
    state = ProgressState("demo", 0, 0.0)
    assert state.share_done == 1.0
    assert state.left_s(1.0) is None
    state.add_step({"step": 0, "memory_bytes": [], "phases_s": {}, "step_s": math.nan}, 1.0)
    assert "NaN" in step_line(state, 1.0)
    console = Console(file=io.StringIO(), width=80, record=True, _environ={})
    console.print(panel(state, 2.0))
    assert "waiting for the first step" in console.export_text()


def test_time_left_follows_the_pace_of_the_last_steps_not_the_slow_first_one() -> None:
    state = ProgressState("demo", 100, 0.0)
    state.add_evaluation({"loss": 1.0}, 50.0)
    assert state.left_s(51.0) is None
    state.add_step(metrics(1), 60.0)
    assert state.left_s(60.0) == pytest.approx(990.0)  # ten seconds a step, the evaluation not counted
    for step in range(2, 51):
        state.add_step(metrics(step), 60.0 + 2.0 * (step - 1))
    assert state.left_s(158.0) == pytest.approx(100.0)
    assert state.left_s(159.0) == pytest.approx(99.0)
    assert state.left_s(500.0) == pytest.approx(98.0)  # a step that hangs does not count down to nothing


def test_a_skipped_update_is_said() -> None:
    state = ProgressState("demo", 3, 0.0)
    state.add_step(metrics(1, loss=None, skipped=True), 2.0)
    line = step_line(state, 2.0)
    assert "loss    NaN" in line
    assert "update skipped" in line


def test_phase_shares_are_of_the_whole_step() -> None:
    state = ProgressState("demo", 3, 0.0)
    state.add_step(metrics(1), 2.0)
    shares = dict(state.phase_shares())
    assert shares["backward"] == pytest.approx(0.5)
    assert shares["other"] == pytest.approx(0.02)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_sparkline_goes_from_high_to_low_and_marks_gaps() -> None:
    assert sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert sparkline([1.0, math.nan], 8) == "▁×"
    assert sparkline([], 8) == ""
    assert len(sparkline([float(i) for i in range(500)], 24)) == 24


def test_a_changing_duration_is_written_in_whole_seconds() -> None:
    assert [coarse(v) for v in (0.2, 59.4, 59.6, 200.0, None, math.nan)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 20 s",
        "\N{EN DASH}",
        "\N{EN DASH}",
    ]
