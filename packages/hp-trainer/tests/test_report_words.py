# SPDX-License-Identifier: Apache-2.0
"""What the report says of a run's times, and the commands that it gives."""

from __future__ import annotations

import html as html_text
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hp_trainer.report import write_report

INFO: dict[str, Any] = {
    "name": "demo",
    "status": "done",
    "started": "2026-01-02T03:04:05.000+00:00",
    "ended": "2026-01-02T03:07:17.000+00:00",
    "world_size": 2,
    "evaluation": {"before": {"loss": 2.5, "num_tokens": 4096}, "after": {"loss": 2.0, "num_tokens": 4096}},
    "setup_s": 12.0,
    "train_s": 120.0,
}

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(write_run: Callable[..., Path]) -> MakeRun:
    """Write a run folder: lines of metrics, a configuration, changes to ``run.json``."""

    def make(lines: list[dict[str, Any]], config: str = "train:\n  lr: 0.0003\n", **info: Any) -> Path:
        return write_run({**INFO, **info}, lines, config)

    return make


def step(number: int, **changes: Any) -> dict[str, Any]:
    phases_s = {"forward": 0.5, "backward": 1.0}
    return {"step": number, "loss": 2.0, "tokens_per_s": 500.0, "step_s": 2.0, "phases_s": phases_s, **changes}


def steps(num: int) -> list[dict[str, Any]]:
    return [step(number) for number in range(1, num + 1)]


def text_of(folder: Path) -> str:
    """Return the text of the page's body, without the tags and scripts."""
    page = write_report(folder).read_text(encoding="utf-8")
    body = page[page.index("<body>") : page.index("<script", page.index("<body>"))]
    return re.sub(r"\s+", " ", html_text.unescape(re.sub(r"<[^>]*>", "", body)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "set-up 12.0 s, training 2 min 00 s, evaluation and saving 1 min 00 s"),
        ({"evaluation": {}}, "set-up 12.0 s, training 2 min 00 s, saving 1 min 00 s"),
        ({"status": "failed"}, "set-up 12.0 s, training 2 min 00 s, the rest 1 min 00 s"),
        ({"train_s": 180.0}, "set-up 12.0 s, training 3 min 00 s"),
        ({"train_s": 181.0}, "set-up 12.0 s, training 3 min 01 s"),  # clocks differ by a little
        ({"ended": None}, "set-up 12.0 s, training 2 min 00 s"),
        ({"train_s": None}, "set-up 12.0 s, training NaN"),
    ],
)
def test_the_parts_of_the_total_time_add_up_to_it(make_run: MakeRun, changes: dict[str, Any], words: str) -> None:
    text = text_of(make_run(steps(3), **changes))
    assert re.search(rf"{words} ?Tokens per second", text), text[:600]


def test_no_unit_of_a_headline_figure_stands_alone_on_a_line(make_run: MakeRun) -> None:
    html = write_report(make_run(steps(3))).read_text(encoding="utf-8")
    assert "<dd>3\N{NO-BREAK SPACE}min 12\N{NO-BREAK SPACE}s</dd>" in html
    assert "evaluation and saving 1\N{NO-BREAK SPACE}min\N{NO-BREAK SPACE}00\N{NO-BREAK SPACE}s</span>" in html


def test_the_chart_of_phases_says_how_long_steps_took_and_which_took_longest(make_run: MakeRun) -> None:
    lines = [step(number, step_s=7.5 if number == 3 else 2.0) for number in range(1, 8)]
    assert "Median 2.00 s, longest 7.50 s at step 3." in text_of(make_run(lines))


def test_without_step_times_the_phases_say_how_long_steps_took(make_run: MakeRun) -> None:
    lines = [step(number, step_s=None, phases_s={"forward": float(number)}) for number in range(1, 4)]
    assert "Median 2.00 s, longest 3.00 s at step 3." in text_of(make_run(lines))


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("runs", "runs/demo"),
        ("./runs/", "runs/demo"),
        ("../runs", "../runs/demo"),
        ("{tmp}/runs", "{tmp}/runs/demo"),
        ("elsewhere", "{tmp}/runs/demo"),  # moved since: no name from there is known
        ("deeper/than/the/root/" * 40, "{tmp}/runs/demo"),
        ("null", "{tmp}/runs/demo"),
    ],
)
@pytest.mark.parametrize("seen_from", [".", "runs", "runs/demo"])
def test_all_commands_are_for_the_folder_in_which_training_was_started(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, given: str, place: str, seen_from: str
) -> None:
    folder = make_run(steps(2), config=f"run:\n  output_dir: {given.format(tmp=tmp_path)}\n")
    (folder / "tb").mkdir()
    monkeypatch.chdir(tmp_path / seen_from)
    text = text_of(Path(os.path.relpath(folder)))
    place = place.format(tmp=tmp_path)
    assert f"hp train {place}/config.yaml -n 2" in text
    assert f"tensorboard --logdir {place}/tb " in text


def test_a_run_set_aside_under_another_name_is_named_as_it_is_now(make_run: MakeRun) -> None:
    folder = make_run(steps(2), config="run:\n  name: demo\n  output_dir: runs\n")
    assert "hp train runs/demo.1/config.yaml -n 2" in text_of(folder.rename(folder.with_name("demo.1")))
