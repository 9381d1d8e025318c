# SPDX-License-Identifier: Apache-2.0
"""An exception in a hook says whose implementation raised it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any

import pluggy

from hp_core.errors import HPError, PluginError
from hp_core.plugins.exception_text import exception_text


def name_culprits(manager: pluggy.PluginManager) -> None:
    """Make ``manager`` raise a `PluginError` naming plugin and hook for whatever an implementation raises.

    An `HPError` passes unchanged: that is how a plugin refuses something in its own words.
    """

    def before(hook_name: str, methods: Sequence[pluggy.HookImpl], kwargs: Mapping[str, Any]) -> None:
        """Nothing to do before a call."""

    def after(
        outcome: pluggy.Result[Any], hook_name: str, methods: Sequence[pluggy.HookImpl], kwargs: Mapping[str, Any]
    ) -> None:
        exc = outcome.exception
        if not isinstance(exc, Exception) or isinstance(exc, HPError):
            return
        culprit = _find(exc, methods)
        name = culprit.plugin_name if culprit else "one that pluggy cannot name"
        error = PluginError(
            f"plugin {name!r} failed in hook {hook_name}: {exception_text(exc)}"
            f" (HP_PLUGINS_DISABLE={name.partition(':')[0]} runs without it)"
        )
        error.__cause__ = exc
        outcome.force_exception(error)

    manager.add_hookcall_monitoring(before, after)


def _find(exc: BaseException, methods: Sequence[pluggy.HookImpl]) -> pluggy.HookImpl | None:
    """Return the implementation whose code is deepest in the traceback."""
    by_code = {code: impl for impl in methods if (code := _code(impl)) is not None}
    culprit = None
    traceback = exc.__traceback__
    while traceback is not None:
        culprit = by_code.get(traceback.tb_frame.f_code, culprit)
        traceback = traceback.tb_next
    return culprit


def _code(impl: pluggy.HookImpl) -> CodeType | None:
    return getattr(inspect.unwrap(impl.function), "__code__", None)
