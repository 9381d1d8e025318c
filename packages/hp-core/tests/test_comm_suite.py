# SPDX-License-Identifier: Apache-2.0
"""The conformance suite, on the backends of hp-core."""

from __future__ import annotations

import os

import pytest

import hp_core.comm as comm
from hp_core.comm import fake
from hp_core.testing import RankError, ranks
from hp_core.testing import comm_suite as suite_module
from hp_core.testing.comm_programs import DTYPES, KINDS, make_program
from hp_core.testing.comm_suite import CommSuite, Runner, run_program

#: How many times as many programs as a run of every day has.
TIMES = int(os.environ.get("HP_TEST_PROGRAMS", "1"))


class TestC10dOnTwoRanks(CommSuite):
    backend = "c10d"
    num_ranks = 2
    seeds = range(8 * TIMES)


class TestC10dOnThreeRanks(CommSuite):
    backend = "c10d"
    num_ranks = 3
    seeds = range(10_000, 10_000 + 6 * TIMES)


class TestC10dOnFourRanks(CommSuite):
    backend = "c10d"
    num_ranks = 4
    seeds = range(20_000, 20_000 + 4 * TIMES)


@pytest.mark.parametrize("rank", range(4))
def test_fake_gives_the_shapes_of_every_program(rank):
    comm.init_backend("cpu", backend="fake", world_size=4, rank=rank)
    try:
        for seed in range(5):
            program = make_program(seed, 4, 60)
            with fake.recorded() as calls:
                num_done = Runner(program, values=False).run()
            assert num_done > 8
            kinds = {step.kind for step in program.steps if rank in step.group} - {"batch_p2p", "objects"}
            assert kinds <= {call.kind for call in calls}
    finally:
        comm.shutdown()


def test_programs_cover_every_kind_and_dtype():
    steps = [step for seed in range(8) for step in make_program(seed, 2, 60).steps]
    assert {step.kind for step in steps} == set(KINDS)
    assert {step.dtype for step in steps} == set(DTYPES)
    assert {len(step.shape) for step in steps} == {0, 1, 2, 3}
    assert any(0 in step.shape for step in steps)
    assert any(step.sizes for step in steps if step.kind == "all_to_all")


def test_a_backend_that_corrupts_one_element_fails_with_seed_and_step():
    def run_corrupted():
        import hp_core.comm as comm

        channel = comm.world().channel
        original = type(channel).all_gather

        def corrupt(self, tensor, sizes, out, timeout_s):
            handle = original(self, tensor, sizes, out, timeout_s)
            finish = handle.finish

            class Corrupting:
                wait = staticmethod(handle.wait)
                is_done = staticmethod(handle.is_done)
                leave = staticmethod(handle.leave)

                @staticmethod
                def finish():
                    result = finish()
                    if result.numel() > 3 and result.dtype.is_floating_point:
                        result.view(-1)[3] += 1
                    return result

            return Corrupting()

        type(channel).all_gather = corrupt
        run_program(3, 2, 60)

    with pytest.raises(RankError, match=r"seed 3, 2 ranks, rank \d, Step\(.*elements are wrong; element"):
        ranks(2, env={"HP_COMM": "c10d"}).run(run_corrupted)


def test_the_suite_needs_no_test_framework_to_be_used():
    assert not hasattr(suite_module, "pytest")
