# SPDX-License-Identifier: Apache-2.0
"""The report page, made from run folders in every state a run can leave, and read back as a browser would parse it."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hp_trainer.report import write_report

PHASES_S = {"data": 0.01, "forward": 0.5, "backward": 1.0, "communication": 0.3, "optimizer": 0.15}
VOID = {"meta", "link", "br"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--\u202e\u05d0\u2028\x1b[31m"


class Page(HTMLParser):
    """The page's elements, its text by element id, the text of its tables, and whether its tags are balanced."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.text_parts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        names = [name for name, _ in self.open]
        if "script" in names:
            self.scripts[self.open[-1][1].get("id") or f"script{len(self.scripts)}"] = data
        elif "style" not in names:
            self.text_parts.append(data)
            if self.rows and ("td" in names or "th" in names):
                self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.text_parts))

    @property
    def figures(self) -> dict[str, Any]:
        figures = json.loads(self.scripts["figures"], parse_constant=lambda word: pytest.fail(f"{word} in the JSON"))
        assert isinstance(figures, dict)
        return figures

    def row(self, name: str) -> list[str]:
        return next([cell.strip() for cell in row] for row in self.rows if row and row[0].strip() == name)


def step_line(step: int, **changes: Any) -> dict[str, Any]:
    entry = {
        "step": step,
        "loss": 3.0 - 0.01 * step,
        "lr": 3e-4,
        "grad_norm": 1.5,
        "tokens": 1024 * step,
        "tokens_per_s": 500.0 + step,
        "step_s": 2.0,
        "phases_s": dict(PHASES_S),
        "memory_bytes": [2 * 2**30, 3 * 2**30],
    }
    return {**entry, **changes}


INFO: dict[str, Any] = {
    "name": "demo",
    "status": "done",
    "started": "2026-01-02T03:04:05.000+00:00",
    "ended": "2026-01-02T03:07:17.000+00:00",
    "world_size": 2,
    "device": "cpu",
    "hosts": ["node-a"],
    "environment": {"Store": "reachable at 10.0.0.1:7000"},
    "versions": {"torch": "2.9.9", "hp-core": "0.1.7", "python": "3.11.4"},
    "plugins": [{"name": "core", "distribution": "hp-core", "version": "0.1.7", "state": "active"}],
    "model": {"name": "Tiny", "architecture": "LlamaForCausalLM", "num_parameters": 134515008, "dtype": "float32"},
    "data": {"source": "/texts", "num_files": 1421, "num_bytes": 3 * 2**20, "num_tokens_train": 7000123},
    "evaluation": {
        "before": {"loss": 2.5, "perplexity": 12.18, "num_tokens": 4096},
        "after": {"loss": 2.0, "perplexity": 7.389, "num_tokens": 4096},
    },
    "setup_s": 12.0,
    "train_s": 120.0,
    "seed": 42,
}

MakeRun = Callable[..., Path]


@pytest.fixture
def make_run(write_run: Callable[..., Path]) -> MakeRun:
    """Write a run folder: ``lines`` of metrics, changes to ``run.json``, a configuration."""

    def make(
        lines: list[dict[str, Any]], config: str = "run:\n  seed: 42\ntrain:\n  lr: 0.0003\n", **info: Any
    ) -> Path:
        return write_run({**INFO, **info}, lines, config)

    return make


def full_run(num_steps: int) -> list[dict[str, Any]]:
    middle = [{"step": num_steps // 2, "eval_loss": 2.2}] if num_steps > 1 else []
    return [{"step": 0, "eval_loss": 2.5}, *(step_line(step) for step in range(1, num_steps + 1)), *middle]


def report(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_a_finished_run_shows_its_numbers_as_a_person_writes_them(make_run: MakeRun) -> None:
    page = report(make_run(full_run(60)))
    for words in (
        "2.500 → 2.000",
        "−0.500 (−20.0 %)",
        "perplexity 12.2 → 7.39",
        "Tiny · LlamaForCausalLM · 134.5 M parameters · float32 · 2 ranks on cpu",
        "Total time3 min 12 s",
        "set-up 12.0 s, training 2 min 00 s, evaluation and saving 1 min 00 s",
        "Tokens per second530",  # the median of 501 … 560
        "Tokens trained61.44 k60 steps",
        "Step time2.00 s",
        "Peak memory3.00 GiB",
        "Ranks2",
    ):
        assert words in page.text, words
    assert page.row("Files") == ["Files", "1,421"]
    assert page.row("Size") == ["Size", "3.00 MiB"]
    assert page.row("lr") == ["lr", "0.0003"]
    assert page.row("torch") == ["torch", "2.9.9"]
    assert page.row("core") == ["core", "hp-core", "0.1.7", "active"]
    assert page.row("1")[1] == "2.990"
    assert page.row("30")[1:3] == ["2.700", "2.200"]
    assert page.row("Store") == ["Store", "reachable at 10.0.0.1:7000"]


def test_phase_shares_add_up_to_the_step_and_what_is_left_is_called_other(make_run: MakeRun) -> None:
    page = report(make_run(full_run(10)))
    assert page.row("forward")[1:4] == ["25.0 %", "500 ms", "5.00 s"]
    assert page.row("backward")[1:4] == ["50.0 %", "1.00 s", "10.0 s"]
    assert page.row("other")[1:4] == ["2.0 %", "40 ms", "400 ms"]
    bars = {trace["name"]: trace for trace in page.figures["phases"]["data"]}
    assert list(bars) == [*PHASES_S, "other"]
    for i in range(10):
        assert math.fsum(trace["y"][i] for trace in bars.values()) == pytest.approx(2.0)


def test_the_charts_hold_the_metrics_and_plotly_accepts_them(make_run: MakeRun) -> None:
    import plotly.graph_objects as go

    page = report(make_run(full_run(30)))
    figures = page.figures
    assert set(figures) == {"loss", "lr", "grad", "throughput", "memory", "phases"}
    train, _, held_out = figures["loss"]["data"]
    assert train["x"] == list(range(1, 31))
    assert train["y"] == pytest.approx([3.0 - 0.01 * step for step in range(1, 31)])
    assert (held_out["x"], held_out["y"]) == ([0, 15, 30], [2.5, 2.2, 2.0])
    assert [trace["y"][0] for trace in figures["memory"]["data"]] == [2.0, 3.0]
    assert figures["throughput"]["data"][1]["y"] == [515.5, 515.5]
    drawn = {attributes["data-figure"] for _, attributes in page.tags if "data-figure" in attributes}
    assert drawn == set(figures)
    for figure in figures.values():  # raises on an unknown key or value; roles stand for colours
        go.Figure(json.loads(re.sub(r'"--[a-z0-9-]+"', '"#123456"', json.dumps(figure))))


def test_every_colour_role_of_a_figure_is_in_both_themes(make_run: MakeRun) -> None:
    folder = make_run(
        [step_line(s, memory_bytes=[2**30] * 8, phases_s={**PHASES_S, "mine": 0.01}) for s in range(1, 4)]
    )
    html = write_report(folder).read_text(encoding="utf-8")
    roles = set(re.findall(r'"(--[a-z0-9-]+)"', Page(html).scripts["figures"]))
    roles |= set(re.findall(r"--c: var\((--[a-z0-9-]+)\)", html))
    style = html[html.index("<style>") : html.index("</style>")]
    assert {"--train", "--phase-extra", "--rank-7"} <= roles
    for role in roles:
        assert len(re.findall(rf"{role}: #[0-9a-f]{{6}};", style)) == 3, role  # light, dark by system, dark by choice


def test_the_page_loads_nothing_from_anywhere(make_run: MakeRun) -> None:
    from plotly.offline import get_plotlyjs

    folder = make_run(full_run(5))
    (folder / "model").mkdir()
    (folder / "tb").mkdir()
    html = write_report(folder).read_text(encoding="utf-8")
    page = Page(html)
    library = get_plotlyjs()
    assert html.count(library) == 1
    assert "://" not in html.replace(library, "")
    assert not re.search(r"url\(|@import", html.replace(library, ""))
    for tag, attributes in page.tags:
        assert tag not in {"iframe", "img", "object", "embed", "base", "form"}
        assert "src" not in attributes
        if attributes.get("href") is not None:
            assert attributes["href"] in {"data:,", "config.yaml", "run.json", "metrics.jsonl", "model/", "tb/"}
    # What the library could ask for itself, it may not: the browser enforces it.
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert "connect-src" not in policy


def test_what_a_run_wrote_stays_text(make_run: MakeRun) -> None:
    folder = make_run(full_run(3))
    clean_tags = [tag for tag, _ in report(folder).tags]
    hostile = {
        **INFO,
        "name": HOSTILE,
        "hosts": [HOSTILE],
        "device": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "plugins": [{"name": HOSTILE, "distribution": HOSTILE, "version": HOSTILE, "state": HOSTILE}],
        "model": {"name": HOSTILE, "architecture": HOSTILE, "dtype": HOSTILE},
        "data": {"source": HOSTILE},
        "status": "failed",
        "error": {"rank": HOSTILE, "type": HOSTILE, "message": HOSTILE, "traceback": HOSTILE},
    }
    (folder / "run.json").write_text(json.dumps(hostile), encoding="utf-8")
    (folder / "config.yaml").write_text(
        json.dumps({HOSTILE: {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE}]}}), encoding="utf-8"
    )
    lines = [step_line(step, phases_s={HOSTILE: 0.5, "forward": 1.0}) for step in range(1, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    page = report(folder)
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == clean_tags.count("script")
    assert "img" not in tags
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert page.text.count("<img src=x onerror=alert(2)>") >= 14
    assert HOSTILE in {trace["name"] for trace in page.figures["phases"]["data"]}


def test_a_run_that_failed_before_its_first_step_says_why(make_run: MakeRun) -> None:
    page = report(make_run([], status="failed", evaluation={}, error="model.name: no folder 'x'"))
    assert "The run failed before its first step ended" in page.text
    assert "model.name: no folder 'x'" in page.text
    assert "not measured" in page.text
    assert "No training step was recorded." in page.text
    assert page.figures == {}
    assert "plotly" not in page.scripts  # nothing to draw: the page is small


def test_a_failure_names_rank_step_and_traceback(make_run: MakeRun) -> None:
    error = {"rank": 1, "type": "ValueError", "message": "bad batch", "traceback": "File loop.py, line 3"}
    lines = [step_line(step) for step in range(1, 8)]
    page = report(make_run(lines, status="failed", evaluation={"before": {"loss": 2.5}}, error=error))
    assert "The run failed after step 7 on rank 1" in page.text
    assert "ValueError: bad batch" in page.text
    assert "File loop.py, line 3" in page.text
    assert "2.500 before training; perplexity 12.2 not measured after training" in page.text.replace(
        "12.2not", "12.2 not"
    )


def test_the_last_evaluation_of_a_run_that_failed_is_not_passed_off_as_its_result(make_run: MakeRun) -> None:
    page = report(make_run(full_run(7), status="failed", evaluation={"before": {"loss": 2.5}}))
    assert "2.500 → 2.200" in page.text
    assert "last measured after step 3" in page.text


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "NaN"])
def test_a_loss_that_is_not_finite_is_shown_plainly(make_run: MakeRun, bad: object) -> None:
    lines = [step_line(step, loss=bad if step in (4, 5) else 2.0, skipped=step in (4, 5)) for step in range(1, 9)]
    page = report(make_run(lines, evaluation={"before": {"loss": 2.5}, "after": {"loss": bad}}))
    assert "The training loss is NaN or infinite at 2 of 8 steps, the first of them step 4." in page.text
    assert "The update was skipped at 2 of 8 steps, the first of them step 4" in page.text
    assert page.row("4")[1] in {"NaN", "∞"}
    traces = page.figures["loss"]["data"]
    assert traces[0]["y"][3:5] == [None, None]
    assert next(trace for trace in traces if trace["mode"] == "markers")["x"] == [4, 5]


def test_one_step_without_evaluation_is_a_page_too(make_run: MakeRun) -> None:
    page = report(make_run([step_line(1)], evaluation={}, world_size=1))
    assert "Training loss: 2.990 at the only step." in page.text
    assert page.figures["loss"]["data"][0]["mode"] == "lines+markers"
    assert "1 rank on cpu" in page.text


def test_thousands_of_steps_are_thinned_without_losing_a_spike(make_run: MakeRun) -> None:
    lines = [step_line(step, loss=9.0 if step == 2718 else 2.0, memory_bytes=[2**30] * 64) for step in range(1, 5001)]
    folder = make_run(lines, world_size=64)
    page = report(folder)
    loss = page.figures["loss"]["data"][0]
    assert len(loss["x"]) <= 1300
    assert loss["y"][loss["x"].index(2718)] == 9.0
    assert (loss["x"][0], loss["x"][-1]) == (1, 5000)
    assert [trace["name"] for trace in page.figures["memory"]["data"]] == ["highest rank", "median rank", "lowest rank"]
    assert len(page.figures["phases"]["data"][0]["x"]) <= 120
    assert "of 5,000 steps are listed" in page.text
    assert page.row("5,000")[0] == "5,000"
    assert (folder / "report.html").stat().st_size < 7_000_000


def test_damaged_files_are_named_on_the_page_and_the_rest_is_shown(make_run: MakeRun) -> None:
    folder = make_run(full_run(4), config="train: [")
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('7\n{"step": 5, "lo')
    (folder / "run.json").write_text('{"name": "dem', encoding="utf-8")
    page = report(folder)
    assert "run.json cannot be parsed" in page.text
    assert "config.yaml cannot be parsed" in page.text
    assert "metrics.jsonl: 2 lines could not be parsed and are left out." in page.text
    assert "under way or was killed; its last step here is 4" in page.text
    assert page.row("4")[1] == "2.960"


def test_a_missing_metrics_file_is_said(make_run: MakeRun) -> None:
    folder = make_run([], status="running")
    (folder / "metrics.jsonl").unlink()
    assert "metrics.jsonl is missing." in report(folder).text


def test_values_of_other_types_than_expected_do_not_break_the_page(make_run: MakeRun) -> None:
    lines = [{"step": 1, "loss": [1], "phases_s": 3, "memory_bytes": "x"}, {"step": "2", "loss": True}, {"step": 3}]
    broken = {
        "model": 3,
        "data": [],
        "plugins": {"a": 1},
        "versions": None,
        "hosts": "node",
        "started": 5,
        "evaluation": "x",
    }
    page = report(make_run(lines, world_size="two", **broken))
    assert page.figures == {}
    assert page.row("Hosts") == ["Hosts", "node"]


def test_the_page_is_structured_for_a_screen_reader(make_run: MakeRun) -> None:
    page = report(make_run(full_run(20)))
    tags = [tag for tag, _ in page.tags]
    assert tags.count("h1") == tags.count("main") == 1
    assert next(a for tag, a in page.tags if tag == "html")["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids
        if "data-figure" in attributes:
            assert attributes["role"] == "img"
            assert len(attributes["aria-label"] or "") > 30


def test_the_command_to_run_again_survives_a_shell(tmp_path: Path, make_run: MakeRun) -> None:
    folder = make_run(full_run(2)).rename(tmp_path / "my run's")
    page = report(folder)
    command = re.search(r"hp train .* -n 2", page.text)
    assert command is not None
    assert shlex.split(command[0]) == ["hp", "train", str(folder / "config.yaml"), "-n", "2"]


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e-9, 1e9, 1e30, 1e300])
def test_numbers_of_any_size_make_a_page(make_run: MakeRun, size: float) -> None:
    lines = [
        step_line(step, loss=size * step, lr=size / step, grad_norm=size * step**3, tokens_per_s=size, step_s=size)
        for step in range(1, 9)
    ]
    page = report(make_run(lines, evaluation={"before": {"loss": size}, "after": {"loss": -size}}, train_s=size))
    assert "lr" in page.figures
    assert len(page.text) < 20_000
