# SPDX-License-Identifier: Apache-2.0
"""The ``shm`` backend passes what every comm backend must pass."""

from __future__ import annotations

from hp_core.testing import CommSuite


class TestOnTwoRanks(CommSuite):
    backend = "shm"
    num_ranks = 2


class TestOnThreeRanks(CommSuite):
    backend = "shm"
    num_ranks = 3
    seeds = range(8, 14)


class TestOnFourRanks(CommSuite):
    backend = "shm"
    num_ranks = 4
    seeds = range(14, 20)
