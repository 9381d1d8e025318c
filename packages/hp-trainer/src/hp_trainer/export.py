# SPDX-License-Identifier: Apache-2.0
"""Write the trained model as an ordinary Hugging Face folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hp_trainer.cache import DISK_FULL
from hp_trainer.quiet import quiet_transformers
from hp_trainer.run import TrainingError, one_line

if TYPE_CHECKING:
    from torch import nn

#: Config and tokenizer, and room for the file system's own bookkeeping.
_MARGIN_BYTES = 16 * 2**20


def export_bytes(module: nn.Module) -> int:
    """Return how many bytes the weights take on disk; tied ones count once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def check_space(folder: Path, num_bytes: int) -> None:
    """Raise where the disk of ``folder`` has less than ``num_bytes`` free, before hours are spent.

    Raises:
        TrainingError: With the folder, the bytes needed and those that are free.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _MARGIN_BYTES:
        raise TrainingError(
            f"the disk of {folder} has {free:,} bytes free, the model needs {num_bytes + _MARGIN_BYTES:,}; "
            "free some space or set run.output_dir"
        )


def export_model(module: Any, tokenizer: Any, folder: Path) -> None:
    """Write safetensors, config and tokenizer to ``folder``; it appears only when all of it is written.

    One rank calls it (rank 0). A tensor at a time is copied from the device.

    Raises:
        TrainingError: The disk is full (with the bytes needed), or the folder not writable: the path and the reason.
    """
    from safetensors import SafetensorError

    num_bytes = export_bytes(module)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    use_cache = module.config.use_cache
    try:
        module.config.use_cache = True
        with quiet_transformers():
            module.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainingError(f"cannot write the model to {folder}: {_reason(error, num_bytes)}") from error
    finally:
        module.config.use_cache = use_cache


def _reason(error: Exception, num_bytes: int) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(found[1])  # safetensors tells it in its message only
    if number in DISK_FULL:
        return f"{one_line(error)}; it needs {num_bytes + _MARGIN_BYTES:,} bytes: free some space or set run.output_dir"
    return f"{one_line(error)}; make the folder writable or set run.output_dir"
