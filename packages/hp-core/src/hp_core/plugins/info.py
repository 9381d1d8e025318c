# SPDX-License-Identifier: Apache-2.0
"""What became of each installed plugin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hp_core.provide import Provide

State = Literal["active", "incompatible", "broken", "blocked"]


@dataclass(frozen=True)
class Offer:
    """A `Provide` line with where it comes from."""

    provide: Provide
    plugin: str
    distribution: str


@dataclass(frozen=True)
class PluginInfo:
    """One installed plugin.

    Attributes:
        name: Entry-point name.
        distribution: The distribution that installed it.
        version: That distribution's version.
        value: The module it lives in.
        state: ``active``; ``incompatible`` (a requirement of its distribution does not hold); ``broken`` (it
            raised, or is not a proper plugin); ``blocked`` (by ``HP_PLUGINS`` or ``HP_PLUGINS_DISABLE``).
        why: The reason and the fix in one line, empty when active.
        offers: What it provides; for a plugin that is not active, what its source says it would provide.
        hooks: Names of the hooks that it implements.
        error: What it raised, if it did.
    """

    name: str
    distribution: str
    version: str
    value: str
    state: State
    why: str = ""
    offers: tuple[Provide, ...] = ()
    hooks: tuple[str, ...] = ()
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def well(self) -> bool:
        """True when it is active, or out of use because the user said so."""
        return self.state in ("active", "blocked")

    def describe(self) -> str:
        """Return one line: which plugin, its state and why."""
        return f"plugin {self.name!r} of {self.distribution} {self.version}, which is {self.state}" + (
            f" ({self.why})" if self.why else ""
        )
