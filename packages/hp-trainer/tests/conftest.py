# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hp_core import plugins

#: A Llama that runs a step in milliseconds; the byte tokenizer has 257 ids.
TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


@pytest.fixture
def tiny_llama() -> dict[str, Any]:
    return dict(TINY_LLAMA)


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Eight small files of regular text, which a tiny model learns within a few steps."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(8):
        lines = [
            f"line {line} of file {number}: the quick brown fox jumps over the lazy dog" for line in range(10 + number)
        ]
        (folder / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def tiny_run(tmp_path: Path, text_folder: Path, tiny_llama: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a whole run that takes a second or two."""
    return {
        "run": {"name": "tiny", "output_dir": str(tmp_path / "runs"), "device": "cpu"},
        "model": {"config": tiny_llama},
        "data": {"path": str(text_folder), "seq_len": 32, "cache_dir": str(tmp_path / "cache"), "heldout": 0.25},
        "train": {"steps": 4, "micro_batch_size": 2, "accumulation": 2, "lr": 1e-2, "min_lr": 1e-3, "warmup_steps": 1},
        "eval": {"batches": 4},
        "launch": {"timeout_s": 60.0, "threads": 1},
    }


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder as a run leaves it: ``write_run(info, lines of metrics, configuration)``."""

    def write(info: dict[str, Any], lines: list[dict[str, Any]], config: str) -> Path:
        folder = tmp_path / "runs" / "demo"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Install a fake plugin, as pip would, into this process: ``install(name, source of its module)``."""
    for variable in ("HP_PLUGINS", "HP_PLUGINS_DISABLE", "HP_PLUGINS_STRICT", "HP_PREFER"):
        monkeypatch.delenv(variable, raising=False)
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    modules = []

    def write(name: str, source: str) -> None:
        module = name.replace("-", "_")
        modules.append(module)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[hyper_parallel]\n{module} = {module}\n")
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        plugins.reload()

    yield write
    for module in modules:
        sys.modules.pop(module, None)
    monkeypatch.undo()
    plugins.reload()
