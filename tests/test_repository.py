# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that a person forgets."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
EMPTY_NAMES = {"utils.py", "common.py", "helpers.py", "misc.py"}


def tracked(*patterns: str) -> list[Path]:
    # Untracked files count too, so that a new file is judged before its first commit.
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / line for line in lines if (ROOT / line).is_file()]


def test_every_source_file_has_its_spdx_line() -> None:
    files = [*tracked("*.py", "*.toml", "*.yml", "*.yaml", "constraints*.txt"), ROOT / ".ci" / "run"]
    missing = [
        str(file.relative_to(ROOT))
        for file in files
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(file.read_text().splitlines()[:2])
    ]
    assert missing == []


def test_files_stay_small_and_have_names_that_say_something() -> None:
    sources = tracked("packages/*.py")
    assert [str(file) for file in sources if file.name in EMPTY_NAMES] == []
    long = {
        str(file.relative_to(ROOT)): lines
        for file in sources
        if (lines := len(file.read_text().splitlines())) > MAX_LINES
    }
    assert long == {}


def test_every_nox_session_has_a_one_line_docstring() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    sessions = {
        node.name: ast.get_docstring(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("session" in ast.unparse(mark) for mark in node.decorator_list)
    }
    assert sorted(sessions) == sorted(["train", "tests", "alone", "check", "bench", "gpu", "fresh", "full"])
    assert [name for name, text in sessions.items() if not text or "\n" in text] == []


@pytest.mark.parametrize("package", sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")))
def test_each_package_has_what_a_package_has(package: str) -> None:
    folder = ROOT / "packages" / package
    for name in ("README.md", "CHANGELOG.md", "LICENSE"):
        assert (folder / name).is_file(), name
    assert f"/packages/{package}/" in (ROOT / "CODEOWNERS").read_text()
    if (folder / "src").exists():
        assert (ROOT / "docs" / "packages" / f"{package}.md").is_file()
        assert list((folder / "tests").glob("test_*.py"))
        module = package.replace("-", "_")
        assert (folder / "src" / module / "_plugin.py").is_file()


def test_the_readme_tree_names_every_top_level_entry() -> None:
    readme = (ROOT / "README.md").read_text()
    entries = {path.relative_to(ROOT).parts[0] for path in tracked()}
    unnamed = [entry for entry in sorted(entries) if entry not in readme]
    assert unnamed == [], f"README.md's tree does not name {unnamed}"
