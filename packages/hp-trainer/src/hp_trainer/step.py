# SPDX-License-Identifier: Apache-2.0
"""One optimizer step: micro-batches, gradients of all ranks, clipping, update, and its metrics."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

import hp_core.comm as comm
from hp_core.platform import get_platform
from hp_trainer.config import TrainConfig
from hp_trainer.data import Sampler, Samples
from hp_trainer.data_parallel import DataParallel
from hp_trainer.loss import summed_loss
from hp_trainer.optimizer import clip_gradients, learning_rate, set_learning_rate
from hp_trainer.phases import PHASES, PhaseTimer
from hp_trainer.run import TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class TrainStep:
    """Everything that a step works on.

    [Note: Token weights] The loss of a step is the mean over the targets of all ranks and micro-batches together. So
    each micro-batch's summed loss is divided by that common count before its backward, and gradients are summed over
    ranks: no pass over the gradients for an average, and ranks or micro-batches with fewer targets weigh less. The
    count is one small all-reduce, sent before the first forward and waited for after it.
    """

    config: TrainConfig
    parallel: DataParallel
    optimizer: torch.optim.Optimizer
    samples: Samples
    sampler: Sampler
    device: torch.device
    timer: PhaseTimer
    tokens: int = 0
    _parameters: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = [parameter for parameter in self.parallel.module.parameters() if parameter.requires_grad]

    def run(self, step: int) -> dict[str, Any]:
        """Do step ``step`` (1-based) and return its line of ``metrics.jsonl``, the same on all ranks.

        Every rank calls it. Communicates the token count, the gradients, and a dozen numbers for the metrics.

        Raises:
            TrainingError: A gradient is inf or NaN and ``train.nonfinite`` is ``raise``; on all ranks.
            CommError: A collective failed.
        """
        start = time.perf_counter()
        loss, num_targets, total_targets = self._forward_backward()
        with self.timer.phase("communication"):
            self.parallel.reduce_gradients()
        rate = learning_rate(step - 1, self.config.train)
        with self.timer.phase("optimizer"):
            norm = clip_gradients(self._parameters, self.config.train.clip_norm)
            finite = math.isfinite(norm)
            if finite:
                set_learning_rate(self.optimizer, rate)
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        by_rank = self._gather(loss, num_targets)
        if not finite and self.config.train.nonfinite == "raise":
            raise TrainingError(_nonfinite_message(step, norm, by_rank))
        self.tokens += total_targets
        seconds = time.perf_counter() - start
        metrics: dict[str, Any] = {
            "step": step,
            "loss": sum(row["loss"] for row in by_rank) / total_targets,
            "lr": rate,
            "grad_norm": norm,
            "tokens": self.tokens,
            "tokens_per_s": total_targets / seconds,
            "step_s": seconds,
            "phases_s": {name: sum(row[name] for row in by_rank) / len(by_rank) for name in PHASES},
            "memory_bytes": [int(row["memory"]) for row in by_rank],
        }
        if not finite:
            metrics["skipped"] = True
        return metrics

    def _forward_backward(self) -> tuple[float, int, int]:
        """Return the summed loss and the targets of this rank, and the targets of all."""
        module, group, timer = self.parallel.module, self.parallel.group, self.timer
        with timer.phase("data"):
            size = self.config.train.accumulation
            batches = [self.samples.batch(self.sampler.next_indices()).to(self.device) for _ in range(size)]
            num_targets = sum(batch.num_targets for batch in batches)
            count = torch.tensor([num_targets], dtype=torch.int64, device=self.device)
            pending = comm.all_reduce(count, "sum", group, async_op=True)
        total_targets = 0
        losses = []
        for number, batch in enumerate(batches):
            with timer.phase("forward"):
                loss = summed_loss(module, batch, self.config.train.precision)
                losses.append(loss.detach())
            if number == 0:
                with timer.phase("communication"):
                    total_targets = int(pending.wait().item())
            last = number == len(batches) - 1
            with timer.phase("backward"), contextlib.nullcontext() if last else self.parallel.no_sync():
                (loss / total_targets).backward()  # type: ignore[no-untyped-call]
        # Read only now: each reading waits for the device.
        return sum(map(float, losses)), num_targets, total_targets

    def _gather(self, loss: float, num_targets: int) -> list[Mapping[str, float]]:
        """Return each rank's loss, targets, memory and phase times. One all-gather, which is in none of the phases."""
        phases = self.timer.take()
        names = ("loss", "targets", "memory", *PHASES)
        memory = get_platform().device(self.device.type).memory()
        mine = [loss, float(num_targets), float(memory.peak_bytes), *(phases[name] for name in PHASES)]
        # float64 holds byte counts exactly; not every accelerator has it, so it is a CPU tensor everywhere.
        table = comm.all_gather(torch.tensor([mine], dtype=torch.float64), self.parallel.group).tolist()
        return [dict(zip(names, row, strict=True)) for row in table]


def _nonfinite_message(step: int, norm: float, by_rank: list[Mapping[str, float]]) -> str:
    bad = [rank for rank, row in enumerate(by_rank) if not math.isfinite(row["loss"])]
    if bad:
        where = f"the loss of rank {bad[0]} was {by_rank[bad[0]]['loss']}" + (
            f" ({len(bad)} ranks in all)" if len(bad) > 1 else ""
        )
    else:
        where = "the loss was finite on every rank"
    return (
        f"step {step}: the gradient norm is {norm}; {where}. Lower train.lr, check the data, or skip such steps with "
        "--train.nonfinite skip"
    )
