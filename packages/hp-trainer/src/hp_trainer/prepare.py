# SPDX-License-Identifier: Apache-2.0
"""Set-up that needs no other rank: the model's folder and the tokenised text, from the cache or made now."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hp_trainer.config import TrainConfig
from hp_trainer.data.tokens import TokenData, prepare_tokens
from hp_trainer.models.build import model_folder


@dataclass(frozen=True)
class Prepared:
    """Where the model lies (None for random weights) and the tokenised text."""

    model_folder: Path | None
    tokens: TokenData


def prepare(config: TrainConfig) -> Prepared:
    """Fetch, convert and tokenise what is not in the cache yet.

    Local rank 0 does the work and the other ranks of the host wait, without collectives. `hp train` also calls it
    before it starts ranks, so that they find everything done and mistakes show at once.

    Raises:
        HPError: What the sections ``model`` and ``data`` name is not there or not usable.
    """
    leader = os.environ.get("LOCAL_RANK", "0") == "0"
    folder = model_folder(config, leader=leader)
    return Prepared(folder, prepare_tokens(config, folder, leader=leader))
