# SPDX-License-Identifier: Apache-2.0
"""YAML as `yaml.safe_load` reads it, but a key given twice is an error, and every mistake is one kind of exception."""

from __future__ import annotations

from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_MAX_DEPTH = 100
_TOO_DEEP = "it is nested too deep; a few levels are expected"


class InvalidYamlError(ValueError):
    """The text is no YAML that a configuration can be; the message is one line and names the place where known."""


def parse_yaml(text: str) -> Any:
    """Return what ``text`` holds.

    Raises:
        InvalidYamlError: No YAML, a key twice in one mapping, nested too deep, or a value that YAML has and Python
            lacks.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # derived from SafeLoader
    except InvalidYamlError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}" if mark is not None else "it"
        raise InvalidYamlError(f"{where} is no YAML: {_words(error.problem or error)}") from None
    except yaml.YAMLError as error:
        raise InvalidYamlError(f"it is no YAML: {_words(error)}") from None
    except RecursionError:
        raise InvalidYamlError(_TOO_DEEP) from None
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # PyYAML lets these through: the date 2026-02-31, an integer of 5000 digits, !!int "".
        raise InvalidYamlError(f"a value cannot be read: {_words(error)}") from None


def _words(error: object) -> str:
    return " ".join(str(error).split())


class _Loader(yaml.SafeLoader):
    """A SafeLoader that refuses what it would settle in silence: the last of two equal keys wins there."""

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Take a ``[`` or ``{``, unless it is one too many: the time to parse them grows with their square.

        Raises:
            InvalidYamlError: It is one too many.
        """
        if self.flow_level >= _MAX_DEPTH:
            raise InvalidYamlError(_TOO_DEEP)
        super().fetch_flow_collection_start(token)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Return the next mapping as it is written, before merges (``<<``): their keys may be given again.

        Raises:
            InvalidYamlError: It has a key twice.
        """
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    first = lines[key.tag, key.value]
                    raise InvalidYamlError(
                        f"line {line}: the key {key.value!r} is given a second time, first in line {first}; keep one"
                    )
                lines[key.tag, key.value] = line
        return node
