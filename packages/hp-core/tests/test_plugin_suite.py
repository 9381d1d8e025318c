# SPDX-License-Identifier: Apache-2.0
"""PluginSuite: hp-core's own plugin passes it, and each of its checks can fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hp_core.testing.plugin_suite import PluginSuite

Install = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::hp_core.errors.PluginWarning")


class TestOwnPlugin(PluginSuite):
    plugin = "core"


@pytest.fixture
def suite(install: Install, site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., PluginSuite]]:
    """Install a plugin named ``mine`` and return the suite for it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))

    def make(source: str, requires: tuple[str, ...] = ("hp-core>=0.1,<0.2",)) -> PluginSuite:
        install("mine", source, requires=requires)

        class Mine(PluginSuite):
            plugin = "mine"

        return Mine()

    yield make
    sys.modules.pop("mindspore", None)  # a stub of it: other tests look which framework is imported


def checks() -> list[str]:
    return [name for name in vars(PluginSuite) if name.startswith("test_")]


def failing(suite: PluginSuite) -> list[str]:
    failed = []
    for name in checks():
        try:
            getattr(suite, name)()
        except AssertionError:
            failed.append(name)
    return failed


GOOD = "@hookimpl\ndef hp_provide(): return [Provide('kernel', 'k', 'json:dumps')]\n"


def test_a_good_plugin_passes(suite: Callable[..., PluginSuite]) -> None:
    assert failing(suite(GOOD)) == []


@pytest.mark.parametrize(
    ("source", "requires", "failure"),
    [
        (GOOD, ("hp-core>=0.1",), "test_distribution_requires_hp_core_by_range"),
        (GOOD, (), "test_distribution_requires_hp_core_by_range"),
        ("import mindspore_stub\n" + GOOD, ("hp-core<0.2",), "test_loads_without_a_framework"),
        (GOOD + "def hp_fault(exc): ...", ("hp-core<0.2",), "test_hooks_are_marked"),
        (GOOD.replace("json:dumps", "json:dmups"), ("hp-core<0.2",), "test_every_offer_resolves_to_what_its_kind_asks"),
        (GOOD.replace("kernel", "storage"), ("hp-core<0.2",), ""),
        (GOOD.replace("kernel", "comm").replace("'k'", "'fake'"), ("hp-core<0.2",), "test_every_offer_resolves_to"),
    ],
)
def test_each_check_can_fail(
    suite: Callable[..., PluginSuite], site: Path, source: str, requires: tuple[str, ...], failure: str
) -> None:
    (site / "mindspore_stub.py").write_text("import sys, types; sys.modules['mindspore'] = types.ModuleType('x')")
    failed = failing(suite(source, requires))
    assert len(failed) == bool(failure), failed
    assert all(name.startswith(failure) for name in failed)


def test_a_plugin_that_is_not_well_or_not_there_fails(suite: Callable[..., PluginSuite]) -> None:
    assert "test_is_active" in failing(suite(GOOD + "1 / 0"))

    class Absent(PluginSuite):
        plugin = "absent"

    with pytest.raises(AssertionError, match="no plugin 'absent' is installed"):
        Absent().test_is_active()
