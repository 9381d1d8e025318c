# SPDX-License-Identifier: Apache-2.0
"""Are the requirements that a distribution declares met by what is installed?"""

from __future__ import annotations

import importlib.metadata
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hp_core.plugin_settings import normalize

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Unmet:
    """One requirement that does not hold.

    Attributes:
        requirement: What is required, as pip takes it (no marker).
        installed: The version that is installed, or None.
    """

    requirement: str
    installed: str | None

    def __str__(self) -> str:
        have = f"{self.installed} is installed" if self.installed else "it is not installed"
        return f"{self.requirement} is required, but {have}"


def unmet_requirements(metadata: importlib.metadata.Distribution) -> list[Unmet]:
    """Return the requirements (``Requires-Dist``) of a distribution that do not hold, in declared order.

    Markers are evaluated for the running interpreter. ``name[extra]`` also checks what the extra of ``name``
    asks for. Requirements of requirements are pip's business and not checked otherwise.
    """
    return _unmet(metadata, frozenset(), set())


def install_command(unmet: list[Unmet]) -> str:
    """Return the command that mends ``unmet``."""
    return "pip install " + " ".join(shlex.quote(item.requirement) for item in unmet)


def _unmet(
    metadata: importlib.metadata.Distribution, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]
) -> list[Unmet]:
    # Imported here: it costs as much as the whole scan, and a machine without third-party plugins in its
    # `hp --help` should not pay before anything is asked.
    from packaging.requirements import InvalidRequirement, Requirement

    unmet: list[Unmet] = []
    for line in metadata.requires or ():
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            unmet.append(Unmet(line, None))
            continue
        if _applies(requirement, extras):
            unmet.extend(_check(requirement, seen))
    return unmet


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return not extras
    if extras:
        # Only what the extras add: the plain requirements of a sibling are its own business.
        return not requirement.marker.evaluate({"extra": ""}) and any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        )
    return requirement.marker.evaluate({"extra": ""})


def _check(requirement: Requirement, seen: set[tuple[str, frozenset[str]]]) -> list[Unmet]:
    wanted = str(requirement.specifier)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    text = f"{requirement.name} @ {requirement.url}" if requirement.url else f"{requirement.name}{extras}{wanted}"
    try:
        metadata = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return [Unmet(text, None)]
    version = metadata.version or ""
    if not requirement.specifier.contains(version, prereleases=True):
        return [Unmet(text, version or "an unknown version")]
    key = (normalize(requirement.name), frozenset(requirement.extras))
    if not requirement.extras or key in seen:
        return []
    seen.add(key)
    return _unmet(metadata, frozenset(requirement.extras), seen)
