# SPDX-License-Identifier: Apache-2.0
"""From a YAML file and `--key value` options to a checked TrainConfig; every mistake is one line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hp_core.errors import ConfigError, did_you_mean
from hp_trainer.config.keys import Key, all_keys, section_names
from hp_trainer.config.schema import TrainConfig
from hp_trainer.config.strict_yaml import InvalidYamlError, parse_yaml


def load_config(path: str | Path | None = None, options: Sequence[tuple[str, str | None]] = ()) -> TrainConfig:
    """Read a configuration; what the command line says wins over the file, the file over the defaults.

    Args:
        path: A YAML file, or None.
        options: Dotted keys with their values as typed, in order; a value of None means the option stood alone,
            which only a true|false key may.

    Raises:
        ConfigError: The file is missing or no YAML mapping, a key is unknown, or a value has the wrong type.
    """
    tree: dict[str, Any] = {} if path is None else _read_yaml(Path(path))
    for name, text in options:
        key = _find_key(name)
        parts = name.split(".")
        node = tree
        for part in parts[:-1]:
            child = node.setdefault(part, {})
            if child is None:
                child = node[part] = {}
            if not isinstance(child, dict):
                raise ConfigError(f"{name}: {part!r} is {child!r} in {path}, expected a mapping")
            node = child
        node[parts[-1]] = _parse_option(key, name, text)
    return to_config(tree)


def to_config(source: TrainConfig | Mapping[str, Any] | str | Path) -> TrainConfig:
    """Return a TrainConfig from one, from a mapping of sections, or from a YAML file's path.

    Raises:
        ConfigError: A key is unknown (with near matches) or a value wrong (key, value and what was expected).
    """
    if isinstance(source, TrainConfig):
        return source
    if isinstance(source, (str, Path)):
        source = _read_yaml(Path(source))
    # An empty section in YAML ("train:") is None: it means the defaults.
    tree = {
        name: ({} if value is None and name in TrainConfig.model_fields else value) for name, value in source.items()
    }
    try:
        return TrainConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None


def dump_yaml(config: TrainConfig) -> str:
    """Return the resolved configuration as YAML that `load_config` reads back to an equal one."""
    # Not in JSON mode, which would turn the keys of a mapping such as id2label into text.
    return yaml.safe_dump(config.model_dump(), sort_keys=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error}") from None
    except InvalidYamlError as error:
        raise ConfigError(f"configuration file {path}: {error}; for example: train: {{steps: 3}}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"configuration file {path} holds a {type(tree).__name__}, expected a mapping of sections")
    return tree


def _find_key(name: str) -> Key:
    keys = all_keys()
    if name in keys:
        return keys[name]
    for key in keys.values():
        if key.is_mapping and name.startswith(f"{key.name}."):
            return key
    raise _unknown_key(name)


def _unknown_key(name: str) -> ConfigError:
    """Return the error with the keys of the same last part, then the alike."""
    keys = list(all_keys())
    last = _last_part(name)
    near = difflib.get_close_matches(last, {_last_part(key) for key in keys}, n=3, cutoff=0.7)
    hint = (
        _meant([key for key in keys if _last_part(key) == last])
        or did_you_mean(name, keys)
        or _meant([key for part in near for key in keys if _last_part(key) == part])
        or f"; the sections are {', '.join(section_names())} (hp train --help lists all keys)"
    )
    return ConfigError(f"unknown key {name!r}{hint}")


def _last_part(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _meant(keys: list[str]) -> str:
    # As `did_you_mean`, of keys that are found by their last part: it compares whole names only.
    return f"; did you mean {' or '.join(map(repr, keys))}?" if keys else ""


def _parse_option(key: Key, name: str, text: str | None) -> Any:
    if text is None:
        if key.is_bool:
            return True
        raise ConfigError(f"--{name} needs a value ({key.type_name})")
    if key.holds_text and name == key.name:
        return None if text in ("null", "") and "null" in key.type_name else text
    try:
        value = parse_yaml(text)
    except InvalidYamlError as error:
        if key.is_mapping and (name == key.name or text.lstrip().startswith(("{", "["))):
            raise ConfigError(f"--{name}: given {_short(text)}: {error}") from None
        return text
    # YAML 1.1 takes 1e-4 (no dot) for text; a free-form mapping has no schema that would mend it.
    if key.is_mapping and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    # Pydantic adds the position in a tuple to the path: "train.betas.1".
    parts = [str(part) for part in first["loc"]]
    name = ".".join(parts)
    if first["type"] in ("extra_forbidden", "invalid_key"):
        return str(_dotted_key(parts) or _unknown_key(name))
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    key = _longest_known(name)
    expected = f"{key.type_name}" if key is not None else "a mapping of keys"
    reason = first["msg"][0].lower() + first["msg"][1:]
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{name}: given {_short(first['input'])}, expected {expected}: {reason}{more}"


def _dotted_key(parts: Sequence[str]) -> ConfigError | None:
    """Return the error for a dotted key in a file or mapping (``train.steps: 3``), which is right as an option only."""
    name = ".".join(parts)
    try:
        _find_key(name)
    except ConfigError:
        return None
    first, *rest = name.split(".")
    example = "".join(f"{{{part}: " for part in rest)
    return ConfigError(
        f"key {parts[-1]!r} has dots, which only options have: nest it as {first}: {example}…{'}' * len(rest)}"
    )


def _short(value: Any) -> str:
    """Return ``repr(value)``, cut where it is long: an error is one line."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _longest_known(name: str) -> Key | None:
    keys = all_keys()
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        key = keys.get(".".join(parts[:length]))
        if key is not None:
            return key
    return None
