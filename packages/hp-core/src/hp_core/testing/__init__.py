# SPDX-License-Identifier: Apache-2.0
"""The test kit: worker processes kept for the session, comparison with one process, suites for plugins and backends.

It needs no pytest and imports no framework by itself.
"""

from __future__ import annotations

from hp_core.testing.pool import RankError, Ranks, close_pools, ranks

__all__ = ["RankError", "Ranks", "close_pools", "ranks"]
