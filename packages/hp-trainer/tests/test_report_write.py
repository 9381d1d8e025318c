# SPDX-License-Identifier: Apache-2.0
"""Where the report goes, and ``hp report``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hp_core.errors import HPError
from hp_trainer.report import ReportError, write_report
from hp_trainer.report.command import add_report_command


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"name": "demo", "status": "done"}', encoding="utf-8")
    return folder


def test_what_is_no_run_folder_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"nowhere is not a folder; give the folder of a run"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(HPError, match=r"holds neither run\.json nor metrics\.jsonl; give the folder of a run"):
        write_report(tmp_path)


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_the_old_one(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_folder / "report.html").write_text("old", encoding="utf-8")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(ReportError, match=r"report\.html cannot be written: No space left on device; free space"):
        write_report(run_folder)
    assert (run_folder / "report.html").read_text(encoding="utf-8") == "old"
    assert not list(run_folder.glob(".report*"))


def test_a_name_that_is_no_utf8_does_not_keep_the_page_from_being_written(run_folder: Path) -> None:
    (run_folder / "run.json").write_text(json.dumps({"data": {"source": os.fsdecode(b"texts-\xff")}}))
    assert "texts-?" in write_report(run_folder).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &a {x: *a}", "config.yaml: nested deeper than 50 levels, or an anchor that holds itself"),
        ("a: 1\na: 2", "config.yaml cannot be parsed: line 2: the key &#39;a&#39; is given a second time"),
        ("[" * 3000, "config.yaml cannot be parsed: it is nested too deep"),
        ("a: !!int ''", "config.yaml cannot be parsed: a value cannot be read"),
    ],
)
def test_a_configuration_that_is_none_is_said_and_left_out(run_folder: Path, text: str, problem: str) -> None:
    (run_folder / "config.yaml").write_text(text)
    assert problem in write_report(run_folder).read_text(encoding="utf-8")


def test_the_command_writes_the_page_and_prints_its_path(run_folder: Path) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_report_command(app)
    result = CliRunner().invoke(app, ["report", str(run_folder)])
    assert (result.exit_code, result.output.strip()) == (0, str(run_folder / "report.html"))
    assert (run_folder / "report.html").is_file()
