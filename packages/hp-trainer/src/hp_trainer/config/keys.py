# SPDX-License-Identifier: Apache-2.0
"""The dotted keys of the configuration, read off the pydantic models: for near matches and for `--help`."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hp_trainer.config.schema import TrainConfig


@dataclass(frozen=True)
class Key:
    """One key: its dotted name, its type in words, its default and its one-line description."""

    name: str
    type_name: str
    default: Any
    description: str
    annotation: Any

    @property
    def holds_text(self) -> bool:
        """Whether a value from the command line is taken as it stands, not parsed as YAML."""
        return str in _choices(self.annotation) or _is_text_literal(self.annotation)

    @property
    def is_bool(self) -> bool:
        """Whether the option may stand without a value."""
        return self.annotation is bool

    @property
    def is_mapping(self) -> bool:
        """Whether further dotted parts may follow the key (``model.config.hidden_size``)."""
        return any(typing.get_origin(choice) is dict for choice in _choices(self.annotation))


def all_keys() -> dict[str, Key]:
    """Return every key by its dotted name, in the order of the schema."""
    return {key.name: key for key in _walk(TrainConfig, "")}


def section_names() -> list[str]:
    """Return the names of the sections."""
    return list(TrainConfig.model_fields)


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
        else:
            yield Key(f"{prefix}{name}", _type_name(annotation), _default(info), info.description or "", annotation)


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=False)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _is_text_literal(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.Literal


def _type_name(annotation: Any) -> str:
    parts = []
    for choice in _choices(annotation):
        origin = typing.get_origin(choice)
        if choice is type(None):
            parts.append("null")
        elif origin is typing.Literal:
            parts.append("|".join(str(value) for value in typing.get_args(choice)))
        elif origin is tuple:
            parts.append(f"list of {len(typing.get_args(choice))} numbers")
        elif origin is list:
            parts.append("list of names")
        elif origin is dict:
            parts.append("mapping")
        else:
            parts.append({"str": "text", "int": "integer", "float": "number", "bool": "true|false"}[choice.__name__])
    return " or ".join(parts)
