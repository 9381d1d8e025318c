# SPDX-License-Identifier: Apache-2.0
"""Each package imports only what its pyproject.toml declares."""

import ast
import importlib.metadata
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml") if (path.parent / "src").exists())


def declared(package: Path) -> set[str]:
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    optional = [line for lines in project.get("optional-dependencies", {}).values() for line in lines]
    names = {canonicalize_name(Requirement(line).name) for line in [*project.get("dependencies", []), *optional]}
    return names | {canonicalize_name(project["name"])}


def imported(package: Path) -> dict[str, str]:
    """Map the top-level name of each import in the package's sources to one file that has it."""
    found: dict[str, str] = {}
    for file in sorted((package / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                found.setdefault(name.split(".")[0], str(file.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_imports_are_declared(package: Path) -> None:
    providers = importlib.metadata.packages_distributions()
    allowed = declared(package)
    undeclared = {}
    for name, file in imported(package).items():
        if name in sys.stdlib_module_names:
            continue
        distributions = {canonicalize_name(dist) for dist in providers.get(name, [name])}
        # What belongs to an extra that is not installed here goes by its pip name.
        if not distributions & allowed and canonicalize_name(name) not in allowed:
            undeclared[name] = file
    assert not undeclared, f"{package.name} imports what its pyproject.toml does not declare: {undeclared}"


def test_siblings_are_required_by_range() -> None:
    for package in ROOT.glob("packages/*/pyproject.toml"):
        project = tomllib.loads(package.read_text())["project"]
        lines = [*project.get("dependencies", [])]
        lines += [line for extra in project.get("optional-dependencies", {}).values() for line in extra]
        for line in lines:
            requirement = Requirement(line)
            if requirement.name.startswith("hp-"):
                operators = {specifier.operator for specifier in requirement.specifier}
                assert operators == {">=", "<"}, f"{package.parent.name}: {line}"
