# SPDX-License-Identifier: Apache-2.0
"""Folders that are made once, by one process, and then only read: converted models and tokenised text."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hp_core.errors import HPError

#: The error numbers of a disk without room: it is full, a quota is, or the largest file size is reached.
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_POLL_S = 0.1


class CacheError(HPError, RuntimeError):
    """A cached folder could not be made, or did not appear in time."""


def cache_root(configured: str | None = None) -> Path:
    """Return the cache folder: ``data.cache_dir``, else ``$HP_CACHE``, else ``~/.cache/hyper_parallel``."""
    chosen = configured or os.environ.get("HP_CACHE")
    return Path(os.path.expanduser(chosen or "~/.cache/hyper_parallel"))


def build_once(folder: Path, build: Callable[[Path], None], *, what: str, leader: bool, timeout_s: float) -> Path:
    """Return ``folder``, made by ``build`` if it does not exist yet.

    The leader (one rank a host) builds into a temporary folder next to it and renames that, so that nobody ever reads
    half a folder; a file lock, which dies with its process, keeps two independent jobs from building the same thing
    twice. The other ranks wait for the folder. No collective is used: this also works before the ranks are connected.

    Args:
        folder: Where the result is to be.
        build: Called with an empty temporary folder to fill.
        what: What is being made, for messages ("the converted model smollm2-135m").
        leader: Whether this process may build.
        timeout_s: Longest wait, for the lock or for the folder.

    Raises:
        CacheError: The wait took too long, or the disk is full or not writable. What ``build`` raises passes through.
    """
    if folder.is_dir():
        return folder
    if not leader:
        _wait_for(folder, what, timeout_s)
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(folder.with_name(f".{folder.name}.lock"), what, timeout_s):
            if not folder.is_dir():
                print(f"making {what}, once: {folder}", file=sys.stderr, flush=True)
                _build(folder, build)
    except OSError as error:
        raise _disk_error(error, folder, what) from error
    return folder


def _build(folder: Path, build: Callable[[Path], None]) -> None:
    temporary = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        build(temporary)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _wait_for(folder: Path, what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not folder.is_dir():
        if time.monotonic() > deadline:
            rank = os.environ.get("RANK", "0")
            raise CacheError(
                f"rank {rank} waited {timeout_s:g} s for {what} ({folder}), which local rank 0 makes; see its output, "
                "or raise launch.timeout_s"
            )
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _lock(path: Path, what: str, timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CacheError(
                        f"waited {timeout_s:g} s for another process that makes {what} and holds {path}; "
                        "end that process or raise launch.timeout_s"
                    ) from None
                time.sleep(_POLL_S)
        yield


def _disk_error(error: OSError, folder: Path, what: str) -> CacheError:
    fix = "free some space or set data.cache_dir" if error.errno in DISK_FULL else "set data.cache_dir"
    return CacheError(f"cannot write {what} to {folder}: {error.strerror or error}; {fix}")
