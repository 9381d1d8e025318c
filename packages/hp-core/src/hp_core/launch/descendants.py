# SPDX-License-Identifier: Apache-2.0
"""Processes that ranks leave behind, also those that made themselves a session of their own.

[Note: Whose process it is]
A process of the job is known by a variable in its environment, as long as it keeps its environment. One that does not
is below a rank, or, when its parent has ended, a child of ours, since we adopt orphans. A child of ours that we did not
start is the job's unless it was here before, or is in our session (ranks have sessions of their own, and no process can
go back to another's), or was started by Python code of this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import time
from collections.abc import Collection, Iterator

import psutil

MARK = "HP_LAUNCH_ID"  # environment variable by which the processes of a job are known
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Within it, orphaned descendants become children of this process (Linux), so that they can be found."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def marked(environment: dict[str, str], mark: str) -> dict[str, str]:
    """Return the environment with the mark of a job; those of the jobs that this one runs in stay."""
    outer = environment.get(MARK)
    return {**environment, MARK: f"{outer},{mark}" if outer else mark}


class Descendants:
    """What a job has started on this host. Make it before the ranks start."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._before = {child.pid for child in psutil.Process().children()}
        self._known: set[psutil.Process] = set()

    def note(self, ranks: Collection[int]) -> None:
        """Remember what runs below the ranks now: when they have ended, it may be out of sight."""
        self._known |= self._found(ranks)

    def reap(self, ranks: Collection[int]) -> None:
        """Free the numbers of orphans that have ended: nobody else waits for them."""
        for process in self._found(ranks):
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE and process.ppid() == os.getpid():
                    os.waitpid(process.pid, os.WNOHANG)

    def kill(self, ranks: Collection[int], *, timeout_s: float = 2.0) -> None:
        """Kill and reap all that is left, but for the ranks themselves, whose ends are their starter's to wait for."""
        deadline = time.monotonic() + timeout_s
        while True:  # one may start another while we look
            left = {process for process in self._found(ranks) | self._known if process.is_running()}
            if not left:
                return
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()
            self._known &= set(psutil.wait_procs(left, timeout=max(0.0, deadline - time.monotonic()))[1])
            if time.monotonic() > deadline:  # stuck in the kernel, or another user's
                return

    def _found(self, ranks: Collection[int]) -> set[psutil.Process]:
        """Return the job's processes but for the ranks; what is below one of the job's is the job's, too."""
        found: set[psutil.Process] = set()
        parents = {*ranks}
        for process in psutil.Process().children(recursive=True):  # parents come before their children
            if process.pid in parents:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.ppid() in parents or self._is_ours(process):
                    parents.add(process.pid)
                    found.add(process)
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            value = process.environ().get(MARK)
        except (psutil.AccessDenied, psutil.ZombieProcess, OSError):
            value = None
        if value is not None:
            return self._mark in value.split(",")
        return process.ppid() == os.getpid() and process.pid not in self._before and _is_adopted(process.pid)


def _is_adopted(child: int) -> bool:
    try:
        if os.getsid(child) == os.getsid(0):
            return False
    except ProcessLookupError:
        return False
    # Any thread of this process may have started it; there is no list of them but the garbage collector's.
    started = (each for each in gc.get_objects() if issubclass(type(each), subprocess.Popen))
    return child not in {getattr(each, "pid", None) for each in started}
