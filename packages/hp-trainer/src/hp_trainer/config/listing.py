# SPDX-License-Identifier: Apache-2.0
"""The text of `hp train --help`, generated from the schema."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

from hp_trainer.config.keys import all_keys
from hp_trainer.config.schema import TrainConfig

_INTRODUCTION = """\
Usage: hp train [CONFIG.yaml] [-n RANKS] [--KEY VALUE ...]

Fine-tune or train a language model on text, on one or more ranks, and write a run folder with
metrics, the model and a report page. Without arguments it fine-tunes SmolLM2-135M on the running
Python's standard library. A key on the command line wins over the file, the file over the default.

Options:
  -n, --ranks N       ranks to start on this host (the same as --launch.ranks)
  -h, --help          this text

Keys (as --KEY VALUE, --KEY=VALUE, or nested in the YAML file):
"""


def help_text(width: int | None = None) -> str:
    """Return the help: every key with its type, default and description, wrapped to ``width`` columns."""
    width = width or min(shutil.get_terminal_size((100, 24)).columns, 120)
    lines = [_INTRODUCTION]
    section = ""
    for key in all_keys().values():
        this_section = key.name.split(".")[0]
        if this_section != section:
            section = this_section
            annotation = TrainConfig.model_fields[section].annotation
            title = ((getattr(annotation, "__doc__", None) or "").strip().splitlines() or [""])[0]
            lines.append(f"  {section}: {title}")
        head = f"    --{key.name}"
        text = f"{key.description} [{key.type_name}; default {_show(key.default)}]"
        wrapped = textwrap.wrap(text, max(width - 34, 30))
        if len(head) > 32:
            lines.append(head)
        else:
            lines.append(f"{head:<34}{wrapped.pop(0)}")
        lines.extend(" " * 34 + line for line in wrapped)
    return "\n".join(lines) + "\n"


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_show(item) for item in value)}]"
    return str(value)
