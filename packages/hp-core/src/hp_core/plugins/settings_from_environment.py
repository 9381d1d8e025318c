# SPDX-License-Identifier: Apache-2.0
"""What the user says about plugins in environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hp_core.errors import PluginError


def normalize(name: str) -> str:
    """Return a distribution's name as PEP 503 spells it: ``My_Plugin`` and ``my-plugin`` are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class PluginSettings:
    """The environment variables that steer plugin loading.

    Attributes:
        allow: ``HP_PLUGINS``: the only plugins that load, by plugin or distribution name; hp-core always
            loads. None (unset or empty): all.
        disable: ``HP_PLUGINS_DISABLE``: plugins that do not load.
        strict: ``HP_PLUGINS_STRICT=1``: any trouble with any plugin raises.
        prefer: ``HP_PREFER=kind:name=distribution``: which distribution is meant where several offer a name.
    """

    allow: frozenset[str] | None = None
    disable: frozenset[str] = frozenset()
    strict: bool = False
    prefer: Mapping[tuple[str, str], str] | None = None

    def preferred(self, kind: str, name: str) -> str | None:
        """Return the distribution that ``HP_PREFER`` names for ``kind:name``, or None."""
        return None if self.prefer is None else self.prefer.get((kind, name))


def read_settings(environ: Mapping[str, str] | None = None) -> PluginSettings:
    """Read the settings.

    Raises:
        PluginError: for a malformed ``HP_PREFER`` or ``HP_PLUGINS_STRICT``.
    """
    env = os.environ if environ is None else environ
    return PluginSettings(
        allow=_names(env.get("HP_PLUGINS", "")) or None,
        disable=_names(env.get("HP_PLUGINS_DISABLE", "")),
        strict=_flag("HP_PLUGINS_STRICT", env.get("HP_PLUGINS_STRICT", "")),
        prefer=_preferences(env.get("HP_PREFER", "")),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(normalize(part.strip()) for part in text.split(",") if part.strip())


def _flag(variable: str, text: str) -> bool:
    value = text.strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise PluginError(f"{variable}={text}: expected 1 or 0")


def _preferences(text: str) -> dict[tuple[str, str], str]:
    preferences: dict[tuple[str, str], str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\w+):([^=]+)=([\w.-]+)", part)
        if match is None:
            raise PluginError(
                f"HP_PREFER={text}: {part!r} must look like kind:name=distribution, e.g. comm:c10d=hp-core"
            )
        kind, name, distribution = match.groups()
        if preferences.setdefault((kind, name), normalize(distribution)) != normalize(distribution):
            raise PluginError(f"HP_PREFER={text}: {kind}:{name} is given to two distributions")
    return preferences
