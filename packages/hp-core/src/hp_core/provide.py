# SPDX-License-Identifier: Apache-2.0
"""``Provide``: one line in which a plugin says what it offers and where it lives."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hp_core.errors import PluginError, did_you_mean

#: What can be provided. `hp_core.kinds` says which Protocol each of them must satisfy.
KINDS = (
    "export",
    "platform",
    "comm",
    "sharding_rule",
    "parallel_style",
    "schedule",
    "optimizer",
    "storage",
    "format",
    "offload_policy",
    "model_plan",
    "kernel",
    "callback",
)

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Provide:
    """One thing that a plugin offers, as strings: nothing is imported until somebody asks for it.

    Attributes:
        kind: One of `KINDS`.
        name: The name under which it is asked for, e.g. ``"c10d"``.
        target: Where it is, ``"package.module:attribute"``.
        platform: The platform (``"torch"``, ``"mindspore"``) that it needs; None serves every platform.
        priority: Orders `hp_core.registry.names`, highest first, so that whoever picks a default takes the first.
            It never decides between two distributions that offer the same name.
        replaces: Name of the distribution whose offer of the same kind and name this one takes the place of.

    Raises:
        PluginError: for an unknown kind, an empty name or a target that is not ``"package.module:attribute"``.
    """

    kind: str
    name: str
    target: str
    platform: str | None = None
    priority: int = 0
    replaces: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PluginError(
                f"Provide({self.kind!r}, {self.name!r}): unknown kind {self.kind!r}{did_you_mean(self.kind, KINDS)}"
                f" (kinds: {', '.join(KINDS)})"
            )
        if not isinstance(self.name, str) or not self.name or self.name != self.name.strip():
            raise PluginError(f"Provide({self.kind!r}, {self.name!r}): the name must be a non-empty string")
        if not isinstance(self.target, str) or not _TARGET.fullmatch(self.target):
            raise PluginError(
                f"Provide({self.kind!r}, {self.name!r}): target {self.target!r} must look like"
                " 'package.module:attribute'"
            )

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" + (f" ({self.platform})" if self.platform else "")
