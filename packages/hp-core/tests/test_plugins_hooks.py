# SPDX-License-Identifier: Apache-2.0
"""Hooks: who is called, what happens to what an implementation raises, and that each is documented."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hp_core import plugins
from hp_core.errors import MeshError, PluginError
from hp_core.plugins.info import PluginInfo
from hp_core.provide import KINDS

Install = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::hp_core.errors.PluginWarning")


def docs_page() -> str:
    return (Path(__file__).resolve().parents[3] / "docs" / "plugins.md").read_text()


def info_of(distribution: str) -> PluginInfo:
    return next(info for info in plugins.plugin_infos() if info.distribution == distribution)


def test_has_hook_tells_whether_anybody_listens(install: Install) -> None:
    install("listener", "@hookimpl\ndef hp_before_collective(kind): ...")
    assert plugins.has_hook("hp_before_collective")
    assert not plugins.has_hook("hp_after_collective")
    with pytest.raises(PluginError, match=r"'hp_before_colective'; did you mean 'hp_before_collective'"):
        plugins.has_hook("hp_before_colective")


def test_hooks_reach_implementations_that_take_fewer_arguments(install: Install) -> None:
    install("listener", "seen = []\n@hookimpl\ndef hp_before_collective(nbytes): seen.append(nbytes)")
    plugins.hooks().hp_before_collective(kind="all_reduce", group=None, nbytes=12)
    assert sys.modules["listener"].seen == [12]


def test_an_exception_in_a_hook_names_plugin_and_hook(install: Install) -> None:
    install("quiet", "@hookimpl\ndef hp_mesh_created(mesh): ...")
    install("faulty", "@hookimpl\ndef hp_mesh_created(mesh): raise KeyError('x')")
    install("watcher", "@hookimpl(wrapper=True)\ndef hp_mesh_created(mesh): return (yield)")
    with pytest.raises(PluginError, match=r"'faulty:faulty' failed in hook hp_mesh_created: KeyError: 'x'") as raised:
        plugins.hooks().hp_mesh_created(mesh=None)
    assert isinstance(raised.value.__cause__, KeyError)
    assert "HP_PLUGINS_DISABLE=faulty" in str(raised.value)


def test_a_plugins_own_refusal_passes_unchanged(install: Install) -> None:
    source = "from hp_core.errors import MeshError\n@hookimpl\ndef hp_mesh_created(mesh): raise MeshError('too thin')"
    install("picky", source)
    with pytest.raises(MeshError, match=r"^too thin$"):
        plugins.hooks().hp_mesh_created(mesh=None)


def test_a_plugin_can_add_hooks_that_another_implements(install: Install) -> None:
    spec = """
        import sys, pluggy
        @pluggy.HookspecMarker("hyper_parallel")
        def zz_tick(n):
            "Called at each tick."
        @hookimpl
        def hp_add_hookspecs(pm):
            pm.add_hookspecs(sys.modules[__name__])
    """
    install("z-specifier", spec)
    install("a-listener", "@hookimpl\ndef zz_tick(n): return n + 1")
    assert info_of("a-listener").state == "active", info_of("a-listener").why
    assert plugins.hooks().zz_tick(n=1) == [2]


def test_a_plugin_that_uses_the_registry_while_loading_is_told_so(install: Install) -> None:
    install("eager", "from hp_core.registry import names\nnames('comm')")
    assert "while plugins were loading" in info_of("eager").why


def test_plugins_in_process_can_be_registered(install: Install) -> None:
    install("unused", "")

    class Mine:
        seen: list[object] = []  # noqa: RUF012

        @plugins.hookimpl
        def hp_mesh_created(self, mesh: object) -> None:
            self.seen.append(mesh)

    plugins.manager().register(Mine(), "mine")
    assert plugins.has_hook("hp_mesh_created")
    plugins.hooks().hp_mesh_created(mesh="m")
    assert Mine.seen == ["m"]


def test_every_hook_is_documented_in_code_and_on_the_page() -> None:
    from hp_core import hookspecs

    page = docs_page()
    names = [name for name in vars(hookspecs) if name.startswith("hp_")]
    assert len(names) >= 11
    for name in names:
        doc = getattr(hookspecs, name).__doc__ or ""
        assert "alled" in doc, f"{name}: its docstring must say when and on which ranks it is called"
        for argument in getattr(hookspecs, name).__annotations__:
            assert argument == "return" or f"{argument}: " in doc, f"{name}: argument {argument} is not documented"
        assert f"`{name}" in page, f"docs/plugins.md does not name {name}"


def test_every_kind_and_variable_is_on_the_page() -> None:
    page = docs_page()
    for name in KINDS:
        assert f"| `{name}` |" in page
    for variable in ("HP_PLUGINS", "HP_PLUGINS_DISABLE", "HP_PLUGINS_STRICT", "HP_PREFER"):
        assert f"| `{variable}=" in page
