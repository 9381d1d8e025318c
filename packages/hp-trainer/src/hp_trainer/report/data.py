# SPDX-License-Identifier: Apache-2.0
"""Reading a run folder, whatever state the run left it in.

Nothing here raises over content: what cannot be read is left out and named in ``RunData.problems``, which the page
shows. A run that failed at step 0 has a ``run.json`` and perhaps an empty ``metrics.jsonl``; one that was killed may
end in half a line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hp_trainer.config.plain_values import find_odd_value
from hp_trainer.config.strict_yaml import parse_yaml


@dataclass(frozen=True)
class Step:
    """One training step. None: not recorded; NaN: recorded, and not a number. Seconds, bytes, tokens of all ranks.

    ``phases_s`` is the mean over ranks, ``memory_bytes`` has an entry a rank, ``skipped``: the weights were left as
    they were because a gradient was not finite.
    """

    step: int
    loss: float | None
    lr: float | None
    grad_norm: float | None
    tokens: float | None
    tokens_per_s: float | None
    step_s: float | None
    phases_s: dict[str, float]
    memory_bytes: list[float | None]
    skipped: bool = False

    @property
    def other_s(self) -> float | None:
        """The part of the step that no phase accounts for, in seconds."""
        if self.step_s is None or not math.isfinite(self.step_s):
            return None
        return max(0.0, self.step_s - sum(self.phases_s.values()))


@dataclass(frozen=True)
class Evaluation:
    """The held-out loss after ``step`` steps (0: before training), in nats per token."""

    step: int
    loss: float | None


@dataclass
class RunData:
    """What a run folder holds. ``info`` is ``run.json`` as it is, ``config`` is ``config.yaml`` as it is."""

    path: Path
    info: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Any]:
        """Return the mapping ``info[name]``, or an empty one where it is missing or something else."""
        return mapping(self.info.get(name))

    @property
    def name(self) -> str:
        """The run's name, else the folder's."""
        return str(self.info.get("name") or self.path.resolve().name)

    @property
    def place(self) -> Path:
        """The run folder as seen from where ``hp train`` was started; absolute where nothing tells."""
        here = Path(os.path.abspath(self.path))
        given = mapping(self.config.get("run")).get("output_dir")
        if not isinstance(given, str) or not given:
            return here
        parent = Path(os.path.normpath(os.path.expanduser(given)))
        if parent.is_absolute():
            return here
        # The folder may have moved since: it must still lie in a folder of that name. Its own name is today's, for a
        # later run of the same name renames it.
        tail = tuple(part for part in parent.parts if part != "..")
        return parent / here.name if here.parent.parts[len(here.parent.parts) - len(tail) :] == tail else here

    @property
    def status(self) -> str:
        """``done``, ``failed``, ``running`` or ``unknown``."""
        status = str(self.info.get("status") or "unknown").lower()
        return status if status in {"done", "failed", "running"} else "unknown"

    @property
    def world_size(self) -> int:
        """The number of ranks; from the metrics where ``run.json`` does not say; at least 1."""
        given = number(self.info, "world_size")
        if given is not None and math.isfinite(given) and given >= 1:
            return int(given)
        return max([1, *(len(step.memory_bytes) for step in self.steps)])

    @property
    def rest_s(self) -> float | None:
        """Seconds in which the run neither set up nor trained: it evaluated and saved. None where not recorded."""
        started, ended = moment(self.info.get("started")), moment(self.info.get("ended"))
        setup_s, train_s = number(self.info, "setup_s"), number(self.info, "train_s")
        if started is None or ended is None or setup_s is None or train_s is None:
            return None
        rest_s = (ended - started).total_seconds() - setup_s - train_s
        return rest_s if math.isfinite(rest_s) else None

    @property
    def total_s(self) -> float | None:
        """Seconds from start to end, else set-up plus training, else the sum of the steps."""
        started, ended = moment(self.info.get("started")), moment(self.info.get("ended"))
        if started and ended and ended >= started:
            return (ended - started).total_seconds()
        parts = [number(self.info, key) for key in ("setup_s", "train_s")]
        known = [part for part in parts if part is not None and math.isfinite(part)]
        if known:
            return sum(known)
        steps = [step.step_s for step in self.steps if step.step_s is not None and math.isfinite(step.step_s)]
        return sum(steps) if steps else None


def mapping(value: object) -> dict[str, Any]:
    """Return ``value`` when it is a mapping, with its keys as text; else an empty one."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def to_number(value: object) -> float | None:
    """Return ``value`` as a float. Null and the words for NaN (what JSON writers make of it) are NaN; else None."""
    if value is None:
        return math.nan
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, str)):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    return None


def number(entry: Mapping[str, Any], key: str) -> float | None:
    """Return ``entry[key]`` as a float (see ``to_number``), None where the key is missing."""
    return to_number(entry[key]) if key in entry else None


def moment(value: object) -> datetime | None:
    """Return an ISO time as an aware ``datetime`` (UTC where it names no zone), or None."""
    try:
        parsed = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)


def read_run(run_dir: Path) -> RunData:
    """Read ``run.json``, ``config.yaml`` and ``metrics.jsonl`` of ``run_dir``; any of them may be missing or broken."""
    run = RunData(path=run_dir)
    run.info = _read_mapping(run, "run.json")
    run.config = _read_mapping(run, "config.yaml")
    _read_metrics(run)
    _add_final_evaluations(run)
    return run


def _read_text(run: RunData, name: str) -> str | None:
    try:
        return (run.path / name).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        run.problems.append(f"{name} is missing.")
    except OSError as error:
        run.problems.append(f"{name} cannot be read: {error.strerror or error}.")
    return None


def _read_mapping(run: RunData, name: str) -> dict[str, Any]:
    text = _read_text(run, name)
    if text is None:
        return {}
    try:
        value = json.loads(text) if name.endswith(".json") else parse_yaml(text)
    except (ValueError, RecursionError) as error:
        run.problems.append(f"{name} cannot be parsed: {str(error).splitlines()[0]}.")
        return {}
    if not isinstance(value, Mapping):
        run.problems.append(f"{name} holds {type(value).__name__}, not a mapping.")
    elif odd := find_odd_value(dict(value)):
        run.problems.append(f"{name}{odd}. It is left out.")
        return {}
    return mapping(value)


def _read_metrics(run: RunData) -> None:
    text = _read_text(run, "metrics.jsonl")
    steps: dict[int, Step] = {}
    evaluations: dict[int, Evaluation] = {}
    num_bad = 0
    for line in (text or "").splitlines():
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            num_bad += 1
            continue
        index = number(entry, "step") if isinstance(entry, Mapping) else None
        if index is None or not math.isfinite(index):
            num_bad += 1
        elif "eval_loss" in entry:
            evaluations[int(index)] = Evaluation(int(index), number(entry, "eval_loss"))
        else:
            steps[int(index)] = _step(int(index), entry)
    if num_bad:
        lines = "1 line" if num_bad == 1 else f"{num_bad} lines"
        run.problems.append(
            f"metrics.jsonl: {lines} could not be parsed and {'is' if num_bad == 1 else 'are'} left out."
        )
    # A step written twice (a run taken up again) counts once, as it was last.
    run.steps = [steps[index] for index in sorted(steps)]
    run.evaluations = [evaluations[index] for index in sorted(evaluations)]


def _step(index: int, entry: Mapping[str, Any]) -> Step:
    phases = {name: to_number(value) for name, value in mapping(entry.get("phases_s")).items()}
    memory = entry.get("memory_bytes")
    return Step(
        step=index,
        loss=number(entry, "loss"),
        lr=number(entry, "lr"),
        grad_norm=number(entry, "grad_norm"),
        tokens=number(entry, "tokens"),
        tokens_per_s=number(entry, "tokens_per_s"),
        step_s=number(entry, "step_s"),
        phases_s={name: value for name, value in phases.items() if value is not None and math.isfinite(value)},
        memory_bytes=[to_number(value) for value in memory] if isinstance(memory, list) else [],
        skipped=entry.get("skipped") is True,
    )


def _add_final_evaluations(run: RunData) -> None:
    """Add ``run.json``'s evaluations before and after training where ``metrics.jsonl`` has no line for them."""
    recorded = {evaluation.step: evaluation for evaluation in run.evaluations}
    last = run.steps[-1].step if run.steps else max(recorded, default=0)
    for key, index in (("before", 0), ("after", last)):
        entry = mapping(run.section("evaluation").get(key))
        if "loss" in entry:
            recorded[index] = Evaluation(index, number(entry, "loss"))
    run.evaluations = [recorded[index] for index in sorted(recorded)]
