# SPDX-License-Identifier: Apache-2.0
"""`python3 noxfile.py` on machines that lack something: it says what, in one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_copy(tmp_path: Path, **missing: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of noxfile.py where importing the modules ``missing`` runs what is given instead."""
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for module, code in missing.items():
        (shadow / f"{module}.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(shadow)}
    command = [sys.executable, "noxfile.py", "--list"]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


def test_without_the_venv_package_it_names_debians(tmp_path: Path) -> None:
    absent = "raise ImportError('not here')"
    result = run_copy(tmp_path, nox=absent, ensurepip=absent)
    assert result.returncode == 1
    assert result.stderr.startswith("error: this Python (")
    assert "apt-get install python3-venv" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_it_hands_over_to_an_installed_nox_with_the_arguments(tmp_path: Path) -> None:
    # What stands for nox here prints how it was called; `python -m nox` runs the same file.
    result = run_copy(tmp_path, nox="import sys\nif __name__ == '__main__': print(*sys.argv[1:])")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["-f", str(tmp_path / "noxfile.py"), "--list"]


def test_an_old_python_is_told_so() -> None:
    code = (
        "import runpy, sys\n"
        "sys.version_info = (3, 9, 1)\n"
        f"runpy.run_path({str(ROOT / 'noxfile.py')!r}, run_name='__main__')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Python 3.10 or newer is needed" in result.stderr
