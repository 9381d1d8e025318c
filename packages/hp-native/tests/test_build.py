# SPDX-License-Identifier: Apache-2.0
"""Building the wheel: with a compiler, without one, and with what cannot be built.

Most tests build a copy of the package with one C++ file of the library, and call the build backend as pip does.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hp_native

PACKAGE = Path(__file__).parent.parent
NOWHERE = "/nonexistent/c++"
STRICT_OFF = {"cmake.define.HP_NATIVE_STRICT": "OFF"}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The package with the library's version as its only C++ file."""
    folder = tmp_path / "sources"
    shutil.copytree(PACKAGE / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE / "cmake", folder / "cmake")
    shutil.copytree(PACKAGE / "native" / "include", folder / "native" / "include")
    (folder / "native" / "core").mkdir()
    for name in ("CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", "native/core/version.cpp"):
        shutil.copy(PACKAGE / name, folder / name)
    return folder


def environment(**changes: str) -> dict[str, str]:
    """Return this environment without what would change a build."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SKBUILD_", "CMAKE_"))}
    kept.pop("CXX", None)
    return kept | changes


def build(sources: Path, settings: dict[str, str] | None = None, **changes: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel into the folder ``wheel`` beside the sources, as pip with these config settings would."""
    code = f"from scikit_build_core.build import build_wheel; build_wheel('../wheel', {settings or {}!r})"
    command = [sys.executable, "-c", code]
    (sources.parent / "wheel").mkdir(exist_ok=True)
    return subprocess.run(command, cwd=sources, env=environment(**changes), capture_output=True, text=True, check=False)


def said(result: subprocess.CompletedProcess[str]) -> str:
    """Return what was printed, on one line: CMake breaks lines where it likes."""
    return " ".join((result.stdout + result.stderr).split())


def unpacked(sources: Path) -> Path:
    """Unpack the wheel that was built, and return the folder."""
    (wheel,) = (sources.parent / "wheel").glob("*.whl")
    folder = sources.parent / "site"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run_with(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process where ``site`` comes before everything that is installed."""
    paths = os.pathsep.join([str(site), *sys.path])
    return subprocess.run(
        [sys.executable, "-S", "-c", code],  # -S: the import hook of an editable installation would come first
        env=environment(PYTHONPATH=paths, OMP_NUM_THREADS="1", HP_PLATFORM="torch"),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_serves_every_python_and_holds_the_library(sources: Path) -> None:
    foreign = "neon" if platform.machine() == "x86_64" else "avx512"
    (sources / "native" / "core" / f"other_{foreign}.cpp").write_text("#error for another processor\n")
    own = "avx512" if foreign == "neon" else "neon"
    (sources / "native" / "core" / f"own_{own}.cpp").write_text(
        "#if defined(__FMA__) && !defined(__AVX512F__)\n#error contracts\n#endif\n"
        "#if !defined(__AVX512DQ__) && !defined(__ARM_NEON)\n#error wrong flags\n#endif\n"
    )
    result = build(sources)
    assert result.returncode == 0, said(result)
    (wheel,) = (sources.parent / "wheel").glob("*.whl")
    assert wheel.name == f"hp_native-{hp_native.__version__}-py3-none-linux_{platform.machine()}.whl"
    site = unpacked(sources)
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    package = {name for name in files if ".dist-info/" not in name}
    python = {path.relative_to(PACKAGE / "src").as_posix() for path in (PACKAGE / "src").rglob("*.py")}
    assert package == python | {"hp_native/py.typed", "hp_native/libhp_native.so", "hp_native/build_info.json"}
    loaded = run_with(site, "from hp_native import library as l; print(l.path()); print(l.load().hpn_build_info())")
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.startswith(f"{site}/hp_native/libhp_native.so\n")
    assert f"generic,{own}" in loaded.stdout


def test_without_a_compiler_the_installation_fails_and_says_what_to_do(sources: Path) -> None:
    result = build(sources, CXX=NOWHERE)
    assert result.returncode != 0
    assert (
        f"part symmetric_memory cannot be built: CXX={NOWHERE} is not a working C++ compiler; "
        f"on Debian and Ubuntu: apt-get install g++" in said(result)
    )
    assert "pip install hp-native --config-settings=cmake.define.HP_NATIVE_STRICT=OFF" in said(result)
    assert list((sources.parent / "wheel").iterdir()) == []


def test_without_a_compiler_and_not_strict_hp_core_says_why_once_and_uses_gloo(sources: Path) -> None:
    result = build(sources, STRICT_OFF, CXX=NOWHERE)
    assert result.returncode == 0, said(result)
    site = unpacked(sources)
    assert not list(site.rglob("*.so"))
    code = """
import torch
import hp_core.comm as comm
import hp_native
print(hp_native.__file__)
world = comm.init_backend("cpu")
print(world.backend, comm.all_reduce(torch.ones(2)).tolist(), comm.new_group([0]).backend)
comm.shutdown()
"""
    ran = run_with(site, code)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [f"{site}/hp_native/__init__.py", "c10d [1.0, 1.0] c10d"]
    assert ran.stderr.count("comm backends 'shm' and 'hier' are not used") == ran.stderr.count("not used") == 1
    assert f"without its C++ library: CXX={NOWHERE} is not a working C++ compiler" in ran.stderr
    assert "when that is mended: pip install --force-reinstall" in ran.stderr


def test_a_part_that_does_not_compile_fails_the_installation(sources: Path) -> None:
    (sources / "native" / "core" / "broken.cpp").write_text("int broken() { return nonsense; }\n")
    result = build(sources)
    assert result.returncode != 0
    assert "broken.cpp:1:" in said(result)
    assert "pip install hp-native --config-settings=cmake.define.HP_NATIVE_STRICT=OFF" in said(result)


def test_a_part_that_does_not_compile_is_left_out_with_the_compilers_words_where_not_strict(sources: Path) -> None:
    broken = sources / "native" / "core" / "broken.cpp"
    broken.write_text('int broken() { return "a\\tb" + nonsense; }\n')  # what JSON must escape
    result = build(sources, STRICT_OFF)
    assert result.returncode == 0, said(result)
    ran = run_with(unpacked(sources), "from hp_native import build_info; print(build_info.read().left_out)")
    assert "it does not compile with" in ran.stdout, ran.stderr
    assert "native/core/broken.cpp:1:" in ran.stdout
    assert "nonsense" in ran.stdout


def test_not_strict_builds_what_compiles(sources: Path) -> None:
    result = build(sources, STRICT_OFF)
    assert result.returncode == 0, said(result)
    ran = run_with(unpacked(sources), "from hp_native import library; print(library.load().hpn_abi_version())")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("PARTS", "symmetric_memory,multicore", "part multicore cannot be built: this part is not there yet"),
        ("PARTS", "multi", "there is no part 'multi'; the parts are: symmetric_memory"),
        ("SANITIZE", "adress", "'adress' is none of address, undefined, thread"),
        ("SANITIZE", "address,thread", "address and thread exclude each other"),
    ],
)
def test_options_that_cannot_be_are_refused(sources: Path, option: str, value: str, message: str) -> None:
    command = ["cmake", "-S", str(sources), "-B", str(sources.parent / "build"), f"-DHP_NATIVE_{option}={value}"]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert message in said(result)


@pytest.mark.full
def test_pip_builds_the_source_distribution_in_an_environment_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "-o", str(tmp_path), str(PACKAGE)]
    subprocess.run(command, check=True, capture_output=True, env=environment())
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    core = str(PACKAGE.parent / "hp-core")
    command = [python, "-m", "pip", "install", "-q", core, str(archive)]
    installed = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert installed.returncode == 0, said(installed)
    command = [python, "-c", "from hp_native import library; print(library.load() and library.state())"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ran.stdout.startswith(f"{hp_native.__version__}, "), ran.stderr
