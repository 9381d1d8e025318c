# SPDX-License-Identifier: Apache-2.0
"""Where a run's model and tokenizer come from."""

from hp_trainer.models.build import ModelParts, build_model, load_tokenizer, model_folder
from hp_trainer.models.smollm2 import ModelError

__all__ = ["ModelError", "ModelParts", "build_model", "load_tokenizer", "model_folder"]
