# SPDX-License-Identifier: Apache-2.0
"""Names to objects: what the installed plugins provide, imported when it is asked for.

Two distributions that offer the same (kind, name, platform) are a `ConflictError` for whoever asks for that
name, until one of them says ``replaces=`` or the user says ``HP_PREFER=kind:name=distribution``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from hp_core import plugins
from hp_core.errors import ConflictError, PluginError, did_you_mean
from hp_core.kinds import check
from hp_core.plugins.exception_text import exception_text
from hp_core.provide import KINDS, Provide

__all__ = ["Provide", "conflicts", "names", "offers", "resolve"]


def names(kind: str, platform: str | None = None) -> list[str]:
    """Return the names offered for ``kind``, highest priority first, then alphabetical.

    Args:
        kind: One of `hp_core.provide.KINDS`.
        platform: Leave out what only serves other platforms; None keeps everything.

    Raises:
        PluginError: for an unknown kind.
    """
    priority: dict[str, int] = {}
    for offer in offers(kind):
        provide = offer.provide
        if platform is None or provide.platform in (None, platform):
            priority[provide.name] = max(provide.priority, priority.get(provide.name, provide.priority))
    return sorted(priority, key=lambda name: (-priority[name], name))


def offers(kind: str, name: str | None = None) -> list[plugins.Offer]:
    """Return every offer of ``kind`` (and ``name``) with the distribution it comes from.

    Raises:
        PluginError: for an unknown kind.
    """
    if kind not in KINDS:
        raise PluginError(f"unknown kind {kind!r}{did_you_mean(kind, KINDS)} (kinds: {', '.join(KINDS)})")
    return [
        offer for offer in plugins.active_offers() if offer.provide.kind == kind and name in (None, offer.provide.name)
    ]


def conflicts() -> list[ConflictError]:
    """Return an error for every name that two distributions offer and nothing settles; raises none of them."""
    by_key: dict[tuple[str, str, str | None], list[plugins.Offer]] = {}
    for offer in plugins.active_offers(strict=False):
        provide = offer.provide
        by_key.setdefault((provide.kind, provide.name, provide.platform), []).append(offer)
    found = []
    for (kind, name, _), same in sorted(by_key.items(), key=str):
        try:
            _only(kind, name, same)
        except ConflictError as exc:
            found.append(exc)
        except PluginError:  # a preference for a distribution that offers it for another platform
            continue
    return found


def resolve(kind: str, name: str, platform: str | None = None) -> object:
    """Import and return what the plugins offer as ``name``.

    An offer for exactly ``platform`` wins over one for every platform. The target is imported at the first
    call and checked against the Protocol of its kind (`hp_core.kinds`).

    Args:
        kind: One of `hp_core.provide.KINDS`.
        name: The name asked for.
        platform: ``"torch"`` or ``"mindspore"``; None takes only what serves every platform.

    Raises:
        PluginError: when nobody offers the name, when the plugin that offers it is broken, incompatible or
            blocked, when the target cannot be imported (the original is the cause) or does not satisfy the
            Protocol of its kind.
        ConflictError: when two distributions offer it and nothing says which one is meant.
    """
    offer = _choose(kind, name, platform)
    provide = offer.provide
    origin = f"{kind} {name!r} of plugin {offer.plugin!r} ({offer.distribution})"
    module_name, _, attribute = provide.target.partition(":")
    try:
        target: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except PluginError:
        raise
    except Exception as exc:
        raise PluginError(f"{origin}: cannot load {provide.target}: {exception_text(exc)}") from exc
    problem = check(kind, target)
    if problem:
        raise PluginError(f"{origin}: {provide.target} {problem}")
    return target


def _choose(kind: str, name: str, platform: str | None) -> plugins.Offer:
    found = offers(kind, name)
    usable = [offer for offer in found if offer.provide.platform == platform and platform is not None]
    usable = usable or [offer for offer in found if offer.provide.platform is None]
    if not usable:
        raise _unknown(kind, name, platform, found)
    return _only(kind, name, usable)


def _only(kind: str, name: str, usable: list[plugins.Offer]) -> plugins.Offer:
    """Return the one offer that is meant, of several for the same kind, name and platform."""
    usable = _settle(kind, name, usable)
    distributions = sorted({offer.distribution for offer in usable})
    if len(distributions) > 1:
        first, second = distributions[:2]
        raise ConflictError(
            f"{kind} {name!r} is offered by {' and by '.join(distributions)}:"
            f" say which one is meant with HP_PREFER={kind}:{name}={first}, or uninstall one (pip uninstall {second})"
        )
    return usable[0]


def _settle(kind: str, name: str, usable: list[plugins.Offer]) -> list[plugins.Offer]:
    preferred = plugins.settings().preferred(kind, name)
    if preferred is not None:
        chosen = [offer for offer in usable if plugins.same_distribution(offer.distribution, preferred)]
        if not chosen:
            offered_by = ", ".join(sorted({offer.distribution for offer in usable}))
            raise PluginError(
                f"HP_PREFER={kind}:{name}={preferred}: {preferred} does not offer it; it is offered by {offered_by}"
            )
        return chosen
    return [offer for offer in usable if not _is_replaced(offer, usable)] or usable


def _is_replaced(offer: plugins.Offer, others: Iterable[plugins.Offer]) -> bool:
    return any(
        other.provide.replaces is not None and plugins.same_distribution(other.provide.replaces, offer.distribution)
        for other in others
        if other.distribution != offer.distribution
    )


def _unknown(kind: str, name: str, platform: str | None, found: list[plugins.Offer]) -> PluginError:
    if found:
        platforms = ", ".join(sorted({str(offer.provide.platform) for offer in found}))
        asked = f"platform {platform!r}" if platform else "every platform"
        return PluginError(f"{kind} {name!r} is offered for platform {platforms} only, not for {asked}")
    for info in plugins.plugin_infos():
        if info.state != "active" and any(offer.kind == kind and offer.name == name for offer in info.offers):
            error = PluginError(f"{kind} {name!r} is offered by {info.describe()}")
            error.__cause__ = info.error
            return error
    there = names(kind, platform)
    hint = did_you_mean(name, there)
    listing = f" (there: {', '.join(there)})" if there else f" (no plugin offers any {kind})"
    unwell = [info.describe() for info in plugins.plugin_infos() if info.state in ("broken", "incompatible")]
    note = f"; not looked into: {'; '.join(unwell)}" if unwell else ""
    return PluginError(f"no {kind} is named {name!r}{hint}{listing}{note}")
