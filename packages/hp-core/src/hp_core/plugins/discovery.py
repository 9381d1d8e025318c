# SPDX-License-Identifier: Apache-2.0
"""Entry points of group ``hyper_parallel``, read as strings from the metadata of what is installed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass, field

from hp_core.catalog import FIRST_PARTY
from hp_core.plugins.settings_from_environment import normalize

GROUP = "hyper_parallel"


@dataclass(frozen=True)
class Found:
    """One entry point, nothing imported.

    Attributes:
        name: The entry point's name, which is the plugin's.
        value: The module it points to, ``"package._plugin"``.
        distribution: The distribution's name as it spells it.
        version: Its version.
        metadata: The distribution itself, for its requirements and files.
    """

    name: str
    value: str
    distribution: str
    version: str
    metadata: importlib.metadata.Distribution = field(compare=False, repr=False)

    @property
    def first_party(self) -> bool:
        """True for the distributions of this project."""
        return normalize(self.distribution) in FIRST_PARTY


def find_plugins() -> list[Found]:
    """Return all entry points in the order in which they load: first-party, then by distribution and name.

    The order does not depend on that of ``sys.path`` or of a folder's listing, except that of several versions
    of one distribution the first on ``sys.path`` counts, as it does for imports.
    """
    found = [entry for metadata in _distributions() for entry in _entries(metadata)]
    return sorted(found, key=lambda entry: (*order(entry.distribution), entry.name, entry.value))


def order(distribution: str) -> tuple[bool, bool, str]:
    """Return the sort key of a distribution: hp-core, the other first-party ones, then third parties."""
    name = normalize(distribution)
    return (name != "hp-core", name not in FIRST_PARTY, name)


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    seen: set[str] = set()
    for metadata in importlib.metadata.distributions():
        # Reading the small entry-point file first spares parsing the metadata of everything installed.
        if GROUP not in (metadata.read_text("entry_points.txt") or ""):
            continue
        name = metadata.metadata["Name"] or ""
        if name and normalize(name) not in seen:
            seen.add(normalize(name))
            # The version that an import would find, should an older one lie further down on sys.path.
            yield importlib.metadata.distribution(name)


def _entries(metadata: importlib.metadata.Distribution) -> Iterator[Found]:
    for entry in metadata.entry_points:
        if entry.group == GROUP:
            # "module [extra]" is an old form; the extra says nothing to us.
            value = entry.value.partition("[")[0].strip()
            yield Found(entry.name, value, metadata.metadata["Name"], metadata.version or "", metadata)
