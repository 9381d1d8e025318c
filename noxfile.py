# SPDX-License-Identifier: Apache-2.0
"""Every command of the project, each with the set-up that it needs.

``python3 noxfile.py -s NAME`` works with nothing installed: without nox, this file makes a small
environment for it in ``.venvs/nox`` and runs itself again there. ``nox -s NAME`` works too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENVS = ROOT / ".venvs"
WHEELHOUSE = ROOT / "wheelhouse"
CONSTRAINTS = ROOT / "constraints.txt"
CONSTRAINTS_MINDSPORE = ROOT / "constraints-mindspore.txt"
# Kept between runs, so that C++ that did not change is not compiled again.
NATIVE_BUILD = ROOT / ".cache" / "native" / "wheel"
OLDEST = (3, 10)


def _die(message: str) -> None:
    sys.exit(f"error: {message}")


def _bin(environment: Path, program: str) -> str:
    return str(environment / "bin" / program)


def _create_venv(environment: Path) -> None:
    """Make an empty virtual environment, or say what the system lacks."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        _die(
            f"this Python ({sys.executable}) cannot make virtual environments; on Debian and Ubuntu that is a package "
            f"of its own: apt-get install python3-venv (or python{version}-venv), then run the same command again"
        )
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)


def _bootstrap() -> None:
    """Run nox on this file, from an environment made for it when nox is not installed."""
    if sys.version_info < OLDEST:
        _die(f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed, this is {sys.version.split()[0]} ({sys.executable})")
    arguments = ["-m", "nox", "-f", str(ROOT / "noxfile.py"), *sys.argv[1:]]
    try:
        import nox  # noqa: F401
    except ImportError:
        environment = VENVS / "nox"
        python = _bin(environment, "python")
        done = environment / ".complete"
        if not done.exists():
            print("nox is not installed: making an environment for it in .venvs/nox", flush=True)
            _create_venv(environment)
            subprocess.run([python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), "nox"], check=True)
            done.touch()
        os.execv(python, [python, *arguments])  # noqa: S606
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


if __name__ == "__main__":
    _bootstrap()

import nox  # noqa: E402

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests", "check", "alone"]
nox.options.default_venv_backend = "none"

PACKAGES = sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml"))
TOOLS = [
    "build", "cmake", "hatchling", "hypothesis", "import-linter", "mkdocs-material", "mkdocstrings-python", "mypy",
    "ninja", "pytest", "ruff", "scikit-build-core", "towncrier", "types-PyYAML",
]  # fmt: skip
QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _digest(paths: list[Path], *more: str) -> str:
    """Return a hash of the files' names and contents and of the words given."""
    state = hashlib.sha256("\0".join(more).encode())
    for path in sorted(paths):
        state.update(str(path.relative_to(ROOT)).encode())
        state.update(path.read_bytes())
    return state.hexdigest()


def _sources() -> list[Path]:
    found = [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("packages/*/README.md")]
    found += [*ROOT.glob("packages/*/CMakeLists.txt"), *ROOT.glob("packages/*/cmake/*")]
    folders = ("src", "native/core", "native/include")
    found += [path for folder in folders for path in ROOT.glob(f"packages/*/{folder}/**/*") if path.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def _build_wheels(session: nox.Session, python: str) -> None:
    """Build every package's wheel into ``wheelhouse/`` with the build backends of ``python``'s environment."""
    shutil.rmtree(WHEELHOUSE, ignore_errors=True)
    for package in PACKAGES:
        session.run(
            python, "-m", "build", "--wheel", "--no-isolation", "-o", str(WHEELHOUSE), f"packages/{package}",
            external=True, silent=True, env={"SKBUILD_BUILD_DIR": str(NATIVE_BUILD)},
        )  # fmt: skip


def _shared(session: nox.Session) -> Path:
    """Return the one shared environment, made or brought up to date where it is not.

    Torch and its kin take a gigabyte, so that one environment serves all sessions. It holds the wheels
    (not the sources) of our packages: what is tested is what a user installs.
    """
    environment = VENVS / "shared"
    python = _bin(environment, "python")
    version = sys.version.split()[0]
    want = f"{version} {_digest([CONSTRAINTS, *ROOT.glob('packages/*/pyproject.toml')], *TOOLS)}"
    stamp = environment / ".requirements"
    sources = environment / ".sources"
    have = _digest(_sources())
    stale = not stamp.exists() or stamp.read_text() != want
    changed = stale or not sources.exists() or sources.read_text() != have
    if stale:
        session.log("making the shared environment in .venvs/shared (a few minutes, once)")
        if not stamp.exists() or stamp.read_text().split()[0] != want.split()[0]:
            _create_venv(environment)  # a new one, or left half made, or of another Python
        stamp.unlink(missing_ok=True)
        session.run(
            python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *TOOLS, external=True, env=QUIET
        )  # fmt: skip
    if changed:
        _build_wheels(session, python)
    if stale:
        session.run(
            python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), "--find-links", str(WHEELHOUSE),
            "hyper-parallel[torch]", external=True, env=QUIET,
        )  # fmt: skip
        sources.unlink(missing_ok=True)
        stamp.write_text(want)
    if changed:
        # By force: pip would keep an installed wheel of the same version.
        wheels = [str(path) for path in sorted(WHEELHOUSE.glob("*.whl"))]
        session.run(
            python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", *wheels,
            external=True, env=QUIET,
        )  # fmt: skip
        sources.write_text(have)
    path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    session.env.update({"PATH": path, "VIRTUAL_ENV": str(environment), "PYTHONDONTWRITEBYTECODE": "1"})
    session.env["SKBUILD_BUILD_DIR"] = str(NATIVE_BUILD)  # tests/test_wheels.py builds, too
    return environment


@nox.session
def train(session: nox.Session) -> None:
    """Fine-tune SmolLM2-135M-Instruct on real text on 2 processes and write runs/…/report.html."""
    environment = _shared(session)
    arguments = session.posargs or ["-n", "2"]
    session.run(_bin(environment, "hp"), "train", *arguments, external=True)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test (arguments after -- go to pytest)."""
    environment = _shared(session)
    session.run(_bin(environment, "python"), "-m", "pytest", *session.posargs, external=True)


@nox.session
def mindspore(session: nox.Session) -> None:
    """Run the tests of MindSpore, in an environment of its own without torch (arguments after -- go to pytest)."""
    _shared(session)  # it builds the wheels
    environment = VENVS / "mindspore"
    python = _bin(environment, "python")
    stamp = environment / ".requirements"
    version = sys.version.split()[0]
    want = f"{version} {_digest([CONSTRAINTS_MINDSPORE, *ROOT.glob('packages/*/pyproject.toml')])}"
    if not stamp.exists() or stamp.read_text() != want:
        session.log("making the environment of MindSpore in .venvs/mindspore (a few minutes, once)")
        _create_venv(environment)
        session.run(
            python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS_MINDSPORE), "--find-links", str(WHEELHOUSE),
            "hp-core[mindspore]", "hp-native[mindspore]", "pytest", external=True, env=QUIET,
        )  # fmt: skip
        session.run(python, "-m", "pip", "check", external=True, silent=True)
        stamp.write_text(want)
    wheels = [str(path) for name in ("hp_core", "hp_native") for path in WHEELHOUSE.glob(f"{name}-*.whl")]
    session.run(
        python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", *wheels,
        external=True, env=QUIET,
    )  # fmt: skip
    tests = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/tests/test_mindspore*.py"))
    session.run(python, "-m", "pytest", "-m", "mindspore", *(session.posargs or tests), external=True)


@nox.session
def alone(session: nox.Session) -> None:
    """Install each package alone in a fresh environment: it imports, and its plugins are well."""
    shared = _shared(session)
    _build_wheels(session, _bin(shared, "python"))
    for package in PACKAGES:
        with tempfile.TemporaryDirectory(prefix="alone-") as folder:
            environment = Path(folder) / "venv"
            _create_venv(environment)
            python = _bin(environment, "python")
            session.log(f"{package} alone")
            session.run(
                python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), "--find-links", str(WHEELHOUSE), package,
                external=True, env=QUIET,
            )  # fmt: skip
            session.run(python, "-m", "pip", "check", external=True, silent=True)
            session.run(python, "tools/check_alone.py", package, external=True, env={"PYTHONPATH": ""})


@nox.session
def check(session: nox.Session) -> None:
    """Check style, types, imports, docs, changelog, C++ under sanitizers, examples and import cost."""
    environment = _shared(session)

    def run(*command: str) -> None:
        session.run(_bin(environment, command[0]), *command[1:], external=True)

    run("ruff", "check", ".")
    run("ruff", "format", "--check", ".")
    run("mypy")
    run("lint-imports")
    run("mkdocs", "build", "--strict", "-q")
    for package in PACKAGES:
        run("towncrier", "build", "--draft", "--version", "next", "--dir", f"packages/{package}")
    run("python", "tools/check_native.py")
    run("python", "tools/run_examples.py")
    run("python", "bench/import_cost.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure every figure against its peer (arguments after -- go to each script)."""
    environment = _shared(session)
    failed = []
    for script in sorted(path for path in (ROOT / "bench").glob("*.py") if path.name != "harness.py"):
        session.log(f"bench/{script.name}")
        code = subprocess.run([_bin(environment, "python"), str(script), *session.posargs], check=False).returncode
        if code:
            failed.append(script.name)
    if failed:
        session.error(f"below their goals or failed: {', '.join(failed)}")


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the checks that need a CUDA device (says so where there is none)."""
    environment = _shared(session)
    session.run(_bin(environment, "python"), "tools/gpu_check.py", *session.posargs, external=True)


@nox.session
def fresh(session: nox.Session) -> None:
    """Clone HEAD into an empty folder with an empty home and environment and run the README's two commands."""
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    keep = ("PIP_", "SSL_", "REQUESTS_CA", "CURL_CA", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "LANG", "TERM")
    with tempfile.TemporaryDirectory(prefix="fresh-") as folder:
        home, clone, scratch = Path(folder) / "home", Path(folder) / "clone", Path(folder) / "tmp"
        home.mkdir()
        scratch.mkdir()
        environment = {name: value for name, value in os.environ.items() if name.upper().startswith(keep)}
        environment |= {
            "HOME": str(home), "TMPDIR": str(scratch), "PATH": f"{base.parent}:/usr/local/bin:/usr/bin:/bin",
        }  # fmt: skip
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        for name in ("train", "tests"):
            command = [base.name, "noxfile.py", "-s", name]
            session.log(f"in a fresh clone: {' '.join(command)}")
            result = subprocess.run([str(base), *command[1:]], cwd=clone, env=environment, check=False)
            if result.returncode:
                session.error(f"{' '.join(command)} exited with {result.returncode} in a fresh clone")
        reports = sorted(clone.glob("runs/*/report.html"))
        if not reports:
            session.error("the train session left no runs/*/report.html")
        session.log(f"report.html: {reports[-1].stat().st_size:,} bytes")


@nox.session
def full(session: nox.Session) -> None:
    """Run what takes hours, part by part; a second run goes on where the first one stopped."""
    environment = _shared(session)
    session.run(_bin(environment, "python"), "tools/full.py", *session.posargs, external=True)
