# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that a person forgets."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 400
EMPTY_NAMES = {"utils", "common", "helpers", "misc"}


def tracked(*patterns: str) -> list[Path]:
    # Untracked files count too, so that a new file is judged before its first commit.
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    lines = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / line for line in lines if (ROOT / line).is_file()]


def test_every_source_file_has_its_spdx_line() -> None:
    patterns = ("*.py", "*.toml", "*.yml", "*.yaml", "constraints*.txt", "*.cpp", "*.h", "*.cmake", "*CMakeLists.txt")
    files = [*tracked(*patterns), ROOT / ".ci" / "run"]
    missing = [
        str(file.relative_to(ROOT))
        for file in files
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(file.read_text().splitlines()[:2])
    ]
    assert missing == []


def test_files_stay_small_and_have_names_that_say_something() -> None:
    sources = tracked("packages/*.py", "packages/*.cpp", "packages/*.h", "packages/*.cmake")
    assert [str(file) for file in sources if file.stem in EMPTY_NAMES] == []
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
    assert sorted(sessions) == sorted(
        ["train", "tests", "mindspore", "alone", "check", "bench", "gpu", "fresh", "full"]
    )
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


def readme_tree() -> list[str]:
    """Return the paths in the README's tree, without the phrases behind them."""
    block = next(block for block in (ROOT / "README.md").read_text().split("```") if block.startswith("\nREADME.md"))
    paths, folder = [], ""
    for line in block.strip().splitlines():
        if line.startswith("  "):
            paths.append(folder + line.split()[0])
            continue
        words = [
            word.rstrip(",")
            for word in line.split()
            if re.fullmatch(r"\.?[\w.-]+(/|\.\w+|),?|LICENSE|CODEOWNERS", word)
        ]
        named = [word for word in words if word.endswith("/") or "." in word or word.isupper()]
        folder = named[0] if named[0].endswith("/") else ""
        paths += named
    return paths


def test_the_readme_tree_is_true() -> None:
    named = {path.rstrip("/") for path in readme_tree()}
    entries = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert entries - named == set(), "top-level entries that the README's tree does not name"
    assert {f"packages/{path.parent.name}" for path in ROOT.glob("packages/*/pyproject.toml")} - named == set()


def test_paths_in_the_readme_table_exist() -> None:
    sources = [ROOT / "packages" / package / "src" for package in ("hp-core", "hp-native", "hp-trainer")]
    for line in (ROOT / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 3 or not cells[2].startswith("`"):
            continue
        folder = None
        for path in re.findall(r"`([^`]+)`", cells[2]):
            candidates = [ROOT / path, *(source / path for source in sources), *([folder / path] if folder else [])]
            found = [candidate for candidate in candidates if candidate.exists()]
            assert found, f"README.md's table names {path}, which is not there"
            folder = folder or found[0].parent
