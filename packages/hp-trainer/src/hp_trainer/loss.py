# SPDX-License-Identifier: Apache-2.0
"""The loss of a micro-batch: cross entropy of the next token, summed over the positions that count."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from hp_trainer.data.samples import IGNORE, Batch

if TYPE_CHECKING:
    from torch import nn


def summed_loss(module: nn.Module, batch: Batch, precision: str) -> torch.Tensor:
    """Return the sum (not the mean) of the batch's losses, a 0-d fp32 tensor.

    A sum can be divided by the number of targets of all ranks and micro-batches together, which makes uneven batches
    count by their tokens.

    Args:
        module: A causal language model that returns ``logits`` of [samples, seq_len, vocabulary].
        batch: Inputs and labels on the module's device.
        precision: ``"fp32"``, or ``"bf16"`` for autocast.
    """
    device_type = batch.input_ids.device.type
    autocast = torch.autocast(device_type, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    with autocast:
        logits = module(input_ids=batch.input_ids, use_cache=False).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, -2).float(), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )
