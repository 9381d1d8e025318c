# SPDX-License-Identifier: Apache-2.0
"""Ranks that are killed, stopped, interrupted or fail at random moments: the others raise soon, and nothing is left.

``HP_TEST_DEATHS`` says how many (8 by default, 200 in the long run).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

NUM_DEATHS = int(os.environ.get("HP_TEST_DEATHS", "8"))
KINDS = ("kill", "stop", "raise", "interrupt")
#: What `timeout_s` of the collectives is where a rank is stopped, which only time can tell.
LIMIT_S = 2.0

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "hp_core.comm.c10d", "hp_native.backend"])

_RANK = """
import json, os, random, signal, sys, time
os.environ.update({env!r})
sys.stderr = open({path!r} + ".err", "w")
import torch
import hp_core.comm as comm
from hp_core.errors import CommError
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
rank, size = {rank}, {size}
comm.init_backend(timeout_s={timeout_s})
assert comm.world().backend == "shm"
groups = [comm.world(), comm.new_group(list(range(size))[::-1])]
if rank < 2:
    groups.append(comm.new_group([0, 1]))
common = random.Random({seed})
comm.barrier()
open({path!r} + ".up", "w").close()
error = "none"
pending = []
try:
    while True:
        which = common.choice([0, 1, 2])
        count = common.choice([0, 1, 1000, 100_000, 1_000_000])
        kind = common.choice(["all_reduce", "all_gather", "reduce_scatter", "barrier"])
        later = common.random() < 0.4
        if os.path.exists({path!r} + ".raise"):
            raise ValueError("on purpose")
        if which >= len(groups):
            continue
        group = groups[which]
        x = torch.ones(count * group.size)
        if kind == "barrier":
            comm.barrier(group)
        else:
            work = getattr(comm, kind)(x, group=group, async_op=later)
            if later:
                pending.append(work)
        if len(pending) > 3:
            pending.pop(0).wait()
except CommError as exc:
    error = type(exc).__name__ + ": " + str(exc)
except (ValueError, KeyboardInterrupt) as exc:
    error = type(exc).__name__
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
        time.sleep(0.005)


def _shared_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Shmem in /proc/meminfo")


def _die(folder: Path, number: int) -> tuple[float, list[str]]:
    """Let one rank end somehow; return how long after it the last of the others raised, and their errors."""
    rng = random.Random(number)
    kind = KINDS[number % len(KINDS)]
    size = rng.choice((2, 3))
    victim = rng.randrange(size)
    limit_s = LIMIT_S if kind == "stop" else 60.0
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(size)}
    paths = [folder / f"{number}.{rank}" for rank in range(size)]
    workers = []
    for rank, path in enumerate(paths):
        settings = {**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        source = _RANK.format(env=settings, path=str(path), rank=rank, size=size, timeout_s=limit_s, seed=number)
        workers.append(_CONTEXT.Process(target=exec, args=(source, {}), daemon=True))
        workers[-1].start()
    others = [rank for rank in range(size) if rank != victim]
    try:
        _await(lambda: all(Path(f"{path}.up").exists() for path in paths), f"{size} ranks to come up")
        time.sleep(rng.uniform(0, 0.3))
        died = time.monotonic()
        if kind == "raise":
            Path(f"{paths[victim]}.raise").touch()
            _await(lambda: not workers[victim].is_alive(), "the rank to fail")
            died = time.monotonic()
        else:
            numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}
            os.kill(workers[victim].pid, numbers[kind])
            if kind == "interrupt":
                _await(lambda: not workers[victim].is_alive(), "the interrupted rank to end", 5.0)
                died = time.monotonic()
        for rank in others:
            workers[rank].join(30.0)
            assert not workers[rank].is_alive(), f"{kind} of rank {victim} of {size}: rank {rank} hangs"
        answers = [json.loads(paths[rank].read_text()) for rank in others]
        ended = [victim, *others] if kind in ("raise", "interrupt") else others
        crashed = [(rank, workers[rank].exitcode) for rank in ended if (workers[rank].exitcode or 0) < 0]
        assert not crashed, f"{kind} of rank {victim} of {size}: ended by a signal: {crashed}"
    finally:
        for worker in workers:
            if worker.is_alive():
                os.kill(worker.pid, signal.SIGKILL)
                worker.join()
    return max(when for when, _ in answers) - died - (LIMIT_S if kind == "stop" else 0.0), [text for _, text in answers]


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_the_others_raise_soon_and_name_it_and_nothing_is_left(tmp_path: Path, kind: int) -> None:
    files = set(os.listdir("/dev/shm"))
    before = _shared_bytes()
    late: list[float] = []
    for number in range(kind, NUM_DEATHS, len(KINDS)):
        after_s, errors = _die(tmp_path, number)
        late.append(after_s)
        assert all(text.startswith("Comm") for text in errors), errors
        if KINDS[kind] == "stop":
            assert any("stopped" in text for text in errors), errors
    assert set(os.listdir("/dev/shm")) <= files
    # Whatever else the machine does, segments of these ranks (megabytes each) would add up.
    assert _shared_bytes() - before < len(late) * (4 << 20) + (4 << 20), "shared memory is left"
    assert max(late) < 1.0, f"seconds from the end of a rank to the last error: {sorted(late)[-5:]}"
