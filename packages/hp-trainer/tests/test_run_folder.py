# SPDX-License-Identifier: Apache-2.0
"""What becomes of an earlier run's folder when the next one of its name fails before its first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hp_core.comm as comm
from hp_trainer import LLMTrainer
from hp_trainer.data import DataError


def _names(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "runs").iterdir() if not path.name.startswith("."))


def _status(tmp_path: Path) -> str:
    found: str = json.loads((tmp_path / "runs" / "tiny" / "run.json").read_text())["status"]
    return found


def _fail(config: dict[str, Any], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(exist_ok=True)
    with pytest.raises(DataError):
        LLMTrainer({**config, "data": {**config["data"], "path": str(empty)}}).train()
    comm.shutdown()


def test_a_good_run_stays_where_it_is_when_the_next_one_has_no_data(tiny_run, tmp_path):
    tiny_run["train"]["steps"] = 1
    LLMTrainer(tiny_run).train()
    before = (tmp_path / "runs" / "tiny" / "report.html").read_bytes()
    _fail(tiny_run, tmp_path)
    assert _names(tmp_path) == ["tiny"]
    assert _status(tmp_path) == "done"
    assert (tmp_path / "runs" / "tiny" / "report.html").read_bytes() == before
    LLMTrainer(tiny_run).train()
    assert _names(tmp_path) == ["tiny", "tiny.1"]


def test_of_runs_that_never_began_only_the_last_is_kept(tiny_run, tmp_path):
    _fail(tiny_run, tmp_path)
    assert _status(tmp_path) == "failed"
    _fail(tiny_run, tmp_path)
    tiny_run["train"]["steps"] = 1
    LLMTrainer(tiny_run).train()
    assert _names(tmp_path) == ["tiny"]
    assert _status(tmp_path) == "done"
