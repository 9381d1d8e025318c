# SPDX-License-Identifier: Apache-2.0
"""Requirements of plugins: the short way of reading them agrees with packaging."""

from __future__ import annotations

import importlib.metadata
import itertools
import subprocess
import sys

import pytest
from packaging.requirements import Requirement

from hp_core.plugins.plain_requirement import parse_plain
from hp_core.plugins.requirements import Unmet, install_command, unmet_requirements

LINES = [
    "numpy",
    "numpy>=1.26",
    "numpy >=1.26",
    "numpy<2",
    "numpy>=1.26,<2.4",
    "numpy<2.4.0, >=1.26",
    "hp-core[torch]>=0.1,<0.2",
    "a.b_c[x,y]>=3",
    'torch>=2.6; extra == "torch"',
    "torch>=2.6 ; extra == 'torch'",
    "torch>=2.13.0; extra == 'torch'",
]
VERSIONS = [
    "1.26",
    "1.26.0",
    "1.25.9",
    "2",
    "2.0.0",
    "2.3.9",
    "2.4",
    "2.4.0+cpu",
    "2.6",
    "2.13.0+cpu",
    "3",
    "0.1.0",
    "0.2",
]


@pytest.mark.parametrize(("line", "version"), list(itertools.product(LINES, VERSIONS)))
def test_plain_lines_mean_what_packaging_says(line: str, version: str) -> None:
    plain, full = parse_plain(line), Requirement(line)
    assert plain is not None
    assert (plain.name, plain.extras, plain.specifier) == (full.name, full.extras, str(full.specifier))
    assert plain.holds(version) is full.specifier.contains(version, prereleases=True)
    wanted = full.marker is None or full.marker.evaluate({"extra": plain.extra or ""})
    assert wanted


@pytest.mark.parametrize(
    "line",
    [
        "numpy==1.26.*",
        "numpy~=1.26",
        "numpy!=1.26",
        "numpy>=1.26rc1",
        "numpy>1.26",
        "numpy>=1.26; python_version < '3.12'",
        "numpy>=1.26; extra == 'a' and extra == 'b'",
        "numpy @ https://example.org/numpy.whl",
        "numpy>=1.26,",
        "numpy>=",
        "-numpy",
        "",
    ],
)
def test_other_lines_are_left_to_packaging(line: str) -> None:
    assert parse_plain(line) is None


@pytest.mark.parametrize("version", ["1.26rc1", "1.26.dev3", "1!2.0", "1.26.post1", "unknown"])
def test_other_versions_are_left_to_packaging(version: str) -> None:
    plain = parse_plain("numpy>=1.26")
    assert plain is not None
    assert plain.holds(version) is None


def test_what_is_installed_here_is_met_in_both_ways() -> None:
    # pytest's own requirements, which pip resolved, hold; so do those of an extra that is installed.
    assert unmet_requirements(importlib.metadata.distribution("pytest")) == []


def test_command_is_quoted_for_the_shell() -> None:
    command = install_command([Unmet("a[b]>=1,<2", "0.5"), Unmet("plain", None)])
    assert command == "pip install 'a[b]>=1,<2' plain"


def test_our_own_plugins_load_without_packaging() -> None:
    code = "import sys; from hp_core import plugins; plugins.hooks(); print('packaging.requirements' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
