# SPDX-License-Identifier: Apache-2.0
"""What is under way when it should not be: at the end, on the same tensor, in a fork or a thread, when a rank dies."""

from __future__ import annotations

import os
import subprocess
import sys

from hp_core.launch.ports import free_port
from hp_core.testing import ranks


def test_works_that_nobody_waits_for_are_drained_and_named_at_exit():
    """In interpreters that end by themselves: torn down while it works, gloo aborts the process."""
    code = (
        "import torch, hp_core.comm as comm\n"
        "comm.init_backend(timeout_s=60)\n"
        "kept = [comm.all_reduce(torch.ones(1000), async_op=True) for _ in range(5)]\n"
        "[comm.all_reduce(torch.ones(1000), async_op=True) for _ in range(20)]\n"
    )
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **job, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=90)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, error) in enumerate(zip(processes, errors, strict=True)):
        assert process.returncode == 0, error
        assert f"rank {rank}: the process ended before wait() was called for all_reduce #1 on group world, " in error
        assert "and 21 more, whose results may be missing; call wait() of each Work" in error


def test_a_work_whose_peer_never_comes_is_given_up_at_exit_by_name(play, tmp_path):
    play(
        2,
        """
        import hp_core.comm.in_flight
        hp_core.comm.in_flight.DRAIN_S = 0.5
        if rank == 0:
            work = comm.all_reduce(x, async_op=True)
            message = comm.batch_p2p([comm.P2P("recv", torch.ones(2), 1)], async_op=True)
        else:
            time.sleep(2)
        """,
    )
    error = (tmp_path / "0.err").read_text()
    assert (
        "rank 0: the process ended while all_reduce #3 on group world, batch_p2p #1 on group world was under" in error
    )
    assert "rank 0" not in (tmp_path / "1.err").read_text()


def test_shutdown_lets_what_is_under_way_complete_and_gives_up_the_rest(play, tmp_path):
    first, second = play(
        2,
        """
        import hp_core.comm.in_flight
        hp_core.comm.in_flight.DRAIN_S = 1.0
        both = comm.all_reduce(x, async_op=True)
        if rank == 0:
            alone = comm.batch_p2p([comm.P2P("recv", torch.ones(2), 1)], async_op=True)
        began = time.monotonic()
        comm.shutdown()
        assert time.monotonic() - began < 10
        assert both.wait().sum().item() == 48, both.wait()  # ones, reduced twice over two ranks
        if rank == 0:
            alone.wait()
        """,
    )
    assert first.text.startswith(
        "CommError: rank 0: batch_p2p #1 on group world (recv peer 1 tag 0 8 bytes) was given up"
    )
    assert "communication was shut down" in first.text
    assert first.after_s < 15
    assert second.text == "no error"
    assert (
        "communication was shut down while batch_p2p #1 on group world was under way"
        in (tmp_path / "0.err").read_text()
    )


def _same_tensor() -> list[str]:
    import torch

    import hp_core.comm as comm

    x = torch.ones(1000)
    work = comm.all_reduce(x, async_op=True)
    found = []
    for call in (
        lambda: comm.all_reduce(x, async_op=True),
        lambda: comm.broadcast(x),
        lambda: comm.all_gather(x),
        lambda: comm.all_reduce(x[:10], group=comm.new_group(range(comm.world_size())[::-1])),
    ):
        try:
            call()
            found.append("no error")
        except comm.CommError as error:
            found.append(str(error))
    work.wait()
    # Reading the same tensor is fine, and so is the next call after the wait.
    assert comm.all_reduce(x).tolist() == [4.0] * 1000
    works = [comm.all_gather(x, async_op=True) for _ in range(3)]
    assert [int(one.wait().sum()) for one in works] == [8000] * 3
    assert not comm.world().session.in_flight.handles
    return found


def test_a_tensor_that_is_being_overwritten_is_refused_until_it_is_waited_for():
    for found in ranks(2).run(_same_tensor):
        kinds = ("all_reduce", "broadcast", "all_gather", "all_reduce")
        for kind, text in zip(kinds, found, strict=True):
            assert text.startswith(f"{kind} on a tensor that all_reduce #"), text
            assert "still overwrites; call wait() of its Work first" in text


def _many_never_waited_for() -> int:
    import torch

    import hp_core.comm as comm

    for _ in range(700):
        comm.all_reduce(torch.ones(2), async_op=True)
    comm.barrier()
    session = comm.world().session
    kept = len(session.in_flight.handles)
    session.in_flight.drain(10.0)
    return kept


def test_works_that_nobody_waits_for_do_not_pile_up():
    assert max(ranks(2).run(_many_never_waited_for)) < 700


def test_a_forked_process_cannot_communicate_and_does_not_disturb_its_parent(play):
    for answer in play(
        2,
        """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            for call in (lambda: comm.all_reduce(x, group=comm.init_backend()), lambda: comm.new_group([1, 0])):
                try:
                    said.append(f"returned {call()}")
                except comm.CommError as exc:
                    said.append(str(exc))
            comm.abort("nobody hears this")
            comm.shutdown()
            os.write(write, "|".join(said).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for said in os.read(read, 4096).decode().split("|"):
            if f"this process was forked from rank {rank} after init_backend, and only that one can" not in said:
                raise comm.CommError(said)
        assert comm.all_reduce(torch.ones(1)).item() == 2
        assert comm.all_gather(torch.tensor([rank]), comm.new_group([1, 0])).tolist() == [1, 0]
        """,
    ):
        assert answer.text == "no error"


def _two_threads() -> int:
    import threading

    import torch

    import hp_core.comm as comm

    groups = [comm.world(), comm.new_group(range(comm.world_size())[::-1])]
    right = [0, 0]

    def work(number: int) -> None:
        for turn in range(100):
            total = comm.all_reduce(torch.full((50,), float(turn)), group=groups[number])
            right[number] += total.tolist() == [2.0 * turn] * 50
            objects = comm.all_gather_object((number, turn), groups[number]) if turn % 10 == 0 else [(number, turn)]
            assert set(objects) == {(number, turn)}

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(right)


def test_two_threads_communicate_at_once_each_on_a_group_of_its_own():
    assert ranks(2).run(_two_threads) == [200, 200]


def test_when_a_rank_dies_the_members_of_all_groups_it_shares_raise(play):
    answers = play(
        4,
        """
        left = comm.new_group([0, 1, 2], "left") if rank != 3 else None
        right = comm.new_group([2, 1, 3], "right") if rank != 0 else None
        if rank == 1:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2:
            early = comm.all_reduce(torch.ones(2), group=right, async_op=True)
        comm.all_reduce(x, group=left if rank in (0, 2) else right)
        """,
        silent=(1,),
    )
    for rank, group in ((0, "left"), (2, "left"), (3, "right")):
        answer = answers[rank]
        assert answer.text.startswith(f"CommError: rank {rank}: all_reduce #1 on group {group} (shape (4, 3), "), answer
        assert "rank 1 has ended (process " in answer.text, answer
        assert answer.after_s < 12


def _objects() -> list[str]:
    import torch

    import hp_core.comm as comm

    class CannotBeMade:
        def __reduce__(self):
            return int, ("x",)

    found = []
    for call in (
        lambda: comm.all_gather_object(CannotBeMade() if comm.rank() == 0 else 1),
        lambda: comm.broadcast_object(CannotBeMade(), src=1),
    ):
        try:
            found.append(f"returned {call()}")
        except comm.CommError as error:
            found.append(str(error))
    if comm.rank() == 0:  # what does not pickle is the caller's alone
        try:
            comm.all_gather_object(lambda: 0)
        except comm.CommError as error:
            found.append(str(error))
    large = comm.all_gather_object(b"x" * (20 << 20) if comm.rank() else b"")
    assert [len(one) for one in large] == [0, 20 << 20]
    assert comm.all_reduce(torch.ones(1)).item() == 2
    return found


def test_objects_that_do_not_travel_are_errors_and_communication_goes_on():
    first, second = ranks(2).run(_objects)
    for rank, found in enumerate((first, second)):
        for kind, src, text in zip(("all_gather_object", "broadcast_object"), (0, 1), found[:2], strict=True):
            assert text.startswith(f"rank {rank}: {kind} on group world: the object of rank {src} cannot be unpickled")
    assert "an object of type function does not pickle" in first[2]
