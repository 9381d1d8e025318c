# SPDX-License-Identifier: Apache-2.0
"""Text files → tokens → samples → the batches of one rank."""

from hp_trainer.data.sampler import Sampler
from hp_trainer.data.samples import Batch, Samples
from hp_trainer.data.sources import DataError, TextFile, find_files
from hp_trainer.data.tokens import TokenData, prepare_tokens

__all__ = ["Batch", "DataError", "Sampler", "Samples", "TextFile", "TokenData", "find_files", "prepare_tokens"]
