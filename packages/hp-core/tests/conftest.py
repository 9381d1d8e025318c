# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several test files use."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from hp_core import plugins
from hp_core.launch.failure import Failure
from hp_core.launch.processes import RankProcesses
from hp_core.launch.spec import LaunchSpec

Install = Callable[..., Path]


def write_distribution(
    site: Path,
    name: str,
    source: str | None,
    *,
    version: str = "1.0",
    plugin: str | None = None,
    requires: Sequence[str] = (),
    header: str = "from hp_core.plugins import hookimpl\nfrom hp_core.registry import Provide\n",
) -> Path:
    """Install a distribution as pip would: a module, and a dist-info with metadata and entry points.

    Its module is the distribution's name with underscores; without ``source`` the entry point leads nowhere.
    """
    module = name.replace("-", "_").lower()
    info = site / f"{module}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nA description.\n")
    (info / "entry_points.txt").write_text(f"[hyper_parallel]\n{plugin or module} = {module}\n")
    if source is not None:
        (site / f"{module}.py").write_text(header + textwrap.dedent(source))
    return site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An empty folder for packages, not yet on any path."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install fake distributions into this process; plugins are read afresh at the next use."""
    for variable in ("HP_PLUGINS", "HP_PLUGINS_DISABLE", "HP_PLUGINS_STRICT", "HP_PREFER"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def write(name: str, source: str | None, **options: object) -> Path:
        write_distribution(site, name, source, **options)  # type: ignore[arg-type]
        importlib.invalidate_caches()
        plugins.reload()
        return site

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(site)):
            del sys.modules[name]
    plugins.reload()


# Ranks that fail: real processes, forked from a server that has imported the framework once.
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
import atexit
atexit._run_exitfuncs()  # which an interpreter does at its end, and a child of multiprocessing does not
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _play(path: Path, size: int, body: str, *, silent: tuple[int, ...] = (), timeout_s: float = 60.0, up=True, env=()):
    """Run ``body`` on ``size`` ranks; return an Answer a rank (None for the silent ones, which are killed)."""
    settings = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
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


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., list[Answer]]:
    """Run a scenario on some ranks that may fail: ``play(size, body, silent=…, timeout_s=…, up=…, env=…)``."""
    return functools.partial(_play, tmp_path)


def _gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def gone() -> Callable[..., bool]:
    """Say whether a process ends in time: ``gone(pid, within_s=5.0)``; one that waits to be reaped has ended."""
    return _gone


def _start_job(
    folder: Path, source: str, *, num_ranks: int = 2, args: tuple[str, ...] = (), **options: object
) -> RankProcesses:
    script = folder / "job.py"
    script.write_text(
        "import os, signal, subprocess, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(source)
    )
    spec = LaunchSpec(str(script), args, num_ranks, **options)  # type: ignore[arg-type]
    return RankProcesses(spec, {rank: {"RANK": str(rank)} for rank in range(num_ranks)}, f"mark-{time.time_ns()}")


@pytest.fixture
def start_job(tmp_path: Path) -> Callable[..., RankProcesses]:
    """Start a script on some ranks, without the launcher: ``start_job(source, num_ranks=2, args=(), …)``."""
    return functools.partial(_start_job, tmp_path)


def _finish_job(processes: RankProcesses, within_s: float = 30.0) -> dict[int, Failure]:
    deadline = time.monotonic() + within_s
    try:
        while time.monotonic() < deadline:
            failures = processes.poll()
            if failures is not None:
                return dict(failures)
            time.sleep(0.02)
        raise AssertionError("the job did not end")
    finally:
        processes.close()


@pytest.fixture
def finish_job() -> Callable[..., dict[int, Failure]]:
    """Wait until a job ends and return its failures by rank: ``finish_job(processes, within_s=30.0)``."""
    return _finish_job
