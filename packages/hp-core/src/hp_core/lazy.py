# SPDX-License-Identifier: Apache-2.0
"""Module attributes that are looked up when they are asked for (PEP 562): the facade and its aliases.

[Note: AttributeError or ImportError]
A name that no package has is an AttributeError (``hasattr`` says False). ``from module import name`` turns that
into an ImportError of its own, which drops our message, so a lookup by ``from … import`` raises an ImportError
at once. A name whose package is missing is an ImportError in both cases: it exists, it only cannot be had here.
"""

from __future__ import annotations

import importlib
import opcode
import sys
from collections.abc import Callable
from typing import Any

from hp_core.errors import PluginError, did_you_mean

_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]


def load_export(facade: str, name: str) -> Any:
    """Return the public object ``name``; to be called from a module's ``__getattr__`` only.

    Args:
        facade: Name of the module in whose namespace the object is kept for the next time.
        name: The attribute.

    Raises:
        AttributeError: nobody knows the name (an ImportError for ``from facade import name``).
        PluginError: an ImportError: its package is not installed, or its plugin is not well.
    """
    if name.startswith("_"):
        raise AttributeError(f"module {facade!r} has no attribute {name!r}")
    from hp_core import catalog, registry

    offered = registry.offers("export", name)
    if offered:
        anywhere = any(offer.provide.platform is None for offer in offered)
        value = registry.resolve("export", name, None if anywhere else _platform_name())
        setattr(sys.modules[facade], name, value)
        return value
    owner = catalog.owner(name)
    problem = _why_not_there(name, owner)
    if problem is not None:
        raise problem
    known = {*registry.names("export"), *catalog.public_names()}
    raise _no_attribute(facade, name, known, depth=2)


def list_exports(facade: str) -> list[str]:
    """Return what ``dir()`` of the facade shows: its own names and every public name that is installed."""
    from hp_core import registry

    return sorted({*vars(sys.modules[facade]), *registry.names("export")})


def alias(name: str, target: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` that make module ``name`` a second path to module ``target``.

    Objects are those of ``target``, not copies. The target is imported at the first lookup, so the alias can be
    imported where the target's package is not installed.
    """

    def __getattr__(attribute: str) -> Any:  # noqa: N807  # it becomes the module's
        if attribute == "__all__":  # `from alias import *`
            return [key for key in dir(_import_target(target, "*")) if not key.startswith("_")]
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        module = _import_target(target, attribute)
        try:
            return getattr(module, attribute)
        except AttributeError:
            raise _no_attribute(name, attribute, dir(module), depth=1) from None

    def __dir__() -> list[str]:  # noqa: N807
        own = vars(sys.modules[name])
        return sorted({*own, *(key for key in dir(importlib.import_module(target)) if not key.startswith("_"))})

    return __getattr__, __dir__


def _import_target(target: str, attribute: str) -> Any:
    try:
        return importlib.import_module(target)
    except ModuleNotFoundError as exc:
        package = target.partition(".")[0]
        if exc.name != package:
            raise
        from hp_core.catalog import where_to_get

        distribution = package.replace("_", "-")
        what = target if attribute == "*" else attribute
        raise PluginError(f"{what} lives in {distribution}{where_to_get(distribution)}", name=package) from None


def _why_not_there(name: str, owner: str | None) -> PluginError | None:
    """Return the error that says why nobody offers a name that some package has, or None for an unknown one."""
    from hp_core import catalog, plugins

    infos = plugins.plugin_infos()
    for info in infos:
        if info.state != "active" and (
            any(offer.kind == "export" and offer.name == name for offer in info.offers)
            or (owner is not None and plugins.same_distribution(info.distribution, owner))
        ):
            error = PluginError(f"{name} comes from {info.describe()}")
            error.__cause__ = info.error
            return error
    if owner is None:
        return None
    for info in infos:
        if plugins.same_distribution(info.distribution, owner):
            hint = f": pip install --upgrade {owner}" if owner in catalog.RELEASED else "; no release has it yet"
            return PluginError(
                f"{name} lives in {owner}, but {owner} {info.version}, which is installed, does not offer it{hint}"
            )
    return PluginError(f"{name} lives in {owner}{catalog.where_to_get(owner)}")


def _no_attribute(module: str, name: str, known: Any, *, depth: int) -> Exception:
    """Return the error for an unknown name; ``depth``: frames from our caller up to whoever asked.

    See [Note: AttributeError or ImportError].
    """
    hint = did_you_mean(name, known)
    frame = sys._getframe(depth + 1)
    code = frame.f_code
    # A package is asked by importlib's _handle_fromlist first, a plain module by the bytecode itself.
    if code.co_name == "_handle_fromlist" or code.co_code[frame.f_lasti] == _IMPORT_FROM:
        return ImportError(f"cannot import name {name!r} from {module!r}{hint}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}")


def _platform_name() -> str:
    platform = importlib.import_module("hp_core.platform")
    name: str = platform.get_platform().name
    return name
