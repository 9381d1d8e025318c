# SPDX-License-Identifier: Apache-2.0
"""The test kit: worker processes kept for the session, comparison with one process, suites for plugins and backends.

It needs no pytest and imports no framework by itself.
"""

from __future__ import annotations

from hp_core.testing.compare import Comparison, assert_same_as_single
from hp_core.testing.pool import RankError, Ranks, close_pools, ranks
from hp_core.testing.trainee import Trainee, model_loss

__all__ = [
    "Comparison",
    "RankError",
    "Ranks",
    "Trainee",
    "assert_same_as_single",
    "close_pools",
    "model_loss",
    "ranks",
]
