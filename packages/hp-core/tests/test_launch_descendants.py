# SPDX-License-Identifier: Apache-2.0
"""Nothing survives a launched job, whatever its ranks started and however the launcher ends. No framework here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

from hp_core.launch.descendants import MARK, adopting_orphans, marked


def test_nothing_survives_not_those_that_ignore_sigterm_nor_children_in_sessions_of_their_own(
    capfd, gone, start_job, finish_job
):
    source = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        plain = subprocess.Popen(["sleep", "600"])
        apart = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], start_new_session=True)
        os.write(1, b"%d %d\\n" % (plain.pid, apart.pid))  # at once: others write meanwhile
        if rank == 1:
            time.sleep(0.5)
            raise ValueError("boom")
        time.sleep(600)
    """
    begin = time.monotonic()
    with adopting_orphans():
        processes = start_job(source)
        failures = finish_job(processes)
    assert list(failures) == [1]
    assert time.monotonic() - begin < 10
    pids = [int(word) for word in capfd.readouterr().out.split() if word.isdigit() and len(word) > 1]
    assert len(pids) >= 6
    assert [pid for pid in [*pids, *processes.pids.values()] if not gone(pid)] == []


def test_nothing_survives_that_cleaned_its_environment_and_made_a_session_of_its_own(
    capfd, gone, start_job, finish_job
):
    source = """
        path = {"PATH": os.environ["PATH"]}
        below = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], env=path, start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(1, b"%d\\n" % os.getpid())
                os.execve("/bin/sleep", ["sleep", "600"], {})
            os._exit(0)
        os.wait()
        os.write(1, b"%d\\n" % below.pid)
        subprocess.Popen(["yes"], env=path, start_new_session=True, stdout=sys.stderr)  # it never stops printing
        if sys.argv[1] == "fail":
            os._exit(3)
    """
    ours = [subprocess.Popen(["sleep", "600"], start_new_session=apart) for apart in (True, False)]
    try:
        for ending, failed in (("fail", [0]), ("end", [])):
            begin = time.monotonic()
            with adopting_orphans():
                meanwhile = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
                ours.append(meanwhile)
                failures = finish_job(start_job(source, num_ranks=1, args=(ending,)))
            assert time.monotonic() - begin < 20
            assert list(failures) == failed
            out = capfd.readouterr().out
            pids = [int(word) for word in out.split() if word.isdigit()]
            assert len(pids) == 3
            assert [pid for pid in pids if not gone(pid)] == []
        assert [process.poll() for process in ours] == [None] * 4  # what others have started is not the job's
    finally:
        for process in ours:
            process.kill()
            process.wait()


def test_orphans_that_have_ended_are_reaped_while_the_job_runs(monkeypatch, start_job):
    monkeypatch.setattr("hp_core.launch.processes._REAP_S", 0.1)
    source = """
        for _ in range(5):
            subprocess.run(["sh", "-c", "sleep 0.01 &"], env={})
        time.sleep(600)
    """
    this = psutil.Process()
    most, deadline = 0, time.monotonic() + 30
    with adopting_orphans():
        processes = start_job(source, num_ranks=1)
        before = {child.pid for child in this.children()}
        while time.monotonic() < deadline:
            adopted = {child.pid for child in this.children()} - before
            most = max(most, len(adopted))
            if most and not adopted:
                break
            processes.poll()
        processes.close()
    assert most
    assert not adopted


def test_a_rank_that_is_stopped_is_ended_by_sigterm_like_the_others(tmp_path, start_job, finish_job):
    source = """
        def leave(number, frame):
            print("told to end")
            os._exit(0)

        signal.signal(signal.SIGTERM, leave)
        if rank == 0:
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(600)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        time.sleep(0.2)
        os._exit(3)
    """
    begin = time.monotonic()
    processes = start_job(source, args=(str(tmp_path / "stopped"),))
    failures = finish_job(processes)
    assert list(failures) == [1]
    assert time.monotonic() - begin < 15
    assert processes._processes[0].returncode == 0  # it ran once more, and was not killed


def test_the_marks_of_jobs_within_jobs_add_up():
    assert marked({}, "a") == {MARK: "a"}
    assert marked({MARK: "a", "X": "1"}, "b") == {MARK: "a,b", "X": "1"}


def test_the_ranks_die_with_a_launcher_that_is_killed(tmp_path, gone):
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        textwrap.dedent("""
            import os, signal, sys, time
            from hp_core.launch.processes import RankProcesses
            from hp_core.launch.spec import LaunchSpec
            environments = {rank: {"RANK": str(rank)} for rank in range(2)}
            processes = RankProcesses(LaunchSpec(sys.argv[1], num_ranks=2), environments, "mark " + sys.argv[1])
            while not all(os.path.exists(f"{sys.argv[1]}.{rank}") for rank in range(2)):
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        """)
    )
    job = tmp_path / "job.py"
    job.write_text(
        textwrap.dedent("""
            import ctypes, os, signal, subprocess
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["sleep", "600"])
            apart = subprocess.Popen(["sleep", "600"], start_new_session=True)
            name = f"{__file__}.{os.environ['RANK']}"
            with open(name + ".new", "w") as file:
                file.write(f"{os.getpid()} {child.pid} {apart.pid}")
            os.rename(name + ".new", name)
            ctypes.PyDLL(None).sleep(600)  # the interpreter is locked
        """)
    )
    done = subprocess.run([sys.executable, launcher, job], timeout=60)
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for rank in range(2) for pid in (tmp_path / f"job.py.{rank}").read_text().split()]
    assert [pid for pid in pids if not gone(pid)] == []


def test_nothing_is_left_in_files_or_descriptors(start_job, finish_job):
    before = {path for folder in ("/tmp", "/dev/shm") for path in Path(folder).iterdir()}
    open_before = len(os.listdir("/proc/self/fd"))
    finish_job(start_job("raise ValueError"))
    finish_job(start_job("pass"))
    assert len(os.listdir("/proc/self/fd")) <= open_before
    left = {path for folder in ("/tmp", "/dev/shm") for path in Path(folder).iterdir()} - before
    assert not [path for path in left if "hp" in path.name or "torchelastic" in path.name]
