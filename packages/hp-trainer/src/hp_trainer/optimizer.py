# SPDX-License-Identifier: Apache-2.0
"""AdamW with its two parameter groups, the learning-rate schedule, and clipping."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from hp_trainer.config.schema import OptimisationConfig

if TYPE_CHECKING:
    from torch import nn


def build_optimizer(module: nn.Module, config: OptimisationConfig) -> torch.optim.AdamW:
    """Return torch's fused AdamW; weight decay only on tensors of two dims or more (not on norms and biases).

    Each rank has its own; 8 bytes a parameter in fp32. Nothing is communicated.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )


def learning_rate(step: int, config: OptimisationConfig) -> float:
    """Return the rate of step ``step`` (0-based): linear warm-up to ``lr``, a cosine to ``min_lr`` at the last."""
    warmup = min(config.warmup_steps, config.steps - 1)
    if step < warmup:
        return config.lr * (step + 1) / (warmup + 1)
    span = config.steps - 1 - warmup
    progress = min((step - warmup) / span, 1.0) if span > 0 else 0.0
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: list[torch.Tensor], max_norm: float | None) -> float:
    """Scale the gradients so that their global norm is at most ``max_norm``, and return the norm before that.

    The gradients are whole and equal on all ranks (plain data parallelism), so nothing is communicated and every rank
    gets the same number. A norm of inf or NaN is returned as it is and scales nothing. Synchronises with the device.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    norm = float(torch.nn.utils.get_total_norm(gradients))
    if max_norm is not None and math.isfinite(norm) and norm > max_norm:
        torch._foreach_mul_(gradients, max_norm / norm)
    return norm
