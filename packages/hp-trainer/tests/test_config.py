# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hp_core.errors import ConfigError
from hp_trainer.command import parse
from hp_trainer.config import TrainConfig, dump_yaml, load_config, to_config
from hp_trainer.config.keys import all_keys
from hp_trainer.config.listing import help_text


def write(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path):
    path = write(tmp_path, "train:\n  steps: 7\n  lr: 1e-3\nrun:\n")
    config = load_config(path, [("train.steps", "9"), ("run.name", "007")])
    assert (config.train.steps, config.train.lr, config.run.name) == (9, 1e-3, "007")
    assert config.train.accumulation == TrainConfig().train.accumulation


def test_the_resolved_configuration_reads_back_equal(tmp_path):
    options = [("train.betas", "[0.8, 0.9]"), ("model.config", "{model_type: llama}"), ("data.max_bytes", "null")]
    config = load_config(None, options)
    assert load_config(write(tmp_path, dump_yaml(config))) == config


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(min_size=1), plain, max_size=4))
def test_any_plain_model_config_reads_back_equal(tmp_path, values):
    config = to_config({"model": {"config": {**values, "model_type": "llama"}}})
    assert load_config(write(tmp_path, dump_yaml(config))) == config


def test_anchors_and_merges_are_taken_but_not_those_that_make_millions_of_values(tmp_path):
    merged = "train: &base {steps: 3, lr: 0.1}\nmodel: {config: {<<: *base, model_type: llama, lr: 1}}\n"
    assert load_config(write(tmp_path, merged)).model.config == {"steps": 3, "lr": 1, "model_type": "llama"}
    lines = "".join(f", x{i + 1}: &x{i + 1} [{', '.join([f'*x{i}'] * 10)}]" for i in range(9))
    with pytest.raises(ConfigError, match=r"model\.config: more than 100,000 values"):
        load_config(write(tmp_path, f"model: {{config: {{model_type: llama, x0: &x0 [1]{lines}}}}}"))


def test_parts_of_the_model_config_can_be_given_one_by_one():
    options = [
        ("model.config.model_type", "llama"),
        ("model.config.hidden_size", "64"),
        ("model.config.rms_norm_eps", "1e-5"),
    ]
    assert load_config(None, options).model.config == {"model_type": "llama", "hidden_size": 64, "rms_norm_eps": 1e-5}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([("train.stesp", "3")], "unknown key 'train.stesp'; did you mean 'train.steps'"),
        ([("lr", "3")], "unknown key 'lr'; did you mean 'train.lr'?"),
        ([("stesp", "3")], "unknown key 'stesp'; did you mean 'train.steps'?"),
        ([("steps.train", "3")], "unknown key 'steps.train'; the sections are run, model, data"),
        ([("train.steps", "many")], "train.steps: given 'many', expected integer"),
        ([("train.steps", "2.5")], "train.steps: given 2.5, expected integer"),
        ([("train.steps", "0")], "train.steps: given 0, expected integer: input should be greater than or equal to 1"),
        ([("train.lr", "fast")], "train.lr: given 'fast', expected number"),
        ([("train.lr", ".nan")], "train.lr: given nan, expected number"),
        ([("train.precision", "fp8")], "train.precision: given 'fp8', expected fp32|bf16"),
        ([("train.betas", "[0.9]")], "expected list of 2 numbers"),
        ([("train.min_lr", "1")], "train.min_lr (1) is larger than train.lr (0.0001)"),
        ([("train.steps", None)], "--train.steps needs a value (integer)"),
        ([("model.config.hidden_size", "64")], "model.config: needs the key 'model_type'"),
        ([("run.callbacks", "progress")], "run.callbacks: given 'progress', expected list of names"),
        ([("run.name", "../evil")], "run.name: '../evil' is not one component of a path"),
        ([("run.name", "..")], "run.name: '..' is not one component of a path"),
        ([("run.deterministic", "perhaps")], "run.deterministic: given 'perhaps', expected true|false"),
        ([("train.steps", "true")], "train.steps: given True, expected integer: true and false are no numbers"),
        ([("data.max_bytes", "no")], "data.max_bytes: given False, expected integer or null: true and false are no"),
        ([("train.betas", "[0.9, true]")], "train.betas: given [0.9, True], expected list of 2 numbers: true and"),
        ([("train.betas", "[" * 3000)], "train.betas: given '[[["),
        ([("model.config", "{a: 1, a: 2}")], "line 1: the key 'a' is given a second time"),
        ([("model.config.x", "{a: 1, a: 2}")], "--model.config.x: given '{a: 1, a: 2}': line 1: the key 'a'"),
        ([("model.config.x", "2026-01-01")], "model.config.x: given datetime.date(2026, 1, 1) (date), expected null"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_that_names_it(options, message):
    with pytest.raises(ConfigError) as caught:
        load_config(None, options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  stepz: 3\n", "unknown key 'train.stepz'; did you mean 'train.steps'"),
        ("trian:\n  steps: 3\n", "unknown key 'trian'; "),
        ("train: 3\n", "train: given 3, expected a mapping of keys"),
        ("- 1\n", "holds a list, expected a mapping of sections"),
        ("train: [\n", "is no YAML"),
        ("run:\n  name: 3\n", "run.name: given 3, expected text"),
        ("train: {steps: 3}\ntrain: {lr: 1}\n", ": line 2: the key 'train' is given a second time, first in line 1;"),
        ("train:\n  steps: 3\n  lr: 1\n  'steps': 4\n", ": line 4: the key 'steps' is given a second time, first in l"),
        ("[" * 3000, "it is nested too deep"),
        ("{a: " * 3000, "it is nested too deep"),
        ("train: {steps: true}", "train.steps: given True, expected integer: true and false are no numbers"),
        ("train.steps: 3\n", "key 'train.steps' has dots, which only options have: nest it as train: {steps: …}"),
        ("model: {config.hidden_size: 3}\n", "nest it as model: {config: {hidden_size: …}}"),
        ("train.stesp: 3\n", "unknown key 'train.stesp'; did you mean 'train.steps'"),
        ("3: 4\n", "unknown key '3'; the sections are run, model"),
        ("run: {seed: 2026-02-31}\n", "a value cannot be read: day is out of range for month"),
        ("x: *nowhere\n", ": line 1 is no YAML: found undefined alias 'nowhere'"),
        ("a\0b", "it is no YAML: unacceptable character #x0000"),
        ("&a {train: *a}\n", "unknown key 'train.train'"),
        (
            "model: {config: &a {model_type: llama, x: *a}}\n",
            "model.config: nested deeper than 50 levels, or an anchor",
        ),
        ("model: {config: {model_type: llama, x: 2026-01-01}}\n", "model.config.x: given datetime.date(2026, 1, 1)"),
        (
            "model: {config: {model_type: llama, x: [!!set {a}]}}\n",
            "model.config.x.0: given {'a'} (set), expected null",
        ),
        ("model: {config: {model_type: llama, x: !!binary aGk=}}\n", "model.config.x: given b'hi' (bytes), expected"),
        (
            "model: {config: {model_type: llama, x: {2026-01-01: y}}}\n",
            "model.config.x: given the key datetime.date(20",
        ),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        load_config("nowhere.yaml")


def test_a_mapping_a_path_and_a_config_are_all_taken(tmp_path):
    path = write(tmp_path, "train: {steps: 3}\n")
    assert to_config({"train": {"steps": 3}}) == to_config(path) == to_config(str(path)) == to_config(to_config(path))


def test_the_help_lists_every_key_with_default_and_description():
    text = help_text(100)
    for key in all_keys().values():
        assert f"--{key.name}" in text
        assert key.description, f"{key.name} has no description"
    assert max(map(len, text.splitlines())) <= 130
    assert "default 0.0001" in text


def test_the_list_of_keys_is_frozen():
    # A new key is a decision: add it here, to docs/training.md, and make it do something.
    keys: dict[str, list[str]] = {}
    for name in all_keys():
        section, _, key = name.partition(".")
        keys.setdefault(section, []).append(key)
    assert {section: " ".join(names) for section, names in keys.items()} == {
        "run": "name output_dir seed deterministic device callbacks",
        "model": "name config tokenizer",
        "data": "path pattern max_bytes seq_len heldout cache_dir",
        "train": "steps micro_batch_size accumulation lr min_lr warmup_steps weight_decay betas eps clip_norm "
        "nonfinite precision",
        "eval": "batches every",
        "parallel": "bucket_bytes",
        "launch": "ranks timeout_s threads",
    }


def test_the_command_line_is_taken_apart():
    line = parse(
        ["my.yaml", "-n", "2", "--train.steps", "10", "--train.lr=1e-4", "--run.deterministic", "--eval.every", "-1"]
    )
    assert line.config == "my.yaml"
    assert line.options == [
        ("launch.ranks", "2"),
        ("train.steps", "10"),
        ("train.lr", "1e-4"),
        ("run.deterministic", None),
        ("eval.every", "-1"),
    ]
    assert parse(["-n4"]).options == parse(["--ranks=4"]).options == [("launch.ranks", "4")]
    assert parse(["--help"]).wants_help
    with pytest.raises(ConfigError, match="unknown option '-x'"):
        parse(["-x"])
    with pytest.raises(ConfigError, match="two configuration files"):
        parse(["a.yaml", "b.yaml"])
