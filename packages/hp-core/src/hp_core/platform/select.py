# SPDX-License-Identifier: Apache-2.0
"""Which framework this process uses."""

from __future__ import annotations

import importlib.util
import os
import sys

from hp_core.errors import PlatformError, did_you_mean
from hp_core.platform.protocols import AutogradOps, ModuleOps, Platform, TensorOps

#: Frameworks that we know by name, whether or not anything provides them: extras of hp-core.
KNOWN = ("torch", "mindspore")

_current: Platform | None = None


def get_platform() -> Platform:
    """Return the platform of this process; chosen at the first call, the same object ever after.

    The choice: ``HP_PLATFORM``, else the one framework that is imported already, else the one that is installed. A
    framework is imported by this call at the earliest, and never a second one.

    Raises:
        PlatformError: If none is installed, several are and nothing says which, or nothing provides the one chosen.
        PluginError: If the plugin that provides it is broken.
    """
    global _current
    if _current is None:
        _current = _make(choose())
    return _current


def choose() -> str:
    """Return the name of the framework to use; imports nothing but plugins.

    Raises:
        PlatformError: As `get_platform`.
    """
    from hp_core.registry import names

    provided = names("platform")
    wanted = os.environ.get("HP_PLATFORM", "").strip()
    if wanted:
        _check_provided(wanted, provided, f"HP_PLATFORM={wanted}")
        if not _is_installed(wanted):
            raise PlatformError(f"HP_PLATFORM={wanted}: {wanted} is not installed: pip install 'hp-core[{wanted}]'")
        return wanted
    candidates = list(dict.fromkeys([*provided, *KNOWN]))
    imported = [name for name in candidates if name in sys.modules]
    if len(imported) > 1:
        raise PlatformError(
            f"{' and '.join(imported)} are both imported: say which one to use with HP_PLATFORM={imported[0]} (or "
            f"{', '.join(imported[1:])})"
        )
    if imported:
        _check_provided(imported[0], provided, f"{imported[0]} is imported")
        return imported[0]
    installed = [name for name in provided if _is_installed(name)]
    if len(installed) > 1:
        raise PlatformError(
            f"{' and '.join(installed)} are both installed and neither is imported: say which one to use with "
            f"HP_PLATFORM={installed[0]} (or {', '.join(installed[1:])}), or import it first"
        )
    if not installed:
        raise PlatformError(
            "no framework is installed: pip install 'hp-core[torch]' "
            f"(choices: {', '.join(provided) or 'no platform is provided'})"
        )
    return installed[0]


def _check_provided(name: str, provided: list[str], what: str) -> None:
    if name in provided:
        return
    hint = did_you_mean(name, provided)
    there = ", ".join(provided) or "none"
    if name in KNOWN:
        raise PlatformError(
            f"{what}, but no installed package provides the platform {name!r} (provided: {there}): set HP_PLATFORM to "
            "one of these, or update hp-core"
        )
    raise PlatformError(f"{what}: there is no platform {name!r}{hint} (provided: {there})")


def _is_installed(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _make(name: str) -> Platform:
    from hp_core.kinds import check_members
    from hp_core.registry import resolve

    factory = resolve("platform", name)
    assert callable(factory), "the registry checks that a platform is a class"
    platform = factory()
    for part, protocol in (("tensor", TensorOps), ("module", ModuleOps), ("autograd", AutogradOps)):
        problem = check_members(getattr(platform, part, None), protocol)
        if problem:
            raise PlatformError(f"platform {name!r}: its {part} {problem}; update the package that provides it")
    made: Platform = platform
    return made
