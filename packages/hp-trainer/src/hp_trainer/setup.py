# SPDX-License-Identifier: Apache-2.0
"""The small parts of a run's set-up: seed, threads, device, same text everywhere, the step."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

import hp_core.comm as comm
from hp_core.platform import get_platform, use_local_device
from hp_core.platform.host_cores import num_cores
from hp_trainer.config import TrainConfig
from hp_trainer.data import DataError, Sampler, Samples, TokenData
from hp_trainer.data_parallel import DataParallel
from hp_trainer.phases import PhaseTimer
from hp_trainer.step import TrainStep

if TYPE_CHECKING:
    from torch import nn


def seed_run(config: TrainConfig) -> None:
    """Seed Python, NumPy and torch alike on every rank, so that all build the same model; deterministic if asked."""
    from hp_core.determinism import enable_determinism, seed_all

    if config.run.deterministic:
        enable_determinism(config.run.seed)
    else:
        seed_all(config.run.seed)


def seed_noise(config: TrainConfig, rank: int) -> None:
    """Give each rank its own random numbers once the model is built: dropout of different samples must differ."""
    from hp_core.determinism import seed_all

    seed_all(config.run.seed, rank_offset=rank)


def set_threads(config: TrainConfig) -> None:
    """Give this rank its cores: ``launch.threads``, else OMP_NUM_THREADS, else cores / local ranks."""
    threads = config.launch.threads
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = threads_per_rank(int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if threads is not None:
        torch.set_num_threads(threads)


def threads_per_rank(num_ranks: int) -> int:
    """Return how many of this process's cores each of ``num_ranks`` gets, at least 1."""
    return max(num_cores() // num_ranks, 1)


def pick_device(config: TrainConfig) -> torch.device:
    """Return this rank's device and make it the current one.

    Raises:
        PlatformError: The device type that ``run.device`` names is not there.
    """
    kind = config.run.device
    if kind == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        kind = found.type if found is not None and found.type in ("cuda", "npu") else "cpu"  # type: ignore[assignment]
    index = use_local_device(kind)
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, index)


def check_same_text(tokens: TokenData) -> None:
    """Raise where ranks have tokenised different text: hosts with other files would train on different data in silence.

    Every rank calls it; gathers a digest.

    Raises:
        DataError: On all ranks.
    """
    digests = comm.all_gather_object(tokens.digest)
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise DataError(
                f"data.path: rank {rank} reads other text from {tokens.source} than rank 0; put the same files on "
                "every host"
            )


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, tied ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def build_step(
    config: TrainConfig, parallel: DataParallel, optimizer: torch.optim.Optimizer, train: Samples, device: torch.device
) -> TrainStep:
    """Return the training step over the samples of this rank."""
    sampler = Sampler(
        len(train),
        config.train.micro_batch_size,
        rank=parallel.group.rank,
        num_ranks=parallel.group.size,
        seed=config.run.seed,
    )
    synchronize = None if device.type == "cpu" else get_platform().device(device.type).synchronize
    return TrainStep(config, parallel, optimizer, train, sampler, device, PhaseTimer(synchronize))
