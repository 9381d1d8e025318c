# SPDX-License-Identifier: Apache-2.0
"""Handles of torch.distributed's works: the host is blocked for its own collectives, not for an accelerator's.

The works are stand-ins: here it counts which calls are made. What NCCL does with them needs a device.
"""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hp_core.comm.c10d_work import Batch, Collective


class Work:
    """A work that is complete or not, and notes how it is waited for."""

    def __init__(self, complete: bool = True) -> None:
        self.complete = complete
        self.waits: list[tuple[Any, ...]] = []

    def wait(self, *args: Any) -> bool:
        self.waits.append(args)
        if not self.complete:
            raise RuntimeError("timed out")
        return True

    def is_completed(self) -> bool:
        return self.complete


@pytest.mark.parametrize("result", [None, torch.ones(2)], ids=["nothing", "a tensor of the host"])
def test_a_collective_of_the_host_is_waited_for_no_longer_than_is_asked(result: Any) -> None:
    work = Work()
    assert Collective(work, result).wait(1.5)
    assert work.waits == [(timedelta(seconds=1.5),)]
    assert not Collective(Work(complete=False), result).wait(1.5)


@pytest.mark.parametrize("then", [False, True])
def test_a_collective_of_an_accelerator_is_waited_for_without_a_time_which_would_block_the_host(then: bool) -> None:
    work = Work()
    handle = Collective(work, SimpleNamespace(is_cpu=False))
    if then:
        handle = handle.then(lambda: "rest")
    assert handle.wait(1.5)
    assert work.waits == [()]
    assert not then or handle.finish() == "rest"


def test_a_batch_waits_for_each_work_in_the_way_of_its_device() -> None:
    hosts, queued, done = Work(), Work(), []
    batch = Batch([hosts], [queued], [lambda: done.append(1)], [], 9.0)
    assert batch.wait(1.5)
    assert queued.waits == [()]
    [(limit,)] = hosts.waits
    assert 1.0 < limit.total_seconds() <= 1.5
    batch.finish()
    assert done == [1]


def test_a_batch_of_an_accelerator_is_asked_and_not_waited_for() -> None:
    queued = Work(complete=False)
    batch = Batch([], [queued], [], [], 9.0)
    assert not batch.is_done()
    queued.complete = True
    assert batch.is_done()
    assert queued.waits == []
