# SPDX-License-Identifier: Apache-2.0
"""The plugins of this process: loaded at the first use of a name or a hook, never at import.

>>> from hp_core.plugins import hooks
>>> hooks().hp_mesh_created(mesh=mesh)
"""

from __future__ import annotations

import threading

import pluggy

from hp_core.errors import PluginError, PluginWarning, did_you_mean
from hp_core.plugins.info import Offer, PluginInfo
from hp_core.plugins.loading import Loaded, load_plugins
from hp_core.plugins.manifest_of_ranks import describe_difference, hash_manifest, write_manifest
from hp_core.plugins.settings_from_environment import PluginSettings, normalize, read_settings
from hp_core.plugins.warn_at_users_line import warn_at_users_line

__all__ = [
    "Offer",
    "PluginInfo",
    "PluginWarning",
    "active_offers",
    "describe_difference",
    "fingerprint",
    "has_hook",
    "hookimpl",
    "hooks",
    "manager",
    "manifest",
    "plugin_complaints",
    "plugin_infos",
    "reload",
    "same_distribution",
    "settings",
]

#: Marks a function of a plugin module as the implementation of the hook of the same name.
hookimpl = pluggy.HookimplMarker("hyper_parallel")

_lock = threading.RLock()
_loading = False
_loaded: tuple[PluginSettings, Loaded] | None = None


def hooks() -> pluggy.HookRelay:
    """Return the relay through which hooks are called, with keyword arguments: ``hooks().hp_fault(exc=…)``.

    Raises:
        PluginError: under ``HP_PLUGINS_STRICT=1``, for any plugin in trouble.
    """
    return manager().hook


def has_hook(name: str) -> bool:
    """Return True when at least one plugin implements the hook; cheap after the first use.

    Raises:
        PluginError: when nobody specified a hook of this name.
    """
    caller = getattr(manager().hook, name, None)
    if caller is None:
        known = sorted(hook for hook in vars(manager().hook) if hook.startswith("hp_"))
        raise PluginError(f"no hook is named {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return bool(caller.get_hookimpls())


def manager() -> pluggy.PluginManager:
    """Return pluggy's manager; ``manager().register(obj)`` adds a plugin that lives in this process only."""
    return _load()[1].manager


def plugin_infos() -> list[PluginInfo]:
    """Return what became of every installed plugin, in the order of loading. Never raises for a plugin's fault."""
    return list(_load(strict=False)[1].infos)


def plugin_complaints() -> list[str]:
    """Return what is odd about the settings, e.g. a name in ``HP_PLUGINS`` that nothing has."""
    return list(_load(strict=False)[1].complaints)


def active_offers(*, strict: bool = True) -> tuple[Offer, ...]:
    """Return everything that active plugins provide; ``strict=False`` also where strict mode would raise."""
    return _load(strict=strict)[1].offers


def settings() -> PluginSettings:
    """Return the settings under which plugins were loaded."""
    return _load(strict=False)[0]


def manifest() -> str:
    """Return this process's plugins and preferences as a text that must be equal on all ranks."""
    return write_manifest(plugin_infos(), settings())


def fingerprint() -> str:
    """Return the SHA-256 of `manifest` as 64 hex digits.

    hp_core.comm compares it over all ranks through the store when the backend is initialised; where it
    differs, `describe_difference` of the manifests says which rank has what.
    """
    return hash_manifest(manifest())


def same_distribution(one: str, other: str) -> bool:
    """Return True when both spell the same distribution's name (``My_Plugin`` is ``my-plugin``)."""
    return normalize(one) == normalize(other)


def reload() -> None:
    """Forget what was loaded, so that the next use reads settings and metadata again.

    For tests, and for an interactive session after ``pip install``. Objects already resolved stay as they are.
    """
    global _loaded
    with _lock:
        _loaded = None


def _load(*, strict: bool = True) -> tuple[PluginSettings, Loaded]:
    global _loaded, _loading
    loaded = _loaded
    if loaded is None:
        with _lock:
            if _loading:
                raise PluginError("a plugin asked for a name or a hook while plugins were loading: do it in a function")
            if _loaded is None:
                _loading = True
                try:
                    current = read_settings()
                    _loaded = (current, load_plugins(current))
                finally:
                    _loading = False
                _warn(*_loaded)
            loaded = _loaded
    if strict and loaded[0].strict:
        _raise_trouble(loaded[1])
    return loaded


def _warn(current: PluginSettings, loaded: Loaded) -> None:
    if current.strict:
        return
    for complaint in loaded.complaints:
        warn_at_users_line(complaint)
    for info in loaded.infos:
        if not info.well:
            warn_at_users_line(f"not used: {info.describe()}")


def _raise_trouble(loaded: Loaded) -> None:
    for complaint in loaded.complaints:
        raise PluginError(f"{complaint} (HP_PLUGINS_STRICT=1)")
    for info in loaded.infos:
        if not info.well:
            raise PluginError(f"{info.describe()} (HP_PLUGINS_STRICT=1)") from info.error
