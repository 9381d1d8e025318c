# SPDX-License-Identifier: Apache-2.0
"""Very many mixed collectives through shared memory, back to back, from ranks that come at different times.

They are the conformance suite's random programs, with tensors up to 8 MB among them; each element of each result is
checked. ``HP_TEST_CALLS`` says how many calls (400 by default, 100,000 in the long run, which has 8 ranks too).
"""

from __future__ import annotations

import os
from math import prod

import numpy as np
import pytest

from hp_core.testing import ranks
from hp_core.testing.comm_programs import KINDS, make_program
from hp_core.testing.comm_suite import run_program

NUM_CALLS = int(os.environ.get("HP_TEST_CALLS", "400"))
MAX_BYTES = 8 << 20


# Eight workers would cost every run of the tests more than all that they do.
@pytest.mark.parametrize("num_ranks", [2, 4] if NUM_CALLS < 10_000 else [2, 4, 8])
def test_every_element_of_very_many_calls_is_right(num_ranks: int) -> None:
    limit_s = 120.0 + NUM_CALLS * num_ranks * 0.01
    num_done = ranks(num_ranks, env={"HP_COMM": "shm"}).run(
        run_program, 100 + num_ranks, num_ranks, NUM_CALLS, MAX_BYTES, jitter=True, timeout_s=limit_s
    )
    # Groups are random: but the world, and the world in reverse, are two of at most five.
    assert min(num_done) > NUM_CALLS // 8, num_done


def test_the_calls_are_of_every_kind_and_of_sizes_up_to_the_largest() -> None:
    steps = make_program(104, 4, 20_000, MAX_BYTES).steps
    assert {step.kind for step in steps} == set(KINDS)
    for kind in ("all_reduce", "broadcast"):
        sizes = [prod(step.shape) * _item_bytes(step.dtype) for step in steps if step.kind == kind]
        assert 0 in sizes
        assert MAX_BYTES // 4 < max(sizes) <= MAX_BYTES, max(sizes)
    assert any(step.asynchronous for step in steps)
    assert len({step.group for step in steps}) >= 3


def _item_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
