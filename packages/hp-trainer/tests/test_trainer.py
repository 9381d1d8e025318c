# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import hp_core.comm as comm
from hp_core.errors import ConfigError
from hp_core.testing import RankError, ranks
from hp_trainer import LLMTrainer
from hp_trainer.callbacks import Callback
from hp_trainer.config import to_config
from hp_trainer.models import ModelError, build_model, load_tokenizer, model_folder
from hp_trainer.optimizer import build_optimizer, learning_rate
from hp_trainer.run import TrainingError, mark_failed


class Recorder(Callback):
    def __init__(self):
        self.events = []
        self.steps = []

    def on_train_begin(self, run):
        self.events.append("begin")

    def on_step_end(self, run, step_metrics):
        self.events.append("step")
        self.steps.append(dict(step_metrics))

    def on_evaluation(self, run, result):
        self.events.append(f"evaluation {result['step']}")

    def on_train_end(self, run):
        self.events.append("end")

    def on_exception(self, run, exc):
        self.events.append(type(exc).__name__)


def _train(config):
    recorder = Recorder()
    trainer = LLMTrainer(config, callbacks=[recorder])
    info = trainer.train()
    weights = {name: parameter.detach().clone() for name, parameter in trainer.module.named_parameters()}
    return info, recorder, weights


def test_a_run_leaves_a_complete_folder_and_the_held_out_loss_falls(tiny_run, tmp_path):
    tiny_run["train"]["steps"] = 8
    [(info, recorder, weights)] = ranks(1).run(_train, tiny_run)
    folder = tmp_path / "runs" / "tiny"
    assert info == json.loads((folder / "run.json").read_text())
    assert info["status"] == "done"
    assert info["evaluation"]["after"]["loss"] < info["evaluation"]["before"]["loss"] - 0.3
    assert abs(info["evaluation"]["before"]["loss"] - math.log(257)) < 0.2
    assert info["data"]["num_files"] == 8
    assert recorder.events == ["begin", "evaluation 0", *["step"] * 8, "evaluation 8", "end"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert steps == recorder.steps
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert set(steps[0]["phases_s"]) == {"data", "forward", "backward", "communication", "optimizer"}
    assert sum(steps[3]["phases_s"].values()) <= steps[3]["step_s"]
    assert len(steps[0]["memory_bytes"]) == 1
    assert [line["step"] for line in lines if "eval_loss" in line] == [0, 8]
    assert f"{info['evaluation']['after']['loss']:.2f}" in (folder / "report.html").read_text(encoding="utf-8")
    assert list((folder / "tb").glob("events.out.tfevents.*"))
    assert to_config(folder / "config.yaml") == to_config(tiny_run)

    # The exported folder is an ordinary Hugging Face model with the weights of the last step.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    exported = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert all(torch.equal(parameter, weights[name]) for name, parameter in exported.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert tokenizer.decode(tokenizer("naïve fox")["input_ids"]) == "naïve fox"


def test_two_deterministic_runs_are_bitwise_equal(tiny_run):
    tiny_run["run"]["deterministic"] = True
    tiny_run["model"]["config"]["attention_dropout"] = 0.1
    first, second = (ranks(2).run(_train, tiny_run) for _ in range(2))
    for (_, recorder, weights), (_, other_recorder, other_weights) in zip(first, second, strict=True):
        assert [step["loss"] for step in recorder.steps] == [step["loss"] for step in other_recorder.steps]
        assert [step["grad_norm"] for step in recorder.steps] == [step["grad_norm"] for step in other_recorder.steps]
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    # The ranks of one run hold the same weights, and another seed gives others.
    assert all(torch.equal(first[0][2][name], first[1][2][name]) for name in first[0][2])
    tiny_run["run"]["seed"] = 1
    other = ranks(2).run(_train, tiny_run)
    assert other[0][1].steps[0]["loss"] != first[0][1].steps[0]["loss"]


def test_two_ranks_train_as_one_rank_with_twice_the_micro_batch(tiny_run):
    # The last sample of the epoch is short: counts of targets differ between ranks at some step.
    tiny_run["train"].update(steps=8, lr=1e-3)
    two = ranks(2).run(_train, tiny_run)
    tiny_run["train"]["micro_batch_size"] *= 2
    tiny_run["eval"]["batches"] //= 2
    [one] = ranks(1).run(_train, tiny_run)
    for mine, theirs in zip(two[0][1].steps, one[1].steps, strict=True):
        assert mine["tokens"] == theirs["tokens"]
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=2e-6)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5)
        assert len(mine["memory_bytes"]) == 2
    for name, weight in two[0][2].items():
        torch.testing.assert_close(weight, one[2][name], atol=2e-5, rtol=0)
    for when in ("before", "after"):
        assert two[0][0]["evaluation"][when]["num_tokens"] == one[0]["evaluation"][when]["num_tokens"]
        assert two[0][0]["evaluation"][when]["loss"] == pytest.approx(one[0]["evaluation"][when]["loss"], abs=1e-5)


def test_bfloat16_computes_near_fp32_over_fp32_weights(tiny_run):
    [full] = ranks(1).run(_train, tiny_run)
    tiny_run["train"]["precision"] = "bf16"
    [half] = ranks(1).run(_train, tiny_run)
    losses = [[step["loss"] for step in side[1].steps] for side in (full, half)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)
    assert {weight.dtype for weight in half[2].values()} == {torch.float32}


class Poison(Callback):
    """Makes the weights of one rank NaN after the first step."""

    def on_step_end(self, run, step_metrics):
        if run.rank == 1 and run.step == 1:
            with torch.no_grad():
                self.module.lm_head.weight[0] = float("nan")


def _train_poisoned(config):
    poison = Poison()
    trainer = LLMTrainer(config, callbacks=[poison])
    original = trainer._loop

    def loop(step, heldout, callbacks):
        poison.module = step.parallel.module
        original(step, heldout, callbacks)

    trainer._loop = loop
    try:
        return trainer.train()
    except TrainingError as error:
        return str(error)


def test_a_gradient_that_is_not_finite_stops_all_ranks_and_names_step_and_rank(tiny_run, tmp_path):
    for message in ranks(2).run(_train_poisoned, tiny_run):
        assert "step 2: the gradient norm is nan; the loss of rank 1 was nan" in message
    info = json.loads((tmp_path / "runs" / "tiny" / "run.json").read_text())
    assert info["status"] == "failed"
    assert (info["error"]["type"], info["error"]["rank"]) == ("TrainingError", 0)
    assert "the loss of rank 1 was nan" in info["error"]["message"]
    assert "traceback" not in info["error"]
    assert (tmp_path / "runs" / "tiny" / "report.html").exists()


def test_such_steps_can_be_skipped(tiny_run, tmp_path):
    tiny_run["train"].update(nonfinite="skip", steps=3)
    tiny_run["eval"]["batches"] = 0
    ranks(2).run(_train_poisoned, tiny_run)
    lines = [json.loads(line) for line in (tmp_path / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("skipped", False) for line in lines] == [False, True, True]
    assert lines[1]["loss"] is None


class Interrupt(Callback):
    def on_step_end(self, run, step_metrics):
        if run.step == 2:
            raise KeyboardInterrupt


def test_an_interrupted_run_says_so_and_keeps_its_metrics(tiny_run, tmp_path):
    recorder = Recorder()
    with pytest.raises(KeyboardInterrupt):
        LLMTrainer(tiny_run, callbacks=[recorder, Interrupt()]).train()
    comm.shutdown()
    folder = tmp_path / "runs" / "tiny"
    info = json.loads((folder / "run.json").read_text())
    assert (info["status"], info["error"]) == ("failed", {"message": "interrupted"})
    assert recorder.events[-1] == "KeyboardInterrupt"
    assert len([line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]) == 2
    assert (folder / "report.html").exists()


class FullDisk(Callback):
    def on_step_end(self, run, step_metrics):
        with open("/dev/full", "w") as file:
            file.write("metrics")


def test_a_disk_that_fills_up_during_the_run_is_one_line(tiny_run):
    with pytest.raises(TrainingError, match=r"cannot write to .*tiny: No space left on device; free some space"):
        LLMTrainer(tiny_run, callbacks=[FullDisk()]).train()
    comm.shutdown()


def test_an_earlier_run_of_the_same_name_is_kept_aside_and_a_stranger_is_not_touched(tiny_run, tmp_path):
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="exists and is no run folder"):
        LLMTrainer(tiny_run).train()
    comm.shutdown()
    assert (folder / "thesis.txt").read_text() == "mine"
    (folder / "run.json").write_text("{}")
    tiny_run["train"]["steps"] = 1
    LLMTrainer(tiny_run).train()
    assert (tmp_path / "runs" / "tiny.1" / "thesis.txt").read_text() == "mine"
    assert json.loads((folder / "run.json").read_text())["status"] == "done"


def test_a_run_whose_rank_0_was_killed_is_marked_failed_afterwards_and_an_earlier_one_is_left_alone(tmp_path):
    before, start, after = (f"2026-01-01T00:00:0{second}.000+00:00" for second in range(3))
    path = tmp_path / "run.json"
    assert not mark_failed(tmp_path, "killed", since=start)
    path.write_text(json.dumps({"status": "running", "started": before}))
    assert not mark_failed(tmp_path, "killed", since=start)
    assert json.loads(path.read_text())["status"] == "running"
    path.write_text(json.dumps({"status": "running", "started": after}))
    assert mark_failed(tmp_path, "killed", since=start)
    assert mark_failed(tmp_path, "again", since=start)
    assert json.loads(path.read_text())["error"] == {"message": "killed"}
    path.write_text(json.dumps({"status": "done", "started": after}))
    assert not mark_failed(tmp_path, "killed", since=start)


def _other_text(config):
    config["data"]["path"] = f"{config['data']['path']}{comm.rank()}"
    LLMTrainer(config).train()


def test_ranks_that_read_different_text_are_told(tiny_run, text_folder):
    for rank in range(2):
        folder = Path(f"{text_folder}{rank}")
        folder.mkdir()
        for number in range(4):
            (folder / f"{number}.txt").write_text(f"rank {rank} file {number}\n" * 20)
    with pytest.raises(RankError, match=r"rank 1 reads other text from .* than rank 0"):
        ranks(2).run(_other_text_with_own_leader, tiny_run)


def _other_text_with_own_leader(config):
    import os

    os.environ["LOCAL_RANK"] = "0"  # as on two hosts: each tokenises its own files
    _other_text(config)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "is neither a known model nor a folder"),
        ([], "has no config.json"),
        (["config.json"], r"has a config.json but no weights \(\*.safetensors\)"),
    ],
)
def test_a_model_folder_that_is_none_is_one_line(tmp_path, files, message):
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name in files:
            (folder / name).write_text("{}")
    with pytest.raises(ModelError, match=message) as caught:
        model_folder(to_config({"model": {"name": str(folder)}}), leader=True)
    assert "\n" not in str(caught.value)


def test_a_mistyped_model_name_gets_near_matches():
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        model_folder(to_config({"model": {"name": "smollm-135m"}}), leader=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "lama"}, "has no model type 'lama'; did you mean 'llama'"),
        ({"model_type": "llama", "hiden_size": 32}, "llama has no setting 'hiden_size'; did you mean 'hidden_size'"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}, "model.config: llama cannot be built"),
        ({"model_type": "llama", "hidden_size": "big"}, "model.config: llama cannot be built"),
        (
            {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 3},
            r"The hidden size \(32\) is not a multiple of the number of attention heads \(3\)",
        ),
        (
            {"model_type": "llama", "hidden_size": 32, "max_position_embeddings": 255},
            r"data\.seq_len: 256 is more than the 255 positions of the model; set data\.seq_len to 255 or less",
        ),
        (
            {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 100},
            "has 100 entries but the tokenizer 257",
        ),
    ],
)
def test_a_wrong_random_model_is_one_line(settings, message):
    with pytest.raises(ModelError, match=message) as caught:
        build_model(to_config({"model": {"config": settings}}), None, 257)
    assert "\n" not in str(caught.value)


def test_a_local_folder_is_loaded_and_incomplete_weights_are_refused(tiny_run, tmp_path):
    parts = build_model(to_config(tiny_run), None, 257)
    folder = tmp_path / "local"
    parts.module.save_pretrained(folder)
    config = to_config({"model": {"name": str(folder)}, "data": {"seq_len": 32}})
    with pytest.raises(ModelError, match=r"has no tokenizer \(tokenizer.json\)"):
        load_tokenizer(config, folder)
    load_tokenizer(to_config(tiny_run), None).save_pretrained(folder)
    assert model_folder(config, leader=True) == folder
    again = build_model(config, folder, len(load_tokenizer(config, folder)))
    assert all(torch.equal(a, b) for a, b in zip(parts.module.parameters(), again.module.parameters(), strict=True))
    settings = json.loads((folder / "config.json").read_text())
    settings["num_hidden_layers"] += 1
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match=r"lack 9 parameters of config\.json"):
        build_model(config, folder, 257)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"local cannot be loaded: Error while deserializing header"):
        build_model(config, folder, 257)


def test_the_schedule_warms_up_and_ends_at_the_minimum():
    config = to_config({"train": {"steps": 10, "lr": 1.0, "min_lr": 0.1, "warmup_steps": 3}}).train
    rates = [learning_rate(step, config) for step in range(10)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)
    short = to_config({"train": {"steps": 1, "warmup_steps": 5}}).train
    assert learning_rate(0, short) == short.lr


def test_weight_decay_spares_norms_and_biases():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    module[0].weight.requires_grad_(True)
    optimizer = build_optimizer(module, to_config({}).train)
    decayed, spared = optimizer.param_groups
    assert [tuple(parameter.shape) for parameter in decayed["params"]] == [(3, 3)]
    assert decayed["weight_decay"] == 0.01
    assert len(spared["params"]) == 3
    assert spared["weight_decay"] == 0.0
