# SPDX-License-Identifier: Apache-2.0
"""Metrics on disk: `metrics.jsonl`, a line a step, and TensorBoard event files. Rank 0 writes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hp_trainer.callbacks import Callback

if TYPE_CHECKING:
    from io import TextIOWrapper

    from torch.utils.tensorboard import SummaryWriter

    from hp_trainer.run import Run


class MetricsWriter(Callback):
    """Writes each step and evaluation at once, so that a run that dies has all of its metrics."""

    def __init__(self) -> None:
        self._lines: TextIOWrapper | None = None
        self._board: SummaryWriter | None = None

    def on_train_begin(self, run: Run) -> None:
        """Open the files."""
        if not run.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter

        self._lines = (run.dir / "metrics.jsonl").open("w", encoding="utf-8")
        self._board = SummaryWriter(str(run.dir / "tb"))

    def on_step_end(self, run: Run, step_metrics: Mapping[str, Any]) -> None:
        """Write a step."""
        self._write(step_metrics)
        scalars = {f"train/{key}": step_metrics[key] for key in ("loss", "lr", "grad_norm", "tokens_per_s", "step_s")}
        scalars.update({f"phase/{name}_s": seconds for name, seconds in step_metrics["phases_s"].items()})
        scalars["memory/largest_bytes"] = max(step_metrics["memory_bytes"])
        self._show(scalars, step_metrics["step"])

    def on_evaluation(self, run: Run, result: Mapping[str, Any]) -> None:
        """Write an evaluation."""
        self._write({"step": result["step"], "eval_loss": result["loss"]})
        self._show({"eval/loss": result["loss"]}, result["step"])

    def on_train_end(self, run: Run) -> None:
        """Close the files."""
        self._close()

    def on_exception(self, run: Run, exc: BaseException) -> None:
        """Close the files."""
        self._close()

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._lines is not None:
            self._lines.write(json.dumps(_plain(record)) + "\n")
            self._lines.flush()

    def _show(self, scalars: Mapping[str, float], step: int) -> None:
        if self._board is not None:
            for name, value in scalars.items():
                self._board.add_scalar(name, value, step)

    def _close(self) -> None:
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        if self._board is not None:
            self._board.close()
            self._board = None


def _plain(value: Any) -> Any:
    """Return ``value`` with null for inf and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
