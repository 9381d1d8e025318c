# SPDX-License-Identifier: Apache-2.0
"""What an object must be like to be provided as a kind: one Protocol each, checked when a name is resolved.

A kind is either a *factory* (a class, or a function that returns the object: its Protocol is that of the object
it makes) or the object itself. Methods are checked; attributes that a class sets in ``__init__`` cannot be seen
before it is made and are left to whoever makes it.

The Protocols of platforms and communication backends live beside them. Those of packages that come later
(schedules, styles, storages, formats) are here, so that third parties can write against them now.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: One thing that a rank does in a pipeline step: (operation, stage, micro-batch), e.g. ``("F", 0, 3)``.
Action = tuple[str, int, int]


class Schedule(Protocol):
    """A pure generator of pipeline schedules."""

    def __call__(self, num_stages: int, num_micro_batches: int) -> Sequence[Sequence[Action]]:
        """Return the ordered actions of each rank.

        Operations are ``"F"`` (forward) and ``"B"`` (backward); further arguments must have defaults.
        """


class ParallelStyle(Protocol):
    """How one module is spread over one mesh axis or several."""

    def apply(self, module: Any, mesh: Any) -> Any:
        """Return the module, changed in place or replaced; called on every rank of ``mesh``."""


class Storage(Protocol):
    """Where checkpoint files are kept. Names are relative paths with ``/``."""

    def read(self, name: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Return ``nbytes`` (None: all) of a file from ``offset``; FileNotFoundError where there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole: a reader sees all of it or none of it."""

    def list(self, prefix: str = "") -> Sequence[str]:
        """Return the names that begin with ``prefix``, sorted."""

    def delete(self, name: str) -> None:
        """Delete a file; FileNotFoundError where there is none."""


class Format(Protocol):
    """How a state (name to tensor) is laid out in a storage."""

    def save(self, state: Any, storage: Any) -> None:
        """Write a state."""

    def load(self, storage: Any) -> Any:
        """Read a state."""


@dataclass(frozen=True)
class Kind:
    """What is expected of one kind.

    Attributes:
        summary: What it is, for the documentation and for messages.
        protocol: The Protocol, or where it is, or None where any callable (or, for exports, object) will do.
        factory: True when the target makes the object, False when it is the object.
        arguments: Names of arguments that the target must accept, where it is called directly.
        callables: The target must be callable.
        any_of: At least one of these methods must be there.
    """

    summary: str
    protocol: type | str | None = None
    factory: bool = False
    arguments: tuple[str, ...] = ()
    callables: bool = True
    any_of: tuple[str, ...] = ()


_CALLBACK_METHODS = ("on_train_begin", "on_step_end", "on_evaluation", "on_train_end", "on_exception")

KIND_TABLE: dict[str, Kind] = {
    "export": Kind("any public object, importable as `from hyper_parallel import NAME`", callables=False),
    "platform": Kind(
        "class of a framework backend, made without arguments",
        protocol="hp_core.platform.protocols:Platform",
        factory=True,
    ),
    "comm": Kind("class of a communication backend", protocol="hp_core.comm.backend:CommBackend", factory=True),
    "sharding_rule": Kind("function that says how an operator's inputs and outputs may be laid out"),
    "parallel_style": Kind("class with `apply(module, mesh)`", protocol=ParallelStyle, factory=True),
    "schedule": Kind(
        "function `(num_stages, num_micro_batches)` that returns each rank's list of actions",
        protocol=Schedule,
        arguments=("num_stages", "num_micro_batches"),
    ),
    "optimizer": Kind("class or function that makes an optimizer"),
    "storage": Kind("class with `read`, `write`, `list`, `delete`", protocol=Storage, factory=True),
    "format": Kind("class with `save(state, storage)` and `load(storage)`", protocol=Format, factory=True),
    "offload_policy": Kind("function or class that decides what is kept, recomputed, swapped"),
    "model_plan": Kind("function that returns the parallel plan of a model"),
    "kernel": Kind("function: one implementation of an operation"),
    "callback": Kind("class with at least one `on_…` method of a training run", factory=True, any_of=_CALLBACK_METHODS),
}


def check(kind: str, target: object) -> str:
    """Return what is wrong with ``target`` as a ``kind``, to follow its name in a message, or an empty string."""
    rule = KIND_TABLE[kind]
    if rule.callables and not callable(target):
        return f"is {target!r}: expected a {rule.summary}"
    if rule.arguments and (problem := _check_arguments(target, rule.arguments)):
        return problem
    # A function that makes the object says nothing of it before it is called.
    if rule.factory and not inspect.isclass(target):
        return ""
    if rule.any_of and not any(callable(getattr(target, name, None)) for name in rule.any_of):
        return f"has none of {', '.join(rule.any_of)}: expected a {rule.summary}"
    return "" if rule.protocol is None else check_members(target, _protocol(rule.protocol))


def check_members(target: object, protocol: type) -> str:
    """Return which methods of ``protocol`` a class or an object lacks, as a phrase, or an empty string."""
    missing = [name for name in _methods(protocol) if not callable(getattr(target, name, None))]
    if not missing:
        return ""
    return (
        f"lacks {', '.join(f'{name}()' for name in missing)}, which {protocol.__module__}.{protocol.__name__} asks for"
    )


def _methods(protocol: type) -> list[str]:
    names: dict[str, None] = {}
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False) and base is not Protocol:
            names.update(
                (name, None)
                for name, value in vars(base).items()
                if inspect.isfunction(value) and not name.startswith("_")
            )
    return sorted(names)


def _check_arguments(target: object, names: tuple[str, ...]) -> str:
    if not callable(target):
        return ""
    function: Callable[..., object] = target
    try:
        inspect.signature(function).bind(**dict.fromkeys(names))
    except TypeError as exc:
        return f"cannot be called with ({', '.join(names)}): {exc}"
    except ValueError:  # no signature to look at (some C functions)
        return ""
    return ""


def _protocol(protocol: type | str) -> type:
    if not isinstance(protocol, str):
        return protocol
    module, _, attribute = protocol.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found
