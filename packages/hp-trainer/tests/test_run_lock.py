# SPDX-License-Identifier: Apache-2.0
"""One run folder, one run: who comes second is told, and a run that was killed does not stay `running`."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys

import pytest
import typer
import yaml
from typer.testing import CliRunner

import hp_core.comm as comm
from hp_core.cli import main as hp
from hp_core.errors import ConfigError
from hp_trainer import LLMTrainer
from hp_trainer.callbacks import Callback
from hp_trainer.command import _complete_run_folder
from hp_trainer.config import to_config
from hp_trainer.report.command import add_report_command
from hp_trainer.run import Run, make_folder, mark_killed, now, run_folder, write_info
from hp_trainer.run_lock import RunLock

#: A process that starts a run in the folder and then waits for its end.
HOLD = """
import sys
from hp_trainer.config import to_config
from hp_trainer.run import Run, run_folder
config = to_config({"run": {"name": sys.argv[2], "output_dir": sys.argv[1]}})
run = Run(config, run_folder(config))
run.start()
print("holding", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Start a run in another process: ``hold()`` returns the process, which holds ``tmp_path/runs/tiny``."""
    started = []

    def start(name="tiny"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "runs"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "holding\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_run_in_a_folder_is_refused_and_touches_nothing(hold, tiny_run, tmp_path, capsys):
    holder = hold()
    folder = tmp_path / "runs" / "tiny"
    before = snapshot(folder)
    message = f"run folder {folder} is in use by pid {holder.pid}: choose another --run.name"
    with pytest.raises(ConfigError) as caught:
        LLMTrainer(tiny_run).train()
    comm.shutdown()
    assert str(caught.value) == message
    # With ranks to start, it is said before any is.
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_run), encoding="utf-8")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        hp(["train", str(path), "-n", "2"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    # Should the ranks be refused, the launcher leaves the other job's run alone.
    _complete_run_folder(to_config(tiny_run), 1, started="2000-01-01")
    assert snapshot(folder) == before
    assert not (tmp_path / "runs" / "tiny.1").exists()


class LookAtLock(Callback):
    def on_step_end(self, run, step_metrics):
        self.held = RunLock(run.dir).is_held()


def test_a_run_lets_go_of_its_folder_and_leaves_no_lock(tiny_run, tmp_path):
    look = LookAtLock()
    tiny_run["train"]["steps"] = 1
    LLMTrainer(tiny_run, callbacks=[look]).train()
    assert look.held
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny"]


def test_a_folder_that_is_no_run_gets_no_run_json_either(tiny_run, tmp_path):
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is no run folder"):
        LLMTrainer(tiny_run).train()
    comm.shutdown()
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny"]


def test_hp_report_says_of_a_killed_run_that_it_failed(hold, tmp_path):
    holder = hold()
    folder = tmp_path / "runs" / "tiny"
    assert not mark_killed(folder), "it is under way"
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    holder.kill()
    holder.wait()
    with (folder / "metrics.jsonl").open("w") as file:
        file.write(json.dumps({"step": 1, "loss": 2.5}) + "\n" + '{"step": 2, "lo')  # a line that was being written
    app = typer.Typer()
    app.callback()(lambda: None)
    add_report_command(app)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 0, result.output
    info = json.loads((folder / "run.json").read_text())
    assert info["status"] == "failed"
    assert info["error"]["message"].startswith(f"the process of rank 0 (pid {holder.pid}) ended without a word")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"the process of rank 0 (pid {holder.pid})" in page
    assert "metrics.jsonl: 1 line could not be parsed and is left out." in page


def test_the_next_run_sets_a_killed_one_aside_as_failed(hold, tmp_path):
    holder = hold()
    holder.kill()
    holder.wait()
    folder = tmp_path / "runs" / "tiny"
    lock = RunLock(folder)
    make_folder(folder, lock)
    lock.release()
    info = json.loads((tmp_path / "runs" / "tiny.1" / "run.json").read_text())
    assert (info["status"], "ended without a word" in info["error"]["message"]) == ("failed", True)
    assert list(folder.iterdir()) == []


def test_a_run_of_a_lock_that_names_nobody_is_left_as_it_is(tmp_path):
    write_info(tmp_path, {"status": "running", "started": now()})
    for text in ("", "garbage", "12", "12 some-other-host"):
        RunLock(tmp_path).path.write_text(text)
        assert not mark_killed(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "running"


def test_many_that_come_at_once_are_let_in_one_at_a_time(tmp_path):
    # Each takes the lock as often as it can, and counts in a file without any other protection.
    code = (
        "import sys; from pathlib import Path; from hp_core.errors import ConfigError\n"
        "from hp_trainer.run_lock import RunLock\n"
        "folder = Path(sys.argv[1]); lock = RunLock(folder / 'run'); count = folder / 'count'; done = 0\n"
        "while done < 50:\n"
        "    try: lock.acquire()\n"
        "    except ConfigError: continue\n"
        "    count.write_text(str(int(count.read_text()) + 1)); done += 1\n"
        "    lock.release()\n"
    )
    (tmp_path / "count").write_text("0")
    workers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "150"


def test_a_file_system_without_locks_is_warned_of(tmp_path, monkeypatch, capsys):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    config = to_config({"run": {"name": "tiny", "output_dir": str(tmp_path)}})
    run = Run(config, run_folder(config))
    run.start()
    run.close()
    assert "is on a file system without locks" in capsys.readouterr().err
    assert json.loads((tmp_path / "tiny" / "run.json").read_text())["status"] == "running"


def test_a_run_json_that_cannot_be_written_leaves_no_draft(tmp_path, monkeypatch):
    write_info(tmp_path, {"status": "running"})

    def full(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_info(tmp_path, {"status": "done"})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
