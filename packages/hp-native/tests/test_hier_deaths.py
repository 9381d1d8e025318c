# SPDX-License-Identifier: Apache-2.0
"""A rank that is killed on one host: the ranks of all hosts raise within seconds, and name it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

#: What asks a host for its dead takes up to 3 s for the ranks of other hosts, and half a second to be seen.
WITHIN_S = 8.0

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "hp_core.comm.c10d", "hp_native.hier"])

_RANK = """
import json, os, sys, time
os.environ.update({env!r})
sys.stderr = open({path!r} + ".err", "w")
import torch
import hp_core.comm as comm
from hp_core.errors import CommError
torch.set_num_threads(1)
rank, role = {rank}, {role!r}
comm.init_backend(timeout_s=60)
assert comm.world().backend == "hier"
comm.barrier()
open({path!r} + ".up", "w").close()
error = "none"
try:
    if role == "works":
        while True:
            for count in (3, 100_000, 1_000_000):
                comm.all_reduce(torch.ones(count))
                comm.all_gather(torch.ones(count), async_op=True).wait()
    elif role == "computes":
        work = comm.all_reduce(torch.ones(1000), async_op=True)
        end = time.monotonic() + 30
        while not os.path.exists({others!r}) and time.monotonic() < end:
            time.sleep(0.01)
        work.wait()
    elif role == "waits":
        comm.all_reduce(torch.ones(1000))
    else:
        time.sleep(60)
except CommError as exc:
    error = type(exc).__name__ + ": " + str(exc)
with open({path!r} + ".tmp", "w") as file:
    json.dump([time.monotonic(), error], file)
os.rename({path!r} + ".tmp", {path!r})
import atexit
atexit._run_exitfuncs()
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(condition: Any, what: str, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"waited {within_s} s for {what}"
        time.sleep(0.01)


def _kill(
    folder: Path, hosts: str, victim: int, roles: list[str], after_s: float
) -> tuple[dict[int, float], list[str]]:
    """Let one rank be killed; return how long after it each other one raised, and their errors."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(len(hosts))}
    paths = [folder / str(rank) for rank in range(len(hosts))]
    workers = []
    for rank, host in enumerate(hosts):
        env = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "HP_HOST": host}
        source = _RANK.format(env=env, path=str(paths[rank]), rank=rank, role=roles[rank], others=str(paths[-1]))
        workers.append(_CONTEXT.Process(target=exec, args=(source, {}), daemon=True))
        workers[-1].start()
    others = [rank for rank in range(len(hosts)) if rank != victim]
    try:
        _await(lambda: all(Path(f"{path}.up").exists() for path in paths), "the ranks to come up")
        time.sleep(after_s)
        os.kill(workers[victim].pid, signal.SIGKILL)
        died = time.monotonic()
        for rank in others:
            workers[rank].join(30.0)
            assert not workers[rank].is_alive(), f"rank {rank} hangs"
        answers = {rank: json.loads(paths[rank].read_text()) for rank in others}
    finally:
        for worker in workers:
            if worker.is_alive():
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()
    return {rank: when - died for rank, (when, _) in answers.items()}, [text for _, text in answers.values()]


@pytest.mark.parametrize(("hosts", "victim"), [("AABB", 3), ("ABAB", 2)])
def test_all_hosts_raise_soon_and_name_the_dead(tmp_path: Path, hosts: str, victim: int) -> None:
    late, errors = _kill(tmp_path, hosts, victim, ["works"] * len(hosts), 0.3)
    assert all(text.startswith("Comm") for text in errors), errors
    assert any(f"rank {victim} has ended" in text or f"rank {victim} does not answer" in text for text in errors), (
        errors
    )
    assert max(late.values()) < WITHIN_S, late


def test_a_death_that_only_a_rank_in_user_code_could_see_is_told_to_the_other_host(tmp_path: Path) -> None:
    # Rank 1 shares a host with rank 0 alone, and rank 2 talks to rank 0 alone, which does not wait for its work yet.
    late, errors = _kill(tmp_path, "AAB", 1, ["computes", "sleeps", "waits"], 0.5)
    assert all(text.startswith("Comm") for text in errors), errors
    assert "rank 1 does not answer" in errors[1], errors
    assert max(late.values()) < WITHIN_S, late
