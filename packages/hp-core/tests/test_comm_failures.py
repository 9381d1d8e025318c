# SPDX-License-Identifier: Apache-2.0
"""Ranks that come late, die, stop or call something else: the others raise within seconds and say who and where."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest

from hp_core.comm.diagnosis import process_state


def test_a_rank_that_does_not_come_is_named_with_the_call_and_where_it_is(play):
    first, _, third = play(
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


def test_a_wait_that_expires_says_its_own_limit_and_takes_communication_down(play):
    first, second = play(
        2,
        """
        if rank == 1:
            time.sleep(2)
            comm.barrier()
        work = comm.all_reduce(x, async_op=True)
        time.sleep(0.5)
        try:
            work.wait(timeout_s=0.25)
        except HPError as exc:
            assert "(wait(timeout_s=0.25)); rank 1 never came" in str(exc), exc
        work.wait()
        """,
    )
    assert (
        "all_reduce #3 on group world (shape (4, 3), float32, 48 bytes, sum) failed at an earlier wait()" in first.text
    )
    assert "rank 0 failed: all_reduce #3 on group world" in second.text
    assert "(wait(timeout_s=0.25))" in second.text


def test_a_stopped_rank_is_named_as_stopped(play):
    answer = play(
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


def test_a_stopped_rank_that_hosts_the_store_is_named(play):
    answer = play(
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
def test_when_a_rank_is_killed_the_others_raise_at_once(play, victim):
    answers = play(
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
def test_a_point_to_point_operation_with_a_dead_peer_raises(play, kind):
    answer = play(
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


def test_a_collective_waits_for_a_rank_that_waits_for_a_message(play):
    first, second = play(
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


def test_a_mismatched_collective_is_named_with_both_calls(play):
    first, second = play(
        2,
        """
        if rank == 0:
            comm.barrier(timeout_s=2)
        else:
            comm.all_to_all(torch.ones(4), timeout_s=20)
        """,
        env={"HP_COMM": "c10d"},  # gloo does not see it; shared memory does, at once
    )
    assert first.text.startswith("CommTimeoutError")
    assert "barrier #3 on group world not complete" in first.text
    assert "rank 1 is at all_to_all #3 on group world (shape (4,), float32, 16 bytes) (a different call: mismatch)" in (
        first.text
    )
    assert second.text.startswith("CommError")
    assert "given up" in second.text
    assert second.after_s < 15


def test_ranks_that_wait_in_other_groups_end_too(play):
    answers = play(
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


def test_a_rank_that_gives_up_ends_what_the_others_wait_in(play):
    first, second = play(
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


def test_a_failed_rank_ends_promptly_though_other_calls_are_under_way(play):
    # gloo's own destructor would wait for them.
    first, second = play(
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


def test_work_can_be_waited_for_with_a_shorter_timeout_and_fails_for_good(play):
    first, _ = play(
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
def test_barriers_and_objects_time_out(play, call):
    answer = play(2, f"{call} if rank == 0 else time.sleep(100)", silent=(1,))[0]
    assert answer.text.startswith("CommTimeoutError"), answer
    assert "rank 1 never came" in answer.text


def test_a_group_that_a_member_does_not_make_times_out(play):
    answers = play(3, "comm.new_group([2, 0, 1]) if rank != 1 else time.sleep(100)", silent=(1,), timeout_s=3)
    for answer in (answers[0], answers[2]):
        assert answer.text.startswith("CommTimeoutError"), answer
        assert "new_group([2, 0, 1]) waited 3 s for rank 1 to make it too" in answer.text


def test_after_a_failure_communication_comes_up_again(play):
    for answer in play(
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


def test_a_process_that_cannot_be_looked_at_is_not_called_dead():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        state = process_state(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert state is None
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert process_state(ended.pid) == "dead"
