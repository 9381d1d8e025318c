# SPDX-License-Identifier: Apache-2.0
"""The wheels: what is in them, and that no two of them share a file."""

import subprocess
import sys
import zipfile
from collections import defaultdict
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheels")
    for package in PACKAGES:
        command = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation", "-o", str(folder)]
        subprocess.run([*command, str(ROOT / "packages" / package)], check=True, capture_output=True)
    return {path.name.split("-")[0].replace("_", "-"): zipfile.ZipFile(path) for path in folder.glob("*.whl")}


def test_each_package_builds(wheels: dict[str, zipfile.ZipFile]) -> None:
    assert sorted(wheels) == PACKAGES


def test_no_two_wheels_share_a_file(wheels: dict[str, zipfile.ZipFile]) -> None:
    owners = defaultdict(list)
    for package, wheel in wheels.items():
        for name in wheel.namelist():
            owners[name].append(package)
    assert {name: who for name, who in owners.items() if len(who) > 1} == {}


def test_wheels_carry_type_marker_licence_and_nothing_foreign(wheels: dict[str, zipfile.ZipFile]) -> None:
    for package, wheel in wheels.items():
        names = wheel.namelist()
        assert any(name.endswith("licenses/LICENSE") for name in names), package
        if package == "hyper-parallel":
            assert all(".dist-info/" in name for name in names), names
            continue
        assert f"{package.replace('-', '_')}/py.typed" in names
        assert not [name for name in names if name.startswith(("tests/", "examples/"))]


def test_metadata_declares_the_licence_and_the_pythons(wheels: dict[str, zipfile.ZipFile]) -> None:
    for package, wheel in wheels.items():
        metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(wheel.read(metadata).decode())
        assert fields["License-Expression"] == "Apache-2.0", package
        assert fields["Requires-Python"] == ">=3.10", package


def test_metapackage_extras_are_the_frameworks(wheels: dict[str, zipfile.ZipFile]) -> None:
    wheel = wheels["hyper-parallel"]
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    fields = Parser().parsestr(wheel.read(metadata).decode())
    assert sorted(fields.get_all("Provides-Extra") or []) == ["mindspore", "npu", "torch"]
