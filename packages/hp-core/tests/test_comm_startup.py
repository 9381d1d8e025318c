# SPDX-License-Identifier: Apache-2.0
"""Bringing communication up where something is wrong: missing ranks, a taken port, other plugins, disagreements."""

from __future__ import annotations

import os
import socket

from hp_core.comm.roster import host_identity


def test_a_rank_that_never_starts_is_named(play):
    answers = play(3, "comm.init_backend(timeout_s=2) if rank != 2 else time.sleep(100)", silent=(2,), up=False)
    for answer in answers[:2]:
        assert answer.text.startswith("CommTimeoutError"), answer
        assert "rank 2 of 3 did not come up within 2 s" in answer.text


def test_when_rank_0_never_starts_the_others_say_so(play):
    answer = play(2, "comm.init_backend(timeout_s=2) if rank != 0 else time.sleep(100)", silent=(0,), up=False)[1]
    assert answer.text.startswith("CommError"), answer
    assert "no answer from the job's store at 127.0.0.1:" in answer.text
    assert "missing: rank 0" in answer.text


def test_a_port_in_use_is_named(play):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = play(
            1,
            f"os.environ.update(WORLD_SIZE='2', MASTER_PORT='{port}'); comm.init_backend(timeout_s=3)",
            up=False,
        )[0]
    assert answer.text.startswith("CommError: rank 0: address already in use: "), answer
    assert f"port {port}" in answer.text
    assert "\n" not in answer.text


def test_a_rank_with_other_plugins_is_an_error_on_all(play):
    for answer in play(
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


def test_a_group_of_torch_that_is_up_already_is_adopted(play):
    for answer in play(
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


def test_disagreements_are_found_before_they_hang(play):
    for answer in play(
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


def test_a_host_is_its_kernel_and_namespaces_and_can_be_split_but_not_joined(monkeypatch):
    monkeypatch.delenv("HP_HOST", raising=False)
    whole = host_identity()
    assert all(os.readlink(f"/proc/self/ns/{kind}") in whole for kind in ("ipc", "pid", "net"))
    found = set()
    for name in ("a", "b"):
        monkeypatch.setenv("HP_HOST", name)
        assert host_identity().startswith(f"{whole}/")
        found.add(host_identity())
    assert len(found) == 2
    monkeypatch.setenv("HP_HOST", "")
    assert host_identity() == whole
