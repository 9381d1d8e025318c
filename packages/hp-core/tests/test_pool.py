# SPDX-License-Identifier: Apache-2.0
"""``hp_core.testing.ranks``: what runs where, what is said on failure, what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from hp_core.errors import CommError
from hp_core.testing import RankError, ranks

BASE = 100


class Custom(Exception):
    """Defined in a test module, which no worker can import."""


class NeedsTwo(Exception):
    """Pickles, and cannot be made again from what it pickled."""

    def __init__(self, first, second):
        super().__init__(f"{first} {second}")


def bare(num_ranks: int, **options):
    """A pool without comm, so that no test here pays for a framework."""
    return ranks(num_ranks, init_comm=False, **options)


def my_rank() -> int:
    return int(os.environ["RANK"])


def test_results_come_in_rank_order_and_functions_of_test_modules_travel_by_value():
    def scaled(by, offset=0):
        return BASE + my_rank() * by + offset

    assert bare(3).run(scaled, 10, offset=1) == [101, 111, 121]


def test_processes_are_kept_between_runs_and_are_not_this_one():
    first = bare(2).run(os.getpid)
    assert first == bare(2).run(os.getpid)
    assert os.getpid() not in first
    assert len(set(first)) == 2


def test_workers_have_the_environment_of_a_rank_and_one_thread():
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "MASTER_PORT")
    got = bare(2).run(lambda: [os.environ[name] for name in names])
    ports = {values.pop() for values in got}
    assert got == [[str(rank), str(rank), "2", "2", "127.0.0.1", "1"] for rank in range(2)]
    assert len(ports) == 1


def test_large_arguments_and_results_pass():
    blob = os.urandom(1 << 20) * 20
    assert bare(2).run(lambda data: data[::-1], blob) == [blob[::-1]] * 2


def test_a_failing_rank_is_named_with_its_traceback_and_what_was_printed_and_the_pool_is_remade(gone):
    pool = bare(2)
    before = pool.run(os.getpid)

    def fails_on_one(message):
        print(f"here is {my_rank()}")
        if my_rank() == 1:
            raise Custom(message)

    with pytest.raises(RankError, match=r"rank 1 of 2 failed: .*Custom: no such luck") as caught:
        pool.run(fails_on_one, "no such luck")
    error = caught.value
    assert error.rank == 1
    assert "raise Custom(message)" in error.traceback  # the line of the test, from its file
    assert "worker.py" not in error.traceback
    assert isinstance(error.__cause__, Custom)
    assert "rank 0: returned" in str(error)
    assert "[rank 0] here is 0" in str(error)
    assert "[rank 1] here is 1" in str(error)
    after = pool.run(os.getpid)
    assert not set(before) & set(after)
    assert all(gone(pid) for pid in before)


def test_the_consequence_on_another_rank_is_not_reported_as_the_error():
    def one_fails_later_but_first():
        if my_rank() == 0:
            raise CommError("connection closed by peer")
        time.sleep(0.3)
        raise KeyError("weight")

    with pytest.raises(RankError, match="rank 1 of 2 failed: KeyError: 'weight'") as caught:
        bare(2).run(one_fails_later_but_first)
    assert "rank 0: failed too: hp_core.errors.CommError: connection closed by peer" in str(caught.value)


def test_ranks_that_wait_for_a_failed_one_are_not_waited_for():
    def waits():
        if my_rank() == 1:
            raise ValueError("gone")
        time.sleep(600)

    begin = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2 failed: ValueError: gone") as caught:
        bare(2).run(waits)
    assert time.monotonic() - begin < 10
    assert caught.value.stuck == [0]
    assert "in waits" in str(caught.value)


def test_a_rank_that_does_not_answer_is_named_with_its_stack_even_when_it_holds_the_interpreter():
    def hang_in_c():
        import ctypes

        if my_rank() == 1:
            ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the GIL

    with pytest.raises(RankError, match="no answer from rank 1 within") as caught:
        bare(2).run(hang_in_c, timeout_s=0.5)
    assert caught.value.stuck == [1]
    assert "in hang_in_c" in caught.value.traceback
    assert "rank 0: returned" in str(caught.value)


def test_a_killed_rank_is_named_with_the_signal():
    def killed():
        if my_rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(RankError, match=r"rank 0 of 2 failed: killed by SIGKILL \(signal 9\)"):
        bare(2).run(killed)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: threading.Lock(), "the result of the function cannot be pickled: lock"),
        (lambda: sys.exit(3), "SystemExit: 3"),
        (lambda: (_ for _ in ()).throw(NeedsTwo("a", "b")), "NeedsTwo: a b"),
    ],
    ids=["result that cannot travel", "SystemExit", "exception that cannot travel"],
)
def test_whatever_a_function_does_the_caller_learns_of_it(function, message):
    with pytest.raises(RankError, match=message):
        bare(1).run(function)


def test_each_environment_has_a_pool_of_its_own():
    shared = bare(2, env={"HP_X": "both"})
    own = bare(2, env=[{"HP_X": "zero"}, {"HP_X": "one"}])
    assert shared.run(lambda: os.environ["HP_X"]) == ["both", "both"]
    assert own.run(lambda: os.environ["HP_X"]) == ["zero", "one"]
    assert shared.run(os.getpid) != own.run(os.getpid)


def test_at_most_three_pools_live_and_the_least_recently_used_ends(gone):
    pids = [bare(1, env={"HP_POOL": str(number)}).run(os.getpid)[0] for number in range(3)]
    assert bare(1, env={"HP_POOL": "0"}).run(os.getpid) == pids[:1]
    bare(1, env={"HP_POOL": "3"}).run(os.getpid)
    assert gone(pids[1])
    assert not gone(pids[0], within_s=0.1)
    assert not gone(pids[2], within_s=0.1)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        ranks(0)
    with pytest.raises(ValueError, match="env has 3 mappings"):
        ranks(2, env=[{}, {}, {}])


def test_comm_is_ready_and_a_failure_while_others_wait_in_a_collective_names_the_rank():
    def total():
        import torch

        import hp_core.comm as comm

        assert torch.get_num_threads() == 1
        return comm.all_reduce(torch.tensor([comm.rank() + 1.0])).item()

    def one_never_comes():
        import hp_core.comm as comm

        if comm.rank() == 1:
            raise ValueError("before the collective")
        comm.barrier()

    pool = ranks(2)
    assert pool.run(total) == [3.0, 3.0]
    begin = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2 failed: ValueError: before the collective"):
        pool.run(one_never_comes)
    assert time.monotonic() - begin < 10


SCRIPT = """
    import os, signal, subprocess, sys, time
    from hp_core.testing import RankError, ranks

    class Own(Exception):
        pass

    def child():
        return os.getpid(), subprocess.Popen(["sleep", "600"]).pid

    def raises():
        raise Own("of a script")

    if __name__ == "__main__":
        pool = ranks(2, init_comm=False)
        try:
            pool.run(raises)
        except RankError as error:
            assert isinstance(error.__cause__, Own), error
        print(*(pid for pair in pool.run(child) for pid in pair), flush=True)
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "killed while a worker holds the interpreter":
            subprocess.Popen([sys.executable, "-c", f"import os,time; time.sleep(0.5); os.kill({os.getpid()}, 9)"])
            pool.run(lambda: __import__('ctypes').PyDLL(None).sleep(600), timeout_s=600)
        if sys.argv[1] == "raises":
            raise SystemExit(7)
"""


@pytest.mark.parametrize(
    ("how", "returncode"),
    [("returns", 0), ("raises", 7), ("killed", -9), ("killed while a worker holds the interpreter", -9)],
)
def test_a_plain_script_can_use_it_and_nothing_survives_the_script(tmp_path, how, returncode, gone):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run([sys.executable, script, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == returncode, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 4
    assert [pid for pid in pids if not gone(pid)] == []
