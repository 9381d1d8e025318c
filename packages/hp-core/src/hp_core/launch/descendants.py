# SPDX-License-Identifier: Apache-2.0
"""Processes that ranks leave behind, also those that made themselves a session of their own."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import psutil

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


def kill_marked(name: str, value: str, *, timeout_s: float = 2.0) -> None:
    """Kill the descendants of this process that have ``name=value`` in their environment, and reap them."""
    for _ in range(3):  # one may start another while we look
        marked = [process for process in psutil.Process().children(recursive=True) if _is_marked(process, name, value)]
        if not marked:
            return
        for process in marked:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(marked, timeout=timeout_s)


def _is_marked(process: psutil.Process, name: str, value: str) -> bool:
    try:
        return bool(process.environ().get(name) == value)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess, OSError):
        return False
