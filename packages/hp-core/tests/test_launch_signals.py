# SPDX-License-Identifier: Apache-2.0
"""Signals to ``hp run``: Ctrl-C, SIGTERM, SIGHUP and kill -9."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from hp_core.launch.signals import EndedBySignal, StopSignals, stop_signals

HP = [sys.executable, "-c", "from hp_core.cli import main; main()", "run"]


WAITING = """
    import os, subprocess, sys, time
    child = subprocess.Popen(["sleep", "600"])
    print("pids", os.getpid(), child.pid, flush=True)
    time.sleep(600)
"""


def write(path: Path, source: str) -> str:
    path.write_text(textwrap.dedent(source))
    return str(path)


@pytest.mark.parametrize(
    ("number", "returncode", "said"),
    [
        (signal.SIGINT, 130, "hp run: SIGINT received, the ranks were ended"),
        (signal.SIGTERM, 143, "hp run: SIGTERM received, the ranks were ended"),
        (signal.SIGKILL, -9, None),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_nothing_survives_a_signal_to_the_launcher(tmp_path, number, returncode, said, gone):
    script = write(tmp_path / "job.py", WAITING)
    before = set(os.listdir("/dev/shm"))
    job = subprocess.Popen([*HP, "-n", "2", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids: list[int] = []
    assert job.stdout is not None
    while len(pids) < 4:
        line = job.stdout.readline()
        assert line, job.communicate()
        pids += [int(word) for word in line.split()[3:]]
    begin = time.monotonic()
    job.send_signal(number)
    _, err = job.communicate(timeout=60)
    assert time.monotonic() - begin < 10
    assert job.returncode == returncode
    assert "Traceback" not in err
    if said is not None:
        assert err.splitlines()[-1] == said
    assert [pid for pid in pids if not gone(pid)] == []
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "hp" in name or "torchelastic" in name]


@pytest.mark.parametrize("stalled", ["stdout", "both"])
def test_signals_end_a_job_whose_output_nobody_reads(tmp_path, stalled, gone):
    script = write(
        tmp_path / "job.py",
        """
        import os, pathlib, sys
        pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
        while True:
            print("x" * 1000)
        """,
    )
    reader, writer = os.pipe()
    errors = writer if stalled == "both" else subprocess.PIPE
    job = subprocess.Popen([*HP, "-n", "2", script, str(tmp_path)], stdout=writer, stderr=errors)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("[01]"))) < 2 or not _is_full(writer):
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = [int(path.read_text()) for path in tmp_path.glob("[01]")]
    begin = time.monotonic()
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # the user is in a hurry
        job.send_signal(number)
    try:
        _, err = job.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        job.kill()
        raise
    finally:
        os.close(writer)
        os.close(reader)
    assert time.monotonic() - begin < 10
    assert job.returncode in (130, 143)  # of signals that are there at once the kernel chooses the first
    if stalled == "stdout":
        assert b"received, the ranks were ended; output is lost: nobody reads it" in err
        assert b"Traceback" not in err
    assert [pid for pid in pids if not gone(pid)] == []


def _is_full(pipe: int) -> bool:
    return not select.select([], [pipe], [], 0)[1]


def test_ctrl_c_before_the_ranks_start_shows_no_traceback(tmp_path):
    script = write(tmp_path / "job.py", "print('started')")
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [*HP, "-n", "2", script]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert job.stderr is not None
    job.stderr.readline()  # how many threads, said when it begins to import torch
    time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""


def test_a_signal_is_raised_once_and_again_where_it_is_asked_for():
    signals = StopSignals()
    signals.raise_if_any()
    assert not signals.is_ending()
    with pytest.raises(EndedBySignal) as raised:
        signals.handle(15, None)
    assert raised.value.number == 15
    signals.handle(2, None)  # the second changes nothing
    assert signals.is_ending()
    with pytest.raises(EndedBySignal) as raised:
        signals.raise_if_any()
    assert raised.value.number == 15


@pytest.mark.parametrize(("numbers", "arrived"), [([2], "the end"), ([15, 2], "the first"), ([], "the end")])
def test_a_signal_that_is_held_is_raised_at_the_end_and_a_second_one_at_once(numbers, arrived):
    signals = StopSignals()
    at = "the start"

    def hold() -> None:
        nonlocal at
        with signals.held():
            for number in numbers:
                signals.handle(number, None)
                at = "the first"
            at = "the end"

    with pytest.raises(EndedBySignal) if numbers else contextlib.nullcontext() as raised:
        hold()
    assert at == arrived
    if raised:
        assert raised.value.number == numbers[0]


def test_a_hangup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as signals:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == signals.handle
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stop_signals() as signals:
            assert signal.getsignal(signal.SIGHUP) == signals.handle
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)
