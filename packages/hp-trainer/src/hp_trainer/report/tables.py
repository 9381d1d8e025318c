# SPDX-License-Identifier: Apache-2.0
"""The tables of the report: rows of text from a run. Escaping is the template's."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hp_trainer.report import format as fmt
from hp_trainer.report import series
from hp_trainer.report.charts import phase_names, phase_role
from hp_trainer.report.data import RunData, mapping, moment, number

MAX_TABLE_ROWS = 500

PHASE_WORDS = {
    "data": "waiting for the next batch",
    "forward": "the model and the loss",
    "backward": "the gradients, and the communication hidden behind them",
    "communication": "waiting for other ranks and the network, where nothing hid it",
    "optimizer": "clipping and the update of the weights",
    "other": "the rest of the step: collecting its metrics from all ranks",
}


@dataclass(frozen=True)
class PhaseRow:
    """One phase over the whole run: its share of all step time, its total and its mean a step, as text."""

    name: str
    role: str
    share: float
    share_text: str
    total: str
    per_step: str
    words: str


def phase_rows(run: RunData) -> list[PhaseRow]:
    """Return a row a phase, ``other`` last; their shares add up to one. Empty where no phase was timed."""
    names = phase_names(run)
    if not names:
        return []
    totals = {name: math.fsum(step.phases_s.get(name, 0.0) for step in run.steps) for name in names}
    totals["other"] = math.fsum(step.other_s or 0.0 for step in run.steps)
    whole = math.fsum(totals.values())
    if whole <= 0:
        return []
    return [
        PhaseRow(
            name=name,
            role=phase_role(name),
            share=total / whole,
            share_text=fmt.percent(total / whole, 1),
            total=fmt.duration(total),
            per_step=fmt.duration(total / len(run.steps)),
            words=PHASE_WORDS.get(name, ""),
        )
        for name, total in totals.items()
    ]


def setting_rows(run: RunData) -> list[tuple[str, str]]:
    """Return where and on what the run ran: (what, value)."""
    model, data, info = run.section("model"), run.section("data"), run.info
    hosts = info.get("hosts")
    started, ended = moment(info.get("started")), moment(info.get("ended"))
    evaluated = number(mapping(run.section("evaluation").get("after")), "num_tokens") or number(
        mapping(run.section("evaluation").get("before")), "num_tokens"
    )
    rows: list[tuple[str, object]] = [
        ("Started", started and started.strftime("%Y-%m-%d %H:%M:%S %Z")),
        ("Ended", ended and ended.strftime("%Y-%m-%d %H:%M:%S %Z")),
        ("Hosts", ", ".join(map(str, hosts)) if isinstance(hosts, list) else hosts),
        ("Device", info.get("device")),
        ("Ranks", fmt.count(run.world_size)),
        ("Seed", info.get("seed")),
        ("Model", model.get("name")),
        ("Architecture", model.get("architecture")),
        ("Parameters", _given(fmt.count, number(model, "num_parameters"))),
        ("Compute type", model.get("dtype")),
        ("Data", data.get("source")),
        ("Files", _given(fmt.count, number(data, "num_files"))),
        ("Size", _given(fmt.bytes_, number(data, "num_bytes"))),
        ("Tokens to train on", _given(fmt.count, number(data, "num_tokens_train"))),
        ("Tokens held out", _given(fmt.count, number(data, "num_tokens_heldout"))),
        ("Tokens evaluated", _given(fmt.count, evaluated)),
    ]
    rows += run.section("environment").items()  # what plugins add: the hook hp_report_lines
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _given(write: Any, value: float | None) -> str | None:
    return None if value is None else str(write(value))


def config_rows(config: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the configuration as sections of (dotted key, value), the top level's own values first."""
    top: list[tuple[str, str]] = []
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            sections.append((key, _flat(value)))
        else:
            top.append((key, _value(value)))
    return ([("", top)] if top else []) + sections


def _flat(value: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            rows.extend(_flat(item, f"{prefix}{key}."))
        else:
            rows.append((f"{prefix}{key}", _value(item)))
    return rows


def _value(value: object) -> str:
    """Return a value as YAML would write it in a line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) + "}"
    return str(value)


def version_rows(run: RunData) -> list[tuple[str, str]]:
    """Return (package, version), our own packages first, then by name."""
    versions = run.section("versions")
    return sorted(
        ((name, str(version)) for name, version in versions.items()),
        key=lambda row: (row[0].lower() != "python", not row[0].startswith("hp"), row[0].lower()),
    )


def plugin_rows(run: RunData) -> list[dict[str, str]]:
    """Return the plugins that were installed: name, distribution, version, state."""
    plugins = run.info.get("plugins")
    return [
        {key: str(mapping(plugin).get(key) or fmt.MISSING) for key in ("name", "distribution", "version", "state")}
        for plugin in (plugins if isinstance(plugins, list) else [])
        if isinstance(plugin, Mapping)
    ]


@dataclass(frozen=True)
class StepTable:
    """Rows of the table of steps, as text, and how many steps there are in all."""

    rows: list[list[str]]
    num_steps: int


STEP_COLUMNS = (
    "Step",
    "Loss",
    "Held-out",
    "Learning rate",
    "Gradient norm",
    "Tokens",
    "Tokens/s",
    "Step time",
    "Memory",
)


def step_table(run: RunData) -> StepTable:
    """Return every step, or about ``MAX_TABLE_ROWS`` evenly chosen ones with the first, the last and the evaluated."""
    evaluated = {item.step: item.loss for item in run.evaluations}
    steps = {step.step: step for step in run.steps}
    chosen = (
        {run.steps[group[0]].step for group in series.buckets(len(run.steps), MAX_TABLE_ROWS)} if run.steps else set()
    )
    chosen |= {run.steps[-1].step} if run.steps else set()
    rows: list[list[str]] = []
    for index in sorted(chosen | set(evaluated)):
        step = steps.get(index)
        held_out = fmt.loss(evaluated[index]) if index in evaluated else ""
        if step is None:
            rows.append([f"{index:,}", "", held_out, *[""] * (len(STEP_COLUMNS) - 3)])
            continue
        rows.append(
            [
                f"{index:,}",
                fmt.loss(step.loss),
                held_out,
                fmt.significant(step.lr),
                fmt.significant(step.grad_norm),
                fmt.count(step.tokens),
                fmt.count(step.tokens_per_s),
                fmt.duration(step.step_s),
                fmt.bytes_(max(series.finite(step.memory_bytes), default=None)),
            ]
        )
    return StepTable(rows, len(run.steps))


_FILE_WORDS = {
    "config.yaml": "the resolved configuration",
    "run.json": "what ran, where and with what result",
    "metrics.jsonl": "every number of every step",
    "tb": "for TensorBoard",
    "model": "the trained weights, for transformers' from_pretrained",
}


def file_rows(run: RunData) -> list[tuple[str, str, str, str]]:
    """Return the files of the run folder that are there: (relative link, size, what it is, command that shows it)."""
    rows: list[tuple[str, str, str, str]] = []
    for name, words in _FILE_WORDS.items():
        path = run.path / name
        command = f"tensorboard --logdir {shlex.quote(str(run.place / name))}" if name == "tb" else ""
        if path.is_dir():
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            rows.append((f"{name}/", fmt.bytes_(size), words, command))
        elif path.is_file():
            rows.append((name, fmt.bytes_(path.stat().st_size), words, command))
    return rows
