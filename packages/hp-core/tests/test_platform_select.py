# SPDX-License-Identifier: Apache-2.0
"""Which framework is chosen, and what is said where none can be."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

from hp_core import registry
from hp_core.errors import PlatformError
from hp_core.platform import get_platform, select


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """A process in which ``imported``, ``installed`` and ``provided`` are what a test says."""
    state = types.SimpleNamespace(imported=[], installed=["torch"], provided=["torch"])
    monkeypatch.delenv("HP_PLATFORM", raising=False)
    monkeypatch.setattr(registry, "names", lambda kind: state.provided)
    monkeypatch.setattr(select, "_is_installed", lambda name: name in (*state.installed, *state.imported))
    kept = {name: sys.modules.pop(name) for name in ("torch", "mindspore") if name in sys.modules}

    def choose() -> str:
        for name in state.imported:
            sys.modules[name] = types.ModuleType(name)
        try:
            return select.choose()
        finally:
            for name in state.imported:
                del sys.modules[name]

    state.choose = choose
    try:
        yield state
    finally:
        sys.modules.update(kept)


def test_the_one_that_is_installed_is_chosen_without_importing_it(world) -> None:
    assert world.choose() == "torch"
    assert "torch" not in sys.modules


def test_the_one_that_is_imported_wins_over_what_is_installed(world) -> None:
    world.provided = world.installed = ["mindspore", "torch"]
    world.imported = ["mindspore"]
    assert world.choose() == "mindspore"


def test_the_environment_wins_over_what_is_imported(world, monkeypatch: pytest.MonkeyPatch) -> None:
    world.provided = world.installed = ["mindspore", "torch"]
    world.imported = ["mindspore", "torch"]
    monkeypatch.setenv("HP_PLATFORM", "torch")
    assert world.choose() == "torch"


def test_two_imported_ask_for_the_environment(world) -> None:
    world.imported = ["torch", "mindspore"]
    with pytest.raises(PlatformError, match=r"torch and mindspore are both imported: .*HP_PLATFORM=torch"):
        world.choose()


def test_two_installed_and_none_imported_ask_for_the_environment(world) -> None:
    world.provided = world.installed = ["mindspore", "torch"]
    with pytest.raises(PlatformError, match=r"both installed and neither is imported: .*HP_PLATFORM=mindspore"):
        world.choose()


def test_an_installed_framework_that_nothing_provides_does_not_count(world) -> None:
    world.installed = ["torch", "mindspore"]
    assert world.choose() == "torch"


def test_none_installed_says_what_to_install(world) -> None:
    world.installed = []
    with pytest.raises(PlatformError, match=r"no framework is installed: pip install 'hp-core\[torch\]'.*torch\)"):
        world.choose()


def test_an_imported_framework_that_nothing_provides_is_said(world) -> None:
    world.imported = ["mindspore"]
    with pytest.raises(
        PlatformError, match=r"mindspore is imported, but no installed package provides the platform 'mindspore'"
    ):
        world.choose()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mindspore", r"HP_PLATFORM=mindspore, but no installed package provides .*\(provided: torch\)"),
        ("torhc", r"HP_PLATFORM=torhc: there is no platform 'torhc'; did you mean 'torch'\?"),
    ],
)
def test_an_environment_that_asks_for_what_is_not_provided_raises(
    world, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("HP_PLATFORM", value)
    with pytest.raises(PlatformError, match=message):
        world.choose()


def test_an_environment_that_asks_for_what_is_not_installed_raises(world, monkeypatch: pytest.MonkeyPatch) -> None:
    world.installed = []
    monkeypatch.setenv("HP_PLATFORM", "torch")
    with pytest.raises(PlatformError, match=r"torch is not installed: pip install 'hp-core\[torch\]'"):
        world.choose()


def test_the_platform_is_the_same_object_each_time() -> None:
    assert get_platform() is get_platform()
    assert get_platform().name == "torch"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "HP_PLATFORM"} | environment
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean)


def test_importing_the_package_imports_no_framework_and_asking_imports_one() -> None:
    done = run_python(
        "import sys, hp_core.platform, hp_core.platform.protocols, hp_core.testing.platform_suite as s\n"
        "print([m for m in ('torch', 'mindspore', 'numpy') if m in sys.modules])\n"
        "print(hp_core.platform.get_platform().name, 'torch' in sys.modules, 'mindspore' in sys.modules)\n"
    )
    assert done.stdout.splitlines() == ["[]", "torch True False"], done.stderr


def test_a_third_party_platform_is_found_chosen_and_checked(install) -> None:
    """A distribution that provides another platform, whole or not."""
    site = install(
        "hp-abacus",
        """
        class Handless:
            name = "handless"
            tensor = module = autograd = None

        class Headless:
            name = "headless"
            tensor = module = autograd = None

            def device(self, device_type):
                return None

        @hookimpl
        def hp_provide():
            return [
                Provide("platform", "abacus", "hp_abacus_torch:Abacus"),
                Provide("platform", "handless", "hp_abacus:Handless"),
                Provide("platform", "headless", "hp_abacus:Headless"),
            ]
        """,
    )
    (site / "hp_abacus_torch.py").write_text(
        "from hp_core.platform.torch import TorchPlatform\nclass Abacus(TorchPlatform):\n    name = 'abacus'\n"
    )
    for framework in ("abacus", "handless", "headless"):
        (site / f"{framework}.py").write_text("")
    code = "from hp_core.platform import get_platform\nprint(get_platform().name)\n"
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    assert run_python(code, HP_PLATFORM="abacus", PYTHONPATH=path).stdout == "abacus\n"
    assert run_python(f"import abacus\n{code}", PYTHONPATH=path).stdout == "abacus\n"
    for name, message in (("handless", "lacks device()"), ("headless", "its tensor lacks copy_(), empty()")):
        broken = run_python(code, HP_PLATFORM=name, PYTHONPATH=path)
        assert broken.returncode == 1
        assert message in broken.stderr.splitlines()[-1]
