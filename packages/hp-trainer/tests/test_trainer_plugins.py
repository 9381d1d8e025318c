# SPDX-License-Identifier: Apache-2.0
"""What plugins hear of a run."""

from __future__ import annotations

import json

import pytest

import hp_core.comm as comm
from hp_core.plugins import hookimpl, manager
from hp_core.testing import ranks
from hp_trainer import LLMTrainer
from hp_trainer.callbacks import Callback


class FaultListener:
    """A plugin that hears of faults, and fails at it."""

    def __init__(self):
        self.heard = []

    @hookimpl
    def hp_fault(self, exc, rank, step):
        self.heard.append((type(exc).__name__, rank, step))
        raise RuntimeError("the listener itself is broken")

    @hookimpl
    def hp_report_lines(self):
        return [("store", "reachable")]


class Fail(Callback):
    def on_step_end(self, run, step_metrics):
        if run.step == 2:
            raise ArithmeticError("first failure")


def test_plugins_hear_of_a_fault_and_cannot_hide_it(tiny_run, tmp_path):
    listener = FaultListener()
    manager().register(listener)
    try:
        with pytest.raises(ArithmeticError, match="first failure"):
            LLMTrainer(tiny_run, callbacks=[Fail()]).train()
    finally:
        manager().unregister(listener)
        comm.shutdown()
    assert listener.heard == [("ArithmeticError", 0, 2)]
    info = json.loads((tmp_path / "runs" / "tiny" / "run.json").read_text())
    assert info["error"].pop("traceback").endswith("ArithmeticError: first failure")
    assert info["error"] == {"message": "first failure", "rank": 0, "type": "ArithmeticError"}
    page = (tmp_path / "runs" / "tiny" / "report.html").read_text(encoding="utf-8")
    assert "ArithmeticError: first failure" in page
    assert "in on_step_end" in page
    assert info["environment"]["store"] == "reachable"


class Watcher:
    """A plugin that says on which rank and when each of its hooks was called."""

    def __init__(self):
        self.calls = []

    @hookimpl
    def hp_module_transformed(self, module, transform, mesh):
        self.calls.append((transform, type(module).__name__, mesh.mesh_dim_names))

    @hookimpl
    def hp_report_lines(self):
        self.calls.append("report lines")
        raise OSError("store unreachable")

    def on_train_begin(self, run):
        self.calls.append("begin")

    def on_train_end(self, run):
        self.calls.append("end")


def _train_watched(config):
    watcher = Watcher()
    manager().register(watcher)
    try:
        LLMTrainer(config, callbacks=[watcher]).train()
    finally:
        manager().unregister(watcher)
    return watcher.calls


def test_plugins_see_the_module_on_all_ranks_and_add_to_the_report_on_rank_0_at_the_end(tiny_run, tmp_path):
    transformed = ("data_parallel", "LlamaForCausalLM", ("dp",))
    first, other = ranks(2).run(_train_watched, tiny_run)
    assert first == [transformed, "begin", "end", "report lines"]
    assert other == [transformed, "begin", "end"]
    info = json.loads((tmp_path / "runs" / "tiny" / "run.json").read_text())
    assert info["status"] == "done"
    assert "store unreachable" in info["environment"]["hp_report_lines"]
