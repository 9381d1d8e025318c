# SPDX-License-Identifier: Apache-2.0
"""What the C++ part of this installation was built from, and what was left out and why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import hp_native
from hp_core.errors import PluginError

_FILE = "build_info.json"


@dataclass(frozen=True)
class BuildInfo:
    """How the C++ part was built; ``cmake/build_info.cmake`` writes it.

    Attributes:
        version: The version of hp-native.
        system: The operating system and the processor, ``"Linux x86_64"``.
        compiler: The compiler and its version, ``"GNU 12.2.0"``; empty where there was none.
        flags: The compiler's flags for every file.
        isa: The instruction sets with code of their own; one of them is chosen at run time.
        sanitizers: The sanitizers of a test build; empty in one that is used.
        parts: The parts that were built.
        left_out: The parts that were not, each with its reason.
    """

    version: str
    system: str
    compiler: str
    flags: str
    isa: tuple[str, ...]
    sanitizers: tuple[str, ...]
    parts: tuple[str, ...]
    left_out: dict[str, str]


def find(name: str) -> Path | None:
    """Return the path of an installed file of this package, or None.

    An editable installation has two folders: the sources, and what was built.
    """
    return next((path for folder in hp_native.__path__ if (path := Path(folder, name)).is_file()), None)


def read() -> BuildInfo:
    """Return how this installation was built.

    Raises:
        PluginError: nothing was built, for example because the sources are used as they are.
    """
    path = find(_FILE)
    if path is None:
        raise PluginError(
            f"hp-native has no {_FILE} in {' or '.join(hp_native.__path__)}: its C++ part was never built; "
            f"pip install hp-native builds and installs it"
        )
    values = json.loads(path.read_text(encoding="utf-8"))
    for name in ("isa", "sanitizers", "parts"):
        values[name] = tuple(values[name])
    return BuildInfo(**values)
