# SPDX-License-Identifier: Apache-2.0
"""The held-out loss, the same number on any number of ranks up to rounding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

import hp_core.comm as comm
from hp_trainer.config import TrainConfig
from hp_trainer.loss import summed_loss

if TYPE_CHECKING:
    from torch import nn

    from hp_trainer.data import Samples


def heldout_batches(num_samples: int, num_batches: int, batch_size: int) -> list[list[int]]:
    """Return which samples each batch holds: spread evenly over the held-out text, each sample at most once."""
    count = min(num_samples, num_batches * batch_size)
    chosen = [place * num_samples // count for place in range(count)]
    return [chosen[start : start + batch_size] for start in range(0, count, batch_size)]


def evaluate(
    module: nn.Module, samples: Samples, config: TrainConfig, group: comm.Group, device: torch.device
) -> dict[str, Any]:
    """Return ``loss`` (nats a token, over all tokens), ``perplexity`` and ``num_tokens`` of the held-out batches.

    Every rank of the group calls it and takes every size-th batch; one all-reduce of two numbers. The module is put in
    evaluation mode and back.
    """
    batches = heldout_batches(len(samples), config.eval.batches, config.train.micro_batch_size)
    was_training = module.training
    module.eval()
    totals = torch.zeros(2, dtype=torch.float64)
    try:
        with torch.inference_mode():
            for indices in batches[group.rank :: group.size]:
                batch = samples.batch(indices).to(device)
                totals[0] += float(summed_loss(module, batch, config.train.precision))
                totals[1] += batch.num_targets
    finally:
        module.train(was_training)
    # On the CPU everywhere: not every accelerator has float64.
    total, count = comm.all_reduce(totals, "sum", group).tolist()
    loss = total / count
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "num_tokens": int(count)}
