# SPDX-License-Identifier: Apache-2.0
"""Which values a free-form mapping may hold: those that YAML and a model's `config.json` both give back as they are."""

from __future__ import annotations

from typing import Any

_SCALARS = (type(None), bool, int, float, str)
_WORDS = "null, true|false, numbers, text, lists and mappings"
#: A model's configuration has some dozens of values; YAML anchors in anchors make millions of a few lines.
_MAX_VALUES = 100_000
_MAX_DEPTH = 50


def find_odd_value(tree: dict[str, Any]) -> str | None:
    """Return where ``tree`` holds something else, what, and what is expected; None where all is plain.

    The text goes on from the mapping's own name: ``".eos: given datetime.date(…), expected …"``.
    """
    # A list of its own, not a recursion: the tree may be deep, or refer to itself.
    todo: list[tuple[str, Any, int]] = [("", tree, 0)]
    num_values = 0
    while todo:
        place, value, depth = todo.pop()
        num_values += 1
        if depth > _MAX_DEPTH:
            return f": nested deeper than {_MAX_DEPTH} levels, or an anchor that holds itself; expected {_WORDS}"
        if num_values > _MAX_VALUES:
            return f": more than {_MAX_VALUES:,} values; expected those of a Hugging Face config.json"
        if type(value) is dict:
            for key, item in value.items():
                if type(key) not in (str, int):
                    return f"{place}: given the key {key!r}, expected text or an integer"
                todo.append((f"{place}.{key}", item, depth + 1))
        elif type(value) is list:
            todo += [(f"{place}.{number}", item, depth + 1) for number, item in enumerate(value)]
        elif type(value) not in _SCALARS:
            return f"{place}: given {value!r} ({type(value).__name__}), expected {_WORDS}"
    return None
