# SPDX-License-Identifier: Apache-2.0
"""Training runs: configuration, models, data, the training loop, metrics and the report page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hp_trainer.config import TrainConfig as TrainConfig
    from hp_trainer.data_parallel import DataParallel as DataParallel
    from hp_trainer.trainer import LLMTrainer as LLMTrainer

__version__ = "0.1.0"

__all__ = ["DataParallel", "LLMTrainer", "TrainConfig"]

_HOMES = {
    "DataParallel": "hp_trainer.data_parallel",
    "LLMTrainer": "hp_trainer.trainer",
    "TrainConfig": "hp_trainer.config",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: importing the package alone loads no framework."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
