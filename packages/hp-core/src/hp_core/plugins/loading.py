# SPDX-License-Identifier: Apache-2.0
"""Import the plugins one by one, so that a broken one costs only itself.

pluggy's own entry-point loader stops at the first plugin that raises, drops duplicate names silently and
registers in the order of the file system. Here the order is fixed, each plugin is caught by itself, and what
became of it is recorded.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import pluggy

from hp_core import hookspecs
from hp_core.errors import PluginError, did_you_mean
from hp_core.plugins.discovery import Found, find_plugins
from hp_core.plugins.exception_text import exception_text
from hp_core.plugins.hook_errors import name_culprits
from hp_core.plugins.info import Offer, PluginInfo, State
from hp_core.plugins.interrupts import watch_interrupts
from hp_core.plugins.requirements import install_command, unmet_requirements
from hp_core.plugins.settings_from_environment import PluginSettings, normalize
from hp_core.plugins.static_offers import read_offers
from hp_core.provide import Provide


@dataclass(frozen=True)
class Loaded:
    """The outcome: the hook manager, every plugin's state, all offers and what is odd about the settings."""

    manager: pluggy.PluginManager
    infos: tuple[PluginInfo, ...]
    offers: tuple[Offer, ...]
    complaints: tuple[str, ...]


@dataclass
class _Candidate:
    found: Found
    plugin: Any = None
    state: State = "active"
    why: str = ""
    error: BaseException | None = None
    offers: tuple[Provide, ...] = ()
    hooks: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{normalize(self.found.distribution)}:{self.found.name}"

    def fail(self, state: State, why: str, error: BaseException | None = None) -> None:
        self.state, self.why, self.error = state, " ".join(why.split()), error


def load_plugins(settings: PluginSettings) -> Loaded:
    """Load every installed plugin that ``settings`` allow.

    Never raises because of a plugin, whatever that raises; Ctrl-C still ends it.
    """
    manager = pluggy.PluginManager("hyper_parallel")
    manager.add_hookspecs(hookspecs)
    name_culprits(manager)
    candidates = [_Candidate(found) for found in find_plugins()]
    complaints = _block(candidates, settings)
    _refuse_duplicates(candidates)
    with watch_interrupts() as interrupted:
        for candidate in _active(candidates):
            _check_requirements(candidate)
        for step in (
            _import,
            # New hooks first: an implementation may come from a plugin that loads before the one that specifies it.
            _add_hookspecs,
            _register,
            _collect_offers,
        ):
            for candidate in _active(candidates):
                _attempt(candidate, step, manager, interrupted)
    infos = []
    for candidate in candidates:
        if candidate.state != "active":
            if manager.has_plugin(candidate.key):
                manager.unregister(name=candidate.key)
            candidate.offers = read_offers(candidate.found)
            candidate.hooks = ()
        infos.append(_info(candidate))
    offers = tuple(
        Offer(provide, info.name, info.distribution)
        for info in infos
        if info.state == "active"
        for provide in info.offers
    )
    return Loaded(manager, tuple(infos), offers, tuple(complaints))


def _active(candidates: list[_Candidate]) -> list[_Candidate]:
    return [candidate for candidate in candidates if candidate.state == "active"]


def _info(candidate: _Candidate) -> PluginInfo:
    found = candidate.found
    return PluginInfo(
        found.name,
        found.distribution,
        found.version,
        found.value,
        candidate.state,
        candidate.why,
        candidate.offers,
        candidate.hooks,
        candidate.error,
    )


def _block(candidates: list[_Candidate], settings: PluginSettings) -> list[str]:
    known: set[str] = set()
    for candidate in candidates:
        labels = {normalize(candidate.found.name), normalize(candidate.found.distribution)}
        known |= labels
        if normalize(candidate.found.distribution) == "hp-core":
            continue
        if labels & settings.disable:
            candidate.fail("blocked", "HP_PLUGINS_DISABLE names it")
        elif settings.allow is not None and not labels & settings.allow:
            candidate.fail("blocked", "HP_PLUGINS does not name it")
    complaints = []
    for variable, given in (("HP_PLUGINS", settings.allow or ()), ("HP_PLUGINS_DISABLE", settings.disable)):
        complaints += [
            f"{variable} names {label!r}, but no such plugin or distribution is installed{did_you_mean(label, known)}"
            for label in sorted(given)
            if label not in known
        ]
    if settings.disable & {"hp-core", "core"}:
        complaints.append("HP_PLUGINS_DISABLE names hp-core, which always loads")
    return complaints


def _refuse_duplicates(candidates: list[_Candidate]) -> None:
    """Set aside plugins of one name: no order among third parties is the right one, so none of them wins."""
    active = _active(candidates)
    counts = Counter(normalize(candidate.found.name) for candidate in active)
    for candidate in active:
        name = normalize(candidate.found.name)
        if counts[name] > 1 and not candidate.found.first_party:
            others = sorted(
                {other.found.distribution for other in active if normalize(other.found.name) == name}
                - {candidate.found.distribution}
            ) or [f"{candidate.found.distribution} itself"]
            candidate.fail(
                "broken",
                f"the plugin name {candidate.found.name!r} is also used by {' and '.join(others)};"
                f" keep one: HP_PLUGINS_DISABLE={candidate.found.distribution}, or uninstall it",
            )


def _check_requirements(candidate: _Candidate) -> None:
    unmet = unmet_requirements(candidate.found.metadata)
    if unmet:
        candidate.fail("incompatible", f"{'; '.join(map(str, unmet))}: {install_command(unmet)}")


def _attempt(
    candidate: _Candidate,
    step: Callable[[_Candidate, pluggy.PluginManager], None],
    manager: pluggy.PluginManager,
    interrupted: Callable[[], bool],
) -> None:
    try:
        step(candidate, manager)
    except BaseException as exc:  # what a plugin exits with is its own trouble, too
        if isinstance(exc, KeyboardInterrupt) and interrupted():
            raise
        what = f"importing {candidate.found.value} raised " if step is _import else ""
        own = isinstance(exc, PluginError) and step is not _import
        candidate.fail("broken", what + (str(exc) if own else exception_text(exc)), exc)


def _import(candidate: _Candidate, manager: pluggy.PluginManager) -> None:
    module_name, _, attribute = candidate.found.value.partition(":")
    plugin: Any = importlib.import_module(module_name)
    for part in filter(None, attribute.split(".")):
        plugin = getattr(plugin, part)
    candidate.plugin = plugin


def _add_hookspecs(candidate: _Candidate, manager: pluggy.PluginManager) -> None:
    add = getattr(candidate.plugin, "hp_add_hookspecs", None)
    if add is not None and manager.parse_hookimpl_opts(candidate.plugin, "hp_add_hookspecs") is not None:
        add(manager)


def _register(candidate: _Candidate, manager: pluggy.PluginManager) -> None:
    manager.register(candidate.plugin, candidate.key)
    callers = manager.get_hookcallers(candidate.plugin) or []
    for caller in callers:
        if not caller.has_spec():
            mine = [impl for impl in caller.get_hookimpls() if impl.plugin is candidate.plugin]
            if not all(impl.optionalhook for impl in mine):
                known = [name for name in vars(manager.hook) if getattr(manager.hook, name).has_spec()]
                raise PluginError(f"it implements the unknown hook {caller.name!r}{did_you_mean(caller.name, known)}")
    candidate.hooks = tuple(sorted(caller.name for caller in callers))


def _collect_offers(candidate: _Candidate, manager: pluggy.PluginManager) -> None:
    offers: list[Provide] = []
    for impl in manager.hook.hp_provide.get_hookimpls():
        if impl.plugin is candidate.plugin:
            offers.extend(cast("Iterable[Provide] | None", impl.function()) or ())
    seen: set[tuple[str, str, str | None]] = set()
    for offer in offers:
        if not isinstance(offer, Provide):
            raise PluginError(f"hp_provide returned {offer!r}: expected hp_core.registry.Provide objects")
        key = (offer.kind, offer.name, offer.platform)
        if key in seen:
            raise PluginError(f"hp_provide offers {offer} twice")
        seen.add(key)
    candidate.offers = tuple(offers)
