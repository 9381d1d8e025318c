# SPDX-License-Identifier: Apache-2.0
"""Are the requirements that a distribution declares met by what is installed?"""

from __future__ import annotations

import importlib.metadata
import shlex
from dataclasses import dataclass

from hp_core.plugins.plain_requirement import parse_plain
from hp_core.plugins.settings_from_environment import normalize


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


@dataclass(frozen=True)
class _Required:
    """A requirement whose marker holds, and the version that was found."""

    name: str
    extras: frozenset[str]
    text: str
    installed: str | None
    holds: bool


def unmet_requirements(metadata: importlib.metadata.Distribution, extra: str | None = None) -> list[Unmet]:
    """Return the requirements (``Requires-Dist``) of a distribution that do not hold, in declared order.

    With ``extra``, only those which that extra adds. Markers are evaluated for the running interpreter.
    ``name[extra]`` also checks what the extra of ``name`` asks for. Requirements of requirements are pip's
    business and not checked otherwise.
    """
    return _unmet(metadata, frozenset() if extra is None else frozenset({extra}), set())


def install_command(unmet: list[Unmet]) -> str:
    """Return the command that mends ``unmet``."""
    return "pip install " + " ".join(shlex.quote(item.requirement) for item in unmet)


def _unmet(
    metadata: importlib.metadata.Distribution, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]
) -> list[Unmet]:
    unmet: list[Unmet] = []
    for line in metadata.requires or ():
        required = _read(line, extras)
        if required is None:
            continue
        if not required.holds:
            unmet.append(Unmet(required.text, required.installed))
            continue
        key = (normalize(required.name), required.extras)
        if required.extras and key not in seen:
            seen.add(key)
            unmet.extend(_unmet(importlib.metadata.distribution(required.name), required.extras, seen))
    return unmet


def _read(line: str, extras: frozenset[str]) -> _Required | None:
    """Return what a line requires, or None when its marker rules it out."""
    plain = parse_plain(line)
    if plain is None:
        return _read_any(line, extras)
    if (plain.extra is not None) != bool(extras) or (
        plain.extra is not None and normalize(plain.extra) not in map(normalize, extras)
    ):
        return None
    installed = _installed(plain.name)
    text = plain.name + (f"[{','.join(sorted(plain.extras))}]" if plain.extras else "") + plain.specifier
    if installed is None:
        return _Required(plain.name, plain.extras, text, None, holds=False)
    holds = plain.holds(installed)
    return _read_any(line, extras) if holds is None else _Required(plain.name, plain.extras, text, installed, holds)


def _read_any(line: str, extras: frozenset[str]) -> _Required | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return _Required(line, frozenset(), line, None, holds=False)
    marker = requirement.marker
    without = marker is None or marker.evaluate({"extra": ""})
    # With extras, only what they add: the plain requirements of a sibling are its own business.
    wanted = (
        any(marker.evaluate({"extra": extra}) for extra in extras) and not without if extras and marker else without
    )
    if not wanted or (extras and marker is None):
        return None
    installed = _installed(requirement.name)
    extra_names = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    text = f"{requirement.name}{extra_names}" + (
        f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    )
    holds = installed is not None and requirement.specifier.contains(installed, prereleases=True)
    return _Required(requirement.name, frozenset(requirement.extras), text, installed, holds)


def _installed(name: str) -> str | None:
    try:
        metadata = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    # Straight from the header: `metadata.version` parses the whole file as a mail, 2 ms for each of a dozen packages.
    header = (metadata.read_text("METADATA") or "").partition("\n\n")[0]
    version = next((line for line in header.splitlines() if line.startswith("Version:")), "")
    return version.removeprefix("Version:").strip() or metadata.version or "an unknown version"
