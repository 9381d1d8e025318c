# SPDX-License-Identifier: Apache-2.0
"""The requirement lines that nearly every distribution has, read without importing ``packaging``.

Importing ``packaging.requirements`` costs about as much as all other work of loading plugins. Lines such as
``numpy>=1.26``, ``hp-core[torch]>=0.1,<0.2`` and ``torch>=2.6; extra == "torch"``, held against versions such as
``2.13.0+cpu``, need none of its generality. For all else `parse_plain` and `holds` return None: ask packaging.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"(?:\[(?P<extras>[A-Za-z0-9._, -]+)\])?"
    r"\s*(?P<bounds>(?:(?:>=|<)\s*[0-9]+(?:\.[0-9]+)*\s*(?:,\s*(?=[><])|(?=;|$)))*)"
    r"\s*(?:;\s*extra\s*==\s*(?P<quote>['\"])(?P<extra>[A-Za-z0-9._-]+)(?P=quote))?\s*"
)
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")
_VERSION = re.compile(r"([0-9]+(?:\.[0-9]+)*)(?:\+[A-Za-z0-9.]+)?")

Release = tuple[int, ...]


@dataclass(frozen=True)
class PlainRequirement:
    """One line: what is required, within which bounds, and for which extra of the distribution that says so."""

    name: str
    extras: frozenset[str]
    bounds: tuple[tuple[str, Release], ...]
    specifier: str
    extra: str | None

    def holds(self, version: str) -> bool | None:
        """Return whether ``version`` is within the bounds; None for a version that is not plain."""
        match = _VERSION.fullmatch(version)
        if match is None:
            return None
        release = _release(match[1])
        return all(release >= bound if operator == ">=" else release < bound for operator, bound in self.bounds)


def parse_plain(line: str) -> PlainRequirement | None:
    """Return the requirement that a ``Requires-Dist`` line states, or None when it is not a plain one."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        return None
    bounds = _BOUND.findall(match["bounds"])
    return PlainRequirement(
        match["name"],
        frozenset(part.strip() for part in (match["extras"] or "").split(",") if part.strip()),
        tuple((operator, _release(text)) for operator, text in bounds),
        ",".join(sorted(operator + text for operator, text in bounds)),
        match["extra"],
    )


def _release(text: str) -> Release:
    numbers = [int(part) for part in text.split(".")]
    while numbers and numbers[-1] == 0:  # 1.0 and 1 are one version
        numbers.pop()
    return tuple(numbers)
