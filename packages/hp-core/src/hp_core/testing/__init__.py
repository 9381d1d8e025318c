# SPDX-License-Identifier: Apache-2.0
"""The test kit: worker processes kept for the session, comparison with one process, suites for plugins and backends.

It needs no pytest and imports no framework by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hp_core.testing.compare import Comparison, assert_same_as_single
from hp_core.testing.pool import RankError, Ranks, close_pools, ranks
from hp_core.testing.trainee import Trainee, model_loss

if TYPE_CHECKING:
    from hp_core.testing.comm_suite import CommSuite
    from hp_core.testing.platform_suite import PlatformSuite
    from hp_core.testing.plugin_suite import PluginSuite

# Loaded when asked for: they need pytest, or a framework.
_SUITES = {"CommSuite": "comm_suite", "PlatformSuite": "platform_suite", "PluginSuite": "plugin_suite"}


def __getattr__(name: str) -> Any:
    if name in _SUITES:
        import importlib

        return getattr(importlib.import_module(f"hp_core.testing.{_SUITES[name]}"), name)
    raise AttributeError(f"module 'hp_core.testing' has no attribute {name!r}")


__all__ = [
    "CommSuite",
    "Comparison",
    "PlatformSuite",
    "PluginSuite",
    "RankError",
    "Ranks",
    "Trainee",
    "assert_same_as_single",
    "close_pools",
    "model_loss",
    "ranks",
]
