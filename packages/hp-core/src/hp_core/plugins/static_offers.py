# SPDX-License-Identifier: Apache-2.0
"""What a plugin that cannot run would provide, read from its source.

Nobody can ask a broken plugin what it offers, yet whoever asks for one of its names should hear why it is not
there. Plugins write ``Provide("kind", "name", …)`` with literals nearly always, and those can be read.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

from hp_core.errors import PluginError
from hp_core.plugins.discovery import Found
from hp_core.provide import Provide


def read_offers(found: Found) -> tuple[Provide, ...]:
    """Return the ``Provide`` lines with literal arguments in a plugin's module, without importing it.

    Empty when the source is not found or cannot be parsed: this serves messages only.
    """
    source = _source(found)
    if source is None:
        return ()
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return ()
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return tuple(provide for call in calls if (provide := _literal(call)) is not None)


def _literal(call: ast.Call) -> Provide | None:
    callee = call.func
    name = callee.id if isinstance(callee, ast.Name) else callee.attr if isinstance(callee, ast.Attribute) else ""
    if name != "Provide":
        return None
    try:
        args: list[Any] = [ast.literal_eval(arg) for arg in call.args]
        kwargs: dict[str, Any] = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        return Provide(*args, **kwargs)
    except (ValueError, TypeError, PluginError):
        return None


def _source(found: Found) -> Path | None:
    # The import system would run the package's __init__, which may be what is broken: look for the file.
    relative = Path(*found.value.partition(":")[0].split("."))
    for folder in map(Path, sys.path):
        for candidate in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None
