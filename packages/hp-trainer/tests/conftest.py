# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
