# SPDX-License-Identifier: Apache-2.0
"""The third-party example: built into a wheel, installed beside hp-core in a fresh environment, and used.

The environment is a real one, made with ``venv``; hp-core and the example are installed into it from their wheels by
pip. What they require is linked in from the environment that runs the tests, so that nothing is downloaded, and
``pip check`` confirms that it is whole.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "third_party_plugin"


def closure(requirements: Iterable[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return what the requirements need, with what that needs, and so on."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(Requirement(line), "") for line in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found[name] = importlib.metadata.distribution(name)
        for line in found[name].requires or []:
            waiting += [(Requirement(line), each) for each in requirement.extras or {""}]
    return found


def link(distributions: Iterable[importlib.metadata.Distribution], site: Path) -> None:
    """Make the distributions' files and folders appear in another site-packages."""
    for distribution in distributions:
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            target = site / top
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(top))))


class Environment:
    """A fresh environment with the wheels of hp-core and of the example."""

    def __init__(self, folder: Path) -> None:
        wheels = folder / "wheels"
        for project in (ROOT / "packages" / "hp-core", EXAMPLE):
            command = [
                sys.executable,
                "-m",
                "build",
                "-q",
                "--wheel",
                "--no-isolation",
                "-o",
                str(wheels),
                str(project),
            ]
            subprocess.run(command, check=True, capture_output=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self.bin = folder / "venv" / "bin"
        self.cwd = folder
        self.wheels = sorted(path.name for path in wheels.iterdir())
        self.pip("install", "-q", "--no-deps", "--no-index", *map(str, wheels.iterdir()))
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        own = importlib.metadata.PathDistribution(next(site.glob("hp_core-*.dist-info")))
        plain = [line for line in own.requires or [] if "extra ==" not in line]
        link(closure([*plain, "pytest"]).values(), site)

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def run(self, program: str, *arguments: str, status: int = 0, **variables: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HP_", "PYTHON"))}
        environment["PATH"] = f"{self.bin}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            [self.bin / program, *arguments],
            env={**environment, **variables},
            cwd=self.cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("third-party"))


def test_two_wheels_and_their_requirements_are_all_there(environment: Environment) -> None:
    assert [name.split("-")[0] for name in environment.wheels] == ["hp_core", "hp_example_plugin"]
    environment.pip("check")
    code = "import hp_core, hp_example_plugin; print(hp_core.__file__, hp_example_plugin.__file__)"
    for path in environment.run("python", "-c", code).split():
        assert path.startswith(str(environment.bin.parent))


def test_it_is_listed_with_what_it_offers(environment: Environment) -> None:
    found = json.loads(environment.run("hp", "plugins", "list", "--json"))
    assert found["ok"] is True
    assert [(info["distribution"], info["state"]) for info in found["plugins"]] == [
        ("hp-core", "active"),
        ("hp-example-plugin", "active"),
    ]
    example = found["plugins"][1]
    assert {(offer["kind"], offer["name"]) for offer in example["offers"]} == {
        ("schedule", "limited-gpipe"),
        ("parallel_style", "whole-parameters"),
        ("storage", "sqlite"),
    }
    assert example["hooks"] == ["hp_add_commands", "hp_provide", "hp_report_lines"]
    table = environment.run("hp", "plugins", "list", COLUMNS="120")
    assert "hp-example-plugin" in table
    assert "schedule: limited-gpipe" in table


def test_its_provisions_work(environment: Environment) -> None:
    code = """
import sys
from hp_core.registry import resolve
assert "hp_example_plugin" not in sys.modules
schedule = resolve("schedule", "limited-gpipe")
assert "hp_example_plugin.storage" not in sys.modules
print(schedule(2, 2))
storage = resolve("storage", "sqlite")("files.sqlite")
storage.write("a", b"content")
print(storage.read("a", 3), storage.list())
class Model:
    def named_parameters(self):
        class Parameter:
            shape = (2, 3)
        return [("w", Parameter()), ("b", Parameter())]
class Mesh:
    shape, rank_list = (2,), (4, 5)
print(resolve("parallel_style", "whole-parameters")().apply(Model(), Mesh()).parameter_owners)
assert not {"torch", "mindspore"} & set(sys.modules)
"""
    assert environment.run("python", "-c", code).splitlines() == [
        "[[('F', 0, 0), ('F', 0, 1), ('B', 0, 0), ('B', 0, 1)], [('F', 1, 0), ('F', 1, 1), ('B', 1, 0), ('B', 1, 1)]]",
        "b'tent' ['a']",
        "{'b': 4, 'w': 5}",
    ]


def test_its_command_and_report_line_are_in_hp(environment: Environment) -> None:
    assert "timeline" in environment.run("hp", "--help")
    assert environment.run("hp", "timeline", "1", "2") == "rank 0: F0 F1 B0 B1\n"
    # No framework is in this environment: the doctor says so and how to mend it, and lists the plugin's line.
    report = environment.run("hp", "doctor", status=1)
    assert "sqlite" in report
    assert "pip install 'hp-core[torch]'" in report


def test_it_can_be_blocked(environment: Environment) -> None:
    listing = environment.run("hp", "plugins", "list", HP_PLUGINS_DISABLE="hp_example_plugin")
    assert "blocked hp_example_plugin: HP_PLUGINS_DISABLE names it" in listing
    code = "from hp_core.registry import resolve; resolve('storage', 'sqlite')"
    message = environment.run("python", "-c", code, status=1, HP_PLUGINS_DISABLE="hp_example_plugin")
    assert (
        "storage 'sqlite' is offered by plugin 'hp_example_plugin' of hp-example-plugin 1.0.0, which is blocked"
        in message
    )


def test_its_own_tests_pass(environment: Environment) -> None:
    tests = ["-p", "no:cacheprovider", "-q", "--rootdir", str(EXAMPLE), str(EXAMPLE / "tests")]
    assert " passed" in environment.run("python", "-m", "pytest", *tests)
