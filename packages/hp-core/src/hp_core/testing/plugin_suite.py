# SPDX-License-Identifier: Apache-2.0
"""What every plugin must pass, ours and those of third parties."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from typing import ClassVar

from hp_core import plugins, registry
from hp_core.errors import PluginError
from hp_core.plugins.info import PluginInfo
from hp_core.plugins.settings_from_environment import normalize

_FRAMEWORKS = ("torch", "torch_npu", "mindspore")


class PluginSuite:
    """Checks of one installed plugin; subclass it in a test file as ``class TestX(PluginSuite)``.

    An offer whose framework is not installed is left out: run the suite in an environment for each framework that
    the plugin serves.

    Attributes:
        plugin: Name of the plugin's entry point.
    """

    plugin: ClassVar[str]

    def info(self) -> PluginInfo:
        """Return what became of the plugin."""
        infos = {info.name: info for info in plugins.plugin_infos()}
        assert self.plugin in infos, f"no plugin {self.plugin!r} is installed (there: {', '.join(infos)})"
        return infos[self.plugin]

    def test_is_active(self) -> None:
        """It loads: requirements are met, nothing raises, its name is its own, its hooks fit their specifications."""
        info = self.info()
        assert info.state == "active", info.describe()

    def test_distribution_requires_hp_core_by_range(self) -> None:
        """Its distribution says which versions of hp-core it works with, so that a mismatch is seen before import."""
        info = self.info()
        if normalize(info.distribution) == "hp-core":
            return
        lines = importlib.metadata.requires(info.distribution) or []
        mine = [line for line in lines if normalize(line.split(";")[0].strip()).startswith("hp-core")]
        assert any("<" in line or "~=" in line or "==" in line for line in mine), (
            f"{info.distribution} must require hp-core with an upper bound, e.g. 'hp-core>=0.1,<0.2' (it says: {mine})"
        )

    def test_loads_without_a_framework(self) -> None:
        """Importing it imports no framework: it loads in every process, whichever framework that uses."""
        module = self.info().value.partition(":")[0]
        code = f"import sys, {module}; print(*(name for name in {_FRAMEWORKS!r} if name in sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert not done.stdout.split(), f"importing {module} imports {done.stdout.strip()}: do it in the functions"

    def test_hooks_are_marked(self) -> None:
        """Every function of the module whose name is that of a hook is marked with ``@hookimpl``."""
        info = self.info()
        if info.state != "active":
            return  # test_is_active says so, and the module cannot be looked at
        manager = plugins.manager()
        module_name, _, attribute = info.value.partition(":")
        plugin: object = importlib.import_module(module_name)
        for part in filter(None, attribute.split(".")):
            plugin = getattr(plugin, part)
        named = {name for name in dir(plugin) if name.startswith("hp_") and name in vars(manager.hook)}
        unmarked = named - set(info.hooks)
        assert not unmarked, f"not marked with @hookimpl: {', '.join(sorted(unmarked))}"

    def test_every_offer_resolves_to_what_its_kind_asks_for(self) -> None:
        """Every target can be imported, satisfies its Protocol, and is the one that the registry chooses."""
        info = self.info()
        problems = []
        for offer in info.offers:
            if offer.platform is not None and importlib.util.find_spec(offer.platform) is None:
                continue
            try:
                registry.resolve(offer.kind, offer.name, offer.platform)
            except PluginError as exc:
                if not _lacks_framework(exc):
                    problems.append(str(exc))
        assert not problems, "\n".join(problems)


def _lacks_framework(exc: PluginError) -> bool:
    cause = exc.__cause__
    return isinstance(cause, ModuleNotFoundError) and cause.name in _FRAMEWORKS
