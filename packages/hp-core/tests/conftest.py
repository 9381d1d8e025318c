# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several test files use."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from hp_core import plugins

Install = Callable[..., Path]


def write_distribution(
    site: Path,
    name: str,
    source: str | None,
    *,
    version: str = "1.0",
    plugin: str | None = None,
    requires: Sequence[str] = (),
    header: str = "from hp_core.plugins import hookimpl\nfrom hp_core.registry import Provide\n",
) -> Path:
    """Install a distribution as pip would: a module, and a dist-info with metadata and entry points.

    Its module is the distribution's name with underscores; without ``source`` the entry point leads nowhere.
    """
    module = name.replace("-", "_").lower()
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nA description.\n")
    (info / "entry_points.txt").write_text(f"[hyper_parallel]\n{plugin or module} = {module}\n")
    if source is not None:
        (site / f"{module}.py").write_text(header + textwrap.dedent(source))
    return site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An empty folder for packages, not yet on any path."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install fake distributions into this process; plugins are read afresh at the next use."""
    for variable in ("HP_PLUGINS", "HP_PLUGINS_DISABLE", "HP_PLUGINS_STRICT", "HP_PREFER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def write(name: str, source: str | None, **options: object) -> Path:
        write_distribution(site, name, source, **options)  # type: ignore[arg-type]
        importlib.invalidate_caches()
        plugins.reload()
        return site

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(site)):
            del sys.modules[name]
    plugins.reload()
