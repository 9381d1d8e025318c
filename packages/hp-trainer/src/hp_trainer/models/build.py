# SPDX-License-Identifier: Apache-2.0
"""Build the model and tokenizer that the `model` section names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hp_core.errors import did_you_mean
from hp_trainer.cache import build_once, cache_root
from hp_trainer.config.schema import TrainConfig
from hp_trainer.models import smollm2
from hp_trainer.models.bytes_tokenizer import VOCAB_SIZE, bytes_tokenizer
from hp_trainer.models.smollm2 import ModelError
from hp_trainer.quiet import quiet_transformers
from hp_trainer.run import one_line

if TYPE_CHECKING:
    from torch import nn

_KNOWN = {smollm2.NAME: smollm2.build}
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class ModelParts:
    """A model ready to train: the module (fp32, on the CPU), its name and its architecture's class name."""

    module: nn.Module
    name: str
    architecture: str


def model_folder(config: TrainConfig, *, leader: bool) -> Path | None:
    """Return the local folder of the model, made if its name is a known one; None for a random initialisation.

    Every rank calls it; nothing is communicated. The leader (local rank 0) may take minutes to fetch and convert.

    Raises:
        ModelError: The name is unknown, or the folder has no configuration or no weights.
        CacheError: The folder could not be made, or did not appear within ``launch.timeout_s``.
    """
    if config.model.config is not None:
        return None
    name = config.model.name
    if name in _KNOWN:
        return build_once(
            cache_root(config.data.cache_dir) / "models" / name,
            _KNOWN[name],
            what=f"the converted model {name}",
            leader=leader,
            timeout_s=config.launch.timeout_s,
        )
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        hint = did_you_mean(name, _KNOWN) or f"; known names: {', '.join(_KNOWN)}"
        raise ModelError(
            f"model.name: {name!r} is neither a known model nor a folder{hint}, or give a local Hugging Face folder"
        )
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.name: folder {folder} has no config.json, expected a Hugging Face model folder")
    if not any(path for pattern in _WEIGHT_PATTERNS for path in folder.glob(pattern)):
        raise ModelError(
            f"model.name: folder {folder} has a config.json but no weights (*.safetensors); add them, "
            "or train from random weights with --model.config"
        )
    return folder


def build_model(config: TrainConfig, folder: Path | None, vocab_size: int) -> ModelParts:
    """Load the model of ``folder``, or initialise ``model.config`` at random from torch's current seed.

    Args:
        config: The run's configuration.
        folder: What `model_folder` returned.
        vocab_size: The tokenizer's; a random model gets it unless its config names one.

    Returns:
        The module in train mode, fp32, on the CPU; 4 bytes a parameter.

    Raises:
        ModelError: transformers does not know the model type or cannot read the folder, the vocabulary is too small, or
            a sample is longer than the model allows.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    auto_model: Any = AutoModelForCausalLM  # untyped
    with quiet_transformers():
        if folder is not None:
            try:
                # A key that the weights lack would be initialised at random, which no one asked for: it raises.
                module, info = auto_model.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
            except (OSError, ValueError, RuntimeError, SafetensorError) as error:
                raise ModelError(f"model.name: folder {folder} cannot be loaded: {one_line(error)}") from error
            if info["missing_keys"]:
                names = sorted(info["missing_keys"])
                raise ModelError(
                    f"model.name: the weights in {folder} lack {len(names)} parameters of config.json, first "
                    f"{names[0]!r}; the folder is incomplete or its config.json belongs to another model"
                )
            name = config.model.name
        else:
            module, name = _random_model(dict(config.model.config or {}), vocab_size, config.data.seq_len), "random"
    rows = module.get_input_embeddings().num_embeddings
    if rows < vocab_size:
        raise ModelError(
            f"the model's vocabulary has {rows} entries but the tokenizer {vocab_size}; name another model.tokenizer"
        )
    _check_positions(module.config, config.data.seq_len)
    module.config.use_cache = False
    module.train()
    return ModelParts(module, name, type(module).__name__)


def _check_positions(hf_config: Any, seq_len: int) -> None:
    """Raise where a sample is longer than what the model was made for: a table of positions ends there."""
    limit = getattr(hf_config, "max_position_embeddings", None)
    if isinstance(limit, int) and 0 < limit < seq_len:
        raise ModelError(
            f"data.seq_len: {seq_len} is more than the {limit} positions of the model; set data.seq_len to {limit} or "
            "less, or raise max_position_embeddings in the model's configuration"
        )


def _random_model(settings: dict[str, Any], vocab_size: int, seq_len: int) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = settings.pop("model_type")
    if model_type not in CONFIG_MAPPING:
        hint = did_you_mean(str(model_type), list(CONFIG_MAPPING))
        raise ModelError(f"model.config: transformers has no model type {model_type!r}{hint}")
    settings.setdefault("vocab_size", vocab_size)
    defaults = AutoConfig.for_model(model_type)
    unknown = [key for key in settings if not hasattr(defaults, key)]
    if unknown:
        hint = did_you_mean(unknown[0], list(defaults.to_dict()))
        raise ModelError(f"model.config: {model_type} has no setting {unknown[0]!r}{hint}")
    try:
        # The byte tokenizer's ids: a config whose special tokens lie outside the vocabulary is not valid.
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(defaults, key, None)
            if isinstance(value, int) and value >= settings["vocab_size"]:
                settings.setdefault(key, None)
        hf_config = AutoConfig.for_model(model_type, **settings)
        _check_positions(hf_config, seq_len)  # before gigabytes are filled
        auto_model: Any = AutoModelForCausalLM  # untyped
        return auto_model.from_config(hf_config, dtype=torch.float32)
    except ModelError:
        raise
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise ModelError(f"model.config: {model_type} cannot be built: {one_line(error)}") from error
    except Exception as error:
        # huggingface_hub has its own hierarchy of validation errors, under none of the built-in ones.
        if type(error).__module__.startswith("huggingface_hub"):
            raise ModelError(f"model.config: {model_type} cannot be built: {one_line(error)}") from error
        raise


def load_tokenizer(config: TrainConfig, folder: Path | None) -> Any:
    """Return the tokenizer: ``model.tokenizer``, else the model folder's, else one of bytes for a random model.

    Raises:
        ModelError: The folder has no tokenizer, or transformers cannot read it.
    """
    source = tokenizer_folder(config, folder)
    if source is None:
        return bytes_tokenizer()
    from transformers import AutoTokenizer

    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"the tokenizer in {source} cannot be loaded: {one_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer in {source} has no end-of-text token, which separates the documents")
    return tokenizer


def tokenizer_folder(config: TrainConfig, folder: Path | None) -> Path | None:
    """Return the folder that holds the tokenizer, checked to hold one; None for the byte tokenizer."""
    chosen = config.model.tokenizer
    if chosen == "bytes" or (chosen is None and folder is None):
        return None
    source = Path(os.path.expanduser(chosen)) if chosen is not None else folder
    assert source is not None
    if not any((source / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"model.tokenizer: {source} has no tokenizer (tokenizer.json); give a folder that has one, or 'bytes' "
            f"({VOCAB_SIZE} ids)"
        )
    return source
