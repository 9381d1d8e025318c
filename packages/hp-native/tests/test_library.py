# SPDX-License-Identifier: Apache-2.0
"""Loading ``libhp_native.so``, and what is said where it cannot be."""

from __future__ import annotations

import ctypes
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hp_native
from hp_core.errors import HPError, PluginError
from hp_native import build_info, library

HEADER = Path(__file__).parent.parent / "native" / "include" / "hp_native.h"
BUILT = {
    "version": hp_native.__version__,
    "system": "Linux x86_64",
    "compiler": "GNU 12.2.0",
    "flags": "-O3",
    "isa": ["generic"],
    "sanitizers": [],
    "parts": ["symmetric_memory"],
    "left_out": {},
}
Installation = Callable[..., Path]


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """Make hp_native look like an installation in an empty folder, with the given build_info.json."""
    monkeypatch.setattr(hp_native, "__path__", [str(tmp_path)])
    library.load.cache_clear()

    def write(**changes: object) -> Path:
        (tmp_path / "build_info.json").write_text(json.dumps(BUILT | changes))
        return tmp_path

    yield write
    library.load.cache_clear()


def test_the_installed_library_is_of_the_version_and_abi_of_the_python_files() -> None:
    loaded = library.load()
    assert loaded.hpn_abi_version() == library.ABI_VERSION
    assert loaded.hpn_build_info().decode().startswith(f"hp-native {hp_native.__version__}, ")
    assert library.load() is loaded
    assert library.state() in loaded.hpn_build_info().decode()


def test_the_abi_number_of_the_header_and_of_python_agree() -> None:
    number = re.search(r"^#define HPN_ABI_VERSION (\d+)$", HEADER.read_text(), re.MULTILINE)
    assert number is not None
    assert int(number[1]) == library.ABI_VERSION


def test_every_function_of_the_header_and_nothing_else_is_exported() -> None:
    declared = set(re.findall(r"^HPN_API .*?\b(hpn_\w+)\(", HEADER.read_text(), re.MULTILINE))
    tool = shutil.which("nm")
    assert tool is not None, "nm comes with the compiler"
    command = [tool, "--dynamic", "--defined-only", str(library.path())]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert {line.split()[-1] for line in lines} == declared


def test_the_build_says_what_it_holds() -> None:
    info = build_info.read()
    assert info.version == hp_native.__version__
    assert info.parts == (library.PART,)
    assert info.left_out == {}
    assert info.sanitizers == ()
    assert "-O3" in info.flags
    assert "-ffp-contract=off" in info.flags
    assert "fma" not in info.flags
    variants = {"x86_64": ("generic", "avx2", "avx512"), "aarch64": ("generic", "neon")}
    assert info.isa == variants[platform.machine()]


def test_a_library_left_out_says_why_and_how_to_get_it(installation: Installation) -> None:
    installation(parts=[], left_out={"symmetric_memory": "no compiler; apt-get install g++"})
    with pytest.raises(PluginError) as raised:
        library.load()
    assert str(raised.value) == (
        "hp-native was installed without its C++ library: no compiler; apt-get install g++; "
        f"when that is mended: {library.REBUILD}"
    )
    assert raised.value.fix == library.REBUILD
    assert isinstance(raised.value, HPError)
    assert library.state() == ("hp-native was installed without its C++ library: no compiler; apt-get install g++")


def test_a_library_that_was_not_asked_for_says_so(installation: Installation) -> None:
    installation(parts=["other"])
    with pytest.raises(PluginError, match=r"only other was asked for \(HP_NATIVE_PARTS\)"):
        library.load()


def test_sources_that_were_never_built_say_so(installation: Installation) -> None:
    with pytest.raises(PluginError, match=r"was never built; pip install hp-native builds and installs it"):
        library.load()


def test_a_library_that_has_gone_is_missed(installation: Installation) -> None:
    folder = installation()
    with pytest.raises(PluginError, match=rf"no longer in {folder}; to get it back: pip install"):
        library.load()


def test_a_library_for_another_machine_is_named_with_its_error(installation: Installation) -> None:
    file = installation() / "libhp_native.so"
    file.write_bytes(b"\x7fELF not really")
    with pytest.raises(PluginError, match=r"libhp_native.so cannot be loaded \(.*\); to build it on this machine: pip"):
        library.load()


def test_a_library_that_is_no_such_library_is_refused(installation: Installation) -> None:
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line)
    shutil.copy(libm, installation() / "libhp_native.so")
    with pytest.raises(PluginError, match=r"cannot be loaded \(.*hpn_abi_version\)"):
        library.load()


def test_files_of_two_versions_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    library.load.cache_clear()
    monkeypatch.setattr(library, "ABI_VERSION", library.ABI_VERSION + 1)
    with pytest.raises(
        PluginError, match=rf"has ABI {library.ABI_VERSION - 1}, but .* need ABI {library.ABI_VERSION};"
    ):
        library.load()


def test_loading_gives_a_library_that_releases_the_gil() -> None:
    assert type(library.load()) is ctypes.CDLL  # PyDLL would keep it
