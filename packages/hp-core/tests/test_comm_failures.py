# SPDX-License-Identifier: Apache-2.0
"""Ranks that come late, die, stop or call something else: the others raise within seconds and say who and where.

The ranks are real processes, forked from a server that has imported the framework once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "hp_core.comm.c10d", "hp_core.plugins"])

_FRAME = """
import os, signal, sys, time
os.environ.update({env!r})
os.environ.update(RANK=str({rank}), WORLD_SIZE=str({size}), LOCAL_RANK=str({rank}))
sys.stderr = open({path!r} + ".err", "w")
import torch
import hp_core.comm as comm
from hp_core.errors import HPError
torch.set_num_threads(1)
rank = {rank}
began = time.monotonic()
text = "no error"
try:
    exec(compile({body!r}, "scenario.py", "exec"), globals())
except HPError as exc:
    text = type(exc).__name__ + ": " + str(exc)
with open({path!r} + ".tmp", "w") as file:
    file.write(f"{{time.monotonic() - began:.3f}} {{text}}")
os.rename({path!r} + ".tmp", {path!r})
"""

_UP = """
comm.init_backend(timeout_s={timeout_s})
x = torch.ones(4, 3)
comm.all_reduce(x)
comm.barrier()
began = time.monotonic()
"""


@dataclass
class Answer:
    """What one rank reports: seconds from the scenario's start, and its error."""

    after_s: float
    text: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def play(path: Path, size: int, body: str, *, silent: tuple[int, ...] = (), timeout_s: float = 60.0, up=True, env=()):
    """Run ``body`` on ``size`` ranks; return an Answer a rank (None for the silent ones, which are killed)."""
    settings = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **dict(env),
    }
    body = (_UP.format(timeout_s=timeout_s) if up else "") + textwrap.dedent(body)
    workers = []
    for rank in range(size):
        source = _FRAME.format(env=settings, rank=rank, size=size, path=str(path / str(rank)), body=body)
        workers.append(_CONTEXT.Process(target=exec, args=(source, {}), daemon=True))
        workers[-1].start()
    heard = [rank for rank in range(size) if rank not in silent]
    end = time.monotonic() + 120
    try:
        for rank in heard:
            workers[rank].join(end - time.monotonic())
            errors = (path / f"{rank}.err").read_text() if (path / f"{rank}.err").exists() else ""
            assert not workers[rank].is_alive(), f"rank {rank} hangs: {errors}"
            assert (path / str(rank)).exists(), f"rank {rank} ended with {workers[rank].exitcode}: {errors}"
    finally:
        for worker in workers:
            if worker.is_alive():
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()
    answers = []
    for rank in range(size):
        after, _, text = (path / str(rank)).read_text().partition(" ") if rank in heard else ("0", "", "")
        answers.append(Answer(float(after), text))
    return answers


def test_a_rank_that_does_not_come_is_named_with_the_call_and_where_it_is(tmp_path):
    first, _, third = play(
        tmp_path,
        3,
        """
        if rank == 1:
            time.sleep(100)
        comm.all_reduce(x, timeout_s=2)
        """,
        silent=(1,),
    )
    for answer in (first, third):
        assert answer.text.startswith("CommTimeoutError: rank ")
        assert (
            "all_reduce #3 on group world (shape (4, 3), float32, 48 bytes, sum) not complete after 2." in answer.text
        )
        assert (
            "rank 1 never came (last completed: barrier #2 on group world; now in user code, scenario.py:"
            in answer.text
        )
        assert 2 <= answer.after_s < 12


def test_a_stopped_rank_is_named_as_stopped(tmp_path):
    answer = play(
        tmp_path,
        2,
        """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        comm.all_reduce(x, timeout_s=2)
        """,
        silent=(1,),
    )[0]
    assert answer.text.startswith("CommTimeoutError")
    assert "rank 1 is stopped (process " in answer.text
    assert answer.after_s < 12


def test_a_stopped_rank_that_hosts_the_store_is_named(tmp_path):
    answer = play(
        tmp_path,
        2,
        """
        if rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        comm.all_reduce(x, timeout_s=2)
        """,
        silent=(0,),
    )[1]
    assert answer.text.startswith("CommTimeoutError")
    assert "rank 0, which hosts the job's store, has ended or is stopped (process" in answer.text
    assert answer.after_s < 15


@pytest.mark.parametrize("victim", [0, 1])
def test_when_a_rank_is_killed_the_others_raise_at_once(tmp_path, victim):
    answers = play(
        tmp_path,
        3,
        f"""
        if rank == {victim}:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(x)
        """,
        silent=(victim,),
    )
    for rank, answer in enumerate(answers):
        if rank != victim:
            assert answer.text.startswith("CommError: rank "), answer
            assert "all_reduce #3 on group world" in answer.text
            expected = "rank 1 has ended (process " if victim else "rank 0, which hosts the job's store, has ended"
            assert expected in answer.text
            assert answer.after_s < 10


@pytest.mark.parametrize("kind", ["recv", "send"])
def test_a_point_to_point_operation_with_a_dead_peer_raises(tmp_path, kind):
    answer = play(
        tmp_path,
        2,
        f"""
        if rank == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        comm.batch_p2p([comm.P2P({kind!r}, torch.ones(1 << 24), 1)])
        """,
        silent=(1,),
    )[0]
    assert answer.text.startswith("CommError")
    assert f"batch_p2p #1 on group world ({kind} peer 1 tag 0 67108864 bytes)" in answer.text
    assert "rank 1 has ended" in answer.text
    assert answer.after_s < 10


def test_a_collective_waits_for_a_rank_that_waits_for_a_message(tmp_path):
    first, second = play(
        tmp_path,
        2,
        """
        if rank == 1:
            comm.barrier(timeout_s=2)
        else:
            comm.batch_p2p([comm.P2P("recv", torch.ones(3), 1, tag=4)])
        """,
    )
    assert second.text.startswith("CommTimeoutError: rank 1: barrier #3 on group world not complete")
    assert "rank 0 is waiting in batch_p2p #1 on group world (recv peer 1 tag 4 12 bytes)" in second.text
    assert first.text.startswith("CommError: rank 0: batch_p2p #1 on group world")
    assert "rank 1 failed: barrier #3 on group world not complete after 2." in first.text
    assert max(first.after_s, second.after_s) < 15


def test_a_mismatched_collective_is_named_with_both_calls(tmp_path):
    first, second = play(
        tmp_path,
        2,
        """
        if rank == 0:
            comm.barrier(timeout_s=2)
        else:
            comm.all_to_all(torch.ones(4), timeout_s=20)
        """,
    )
    assert first.text.startswith("CommTimeoutError")
    assert "barrier #3 on group world not complete" in first.text
    assert "rank 1 is at all_to_all #3 on group world (shape (4,), float32, 16 bytes) (a different call: mismatch)" in (
        first.text
    )
    assert second.text.startswith("CommError")
    assert "given up" in second.text
    assert second.after_s < 15


def test_ranks_that_wait_in_other_groups_end_too(tmp_path):
    answers = play(
        tmp_path,
        4,
        """
        pair = comm.new_group([0, 1] if rank < 2 else [2, 3], "pair")
        if rank == 0:
            comm.all_reduce(x, group=pair, timeout_s=2)
        elif rank == 1:
            time.sleep(6)
            comm.all_reduce(x, group=pair)
        elif rank == 2:
            comm.batch_p2p([comm.P2P("recv", x, 1)], pair)
        else:
            comm.all_gather_object(rank)
        """,
    )
    assert answers[0].text.startswith("CommTimeoutError")
    assert "rank 1 never came" in answers[0].text
    for answer in answers[1:]:
        assert answer.text.startswith("CommError"), answer
        assert "rank 0 failed: all_reduce #1 on group pair" in answer.text
        assert answer.after_s < 15
    assert "cannot communicate any more" in answers[1].text


def test_a_rank_that_gives_up_ends_what_the_others_wait_in(tmp_path):
    first, second = play(
        tmp_path,
        2,
        """
        if rank == 1:
            time.sleep(0.3)
            comm.abort("the data ran out")
            comm.barrier()
        comm.batch_p2p([comm.P2P("recv", x, 1)])
        """,
    )
    assert "rank 1 failed: the data ran out" in first.text
    assert "the data ran out" in second.text
    assert first.after_s < 10


def test_a_failed_rank_ends_promptly_though_other_calls_are_under_way(tmp_path):
    # gloo's own destructor would wait for them.
    first, second = play(
        tmp_path,
        2,
        """
        works = [comm.all_reduce(torch.ones(8), async_op=True, timeout_s=500) for _ in range(3)] if rank == 0 else []
        if rank == 0:
            works[0].wait(timeout_s=1)
        time.sleep(3)
        """,
    )
    assert first.text.startswith("CommTimeoutError")
    assert first.after_s < 10
    assert second.text == "no error"


def test_work_can_be_waited_for_with_a_shorter_timeout_and_fails_for_good(tmp_path):
    first, _ = play(
        tmp_path,
        2,
        """
        if rank == 0:
            work = comm.all_reduce(x, async_op=True)
            try:
                work.wait(timeout_s=0.5)
            except comm.CommTimeoutError:
                work.wait()
        else:
            time.sleep(3)
        """,
    )
    assert first.text.startswith("CommError")
    assert "failed at an earlier wait()" in first.text


@pytest.mark.parametrize("call", ["comm.barrier(timeout_s=1)", "comm.all_gather_object(1, timeout_s=1)"])
def test_barriers_and_objects_time_out(tmp_path, call):
    answer = play(tmp_path, 2, f"{call} if rank == 0 else time.sleep(100)", silent=(1,))[0]
    assert answer.text.startswith("CommTimeoutError"), answer
    assert "rank 1 never came" in answer.text


def test_a_group_that_a_member_does_not_make_times_out(tmp_path):
    answers = play(tmp_path, 3, "comm.new_group([2, 0, 1]) if rank != 1 else time.sleep(100)", silent=(1,), timeout_s=3)
    for answer in (answers[0], answers[2]):
        assert answer.text.startswith("CommTimeoutError"), answer
        assert "new_group([2, 0, 1]) waited 3 s for rank 1 to make it too" in answer.text


def test_after_a_failure_communication_comes_up_again(tmp_path):
    for answer in play(
        tmp_path,
        2,
        """
        try:
            if rank == 1:
                time.sleep(2)
            comm.all_reduce(x, timeout_s=0.5)
        except comm.CommError:
            pass
        else:
            raise comm.CommError("no error")
        comm.shutdown()
        comm.init_backend(timeout_s=30)
        assert comm.all_reduce(torch.ones(2)).tolist() == [2, 2]
        assert comm.new_group([1, 0]).rank == 1 - rank
        """,
    ):
        assert answer.text == "no error"


def test_a_rank_that_never_starts_is_named(tmp_path):
    answers = play(
        tmp_path, 3, "comm.init_backend(timeout_s=2) if rank != 2 else time.sleep(100)", silent=(2,), up=False
    )
    for answer in answers[:2]:
        assert answer.text.startswith("CommTimeoutError"), answer
        assert "rank 2 of 3 did not come up within 2 s" in answer.text


def test_when_rank_0_never_starts_the_others_say_so(tmp_path):
    answer = play(
        tmp_path, 2, "comm.init_backend(timeout_s=2) if rank != 0 else time.sleep(100)", silent=(0,), up=False
    )[1]
    assert answer.text.startswith("CommError"), answer
    assert "no answer from the job's store at 127.0.0.1:" in answer.text
    assert "missing: rank 0" in answer.text


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = play(
            tmp_path,
            1,
            f"os.environ.update(WORLD_SIZE='2', MASTER_PORT='{port}'); comm.init_backend(timeout_s=3)",
            up=False,
        )[0]
    assert answer.text.startswith("CommError: rank 0: address already in use: "), answer
    assert f"port {port}" in answer.text
    assert "\n" not in answer.text


def test_a_rank_with_other_plugins_is_an_error_on_all(tmp_path):
    for answer in play(
        tmp_path,
        3,
        """
        if rank == 1:
            os.environ["HP_PLUGINS_DISABLE"] = "trainer"
        comm.init_backend(timeout_s=30)
        """,
        up=False,
    ):
        assert answer.text.startswith("PluginError: rank "), answer
        assert "plugins differ between ranks" in answer.text
        assert "rank 1 " in answer.text


def test_a_group_of_torch_that_is_up_already_is_adopted(tmp_path):
    for answer in play(
        tmp_path,
        2,
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        comm.init_backend(timeout_s=30)
        assert comm.all_reduce(torch.ones(2)).tolist() == [2, 2]
        comm.shutdown()
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == 2
        """,
        up=False,
    ):
        assert answer.text == "no error"


def test_disagreements_are_found_before_they_hang(tmp_path):
    for answer in play(
        tmp_path,
        3,
        """
        def error(call):
            try:
                call()
            except comm.CommError as exc:
                return str(exc)
            return "no error"

        odd = rank == 1
        coming = ([1, 1, 1], [1, 2, 1], [1, 1, 2])[rank]  # the last one expects too little from rank 0
        texts = [
            error(lambda: comm.all_reduce(torch.ones(4, 11 if odd else 3))),
            error(lambda: comm.all_reduce(x, "max" if odd else "sum")),
            error(lambda: comm.barrier() if odd else comm.broadcast(x)),
            error(lambda: comm.all_reduce(x.double() if odd else x)),
            error(lambda: comm.all_to_all(x, input_sizes=[1, 2, 1] if odd else [1, 1, 2], output_sizes=coming)),
            error(lambda: comm.all_reduce(x)),
        ]
        assert "disagree in the tensor: ranks 0, 2: all_reduce" in texts[0] and "rank 1: all_reduce" in texts[0], texts
        assert "disagree in the operation or root" in texts[1], texts
        assert "disagree in the call: ranks 0, 2: broadcast" in texts[2] and "rank 1: barrier" in texts[2], texts
        assert "disagree in the tensor" in texts[3] and "float64" in texts[3], texts
        assert "rank 0 sends 2 rows to rank 2 (input_sizes), which expects 1" in texts[4], texts
        assert texts[5] == "no error", texts
        """,
        env={"HP_CHECK": "collectives"}.items(),
    ):
        assert answer.text == "no error"
