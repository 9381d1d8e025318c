# SPDX-License-Identifier: Apache-2.0
"""Whose is a run folder now? A file lock next to it, which dies with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from hp_core.errors import ConfigError

#: What file systems without locks answer.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


@dataclass(frozen=True)
class Holder:
    """What the lock file says of the process that wrote it: ``pid`` and ``host``; 0 and "" where it says nothing."""

    pid: int = 0
    host: str = ""

    def __str__(self) -> str:
        where = f" on {self.host}" if self.host and self.host != socket.gethostname() else ""
        return f"pid {self.pid}{where}" if self.pid else "another process"


class RunLock:
    """The lock of one run folder, held by rank 0 from the start of a run to its end.

    The file is ``.NAME.lock`` beside the folder, as the folder itself may be renamed. Whoever lets go of it removes it:
    one that is there and that nobody holds was left by a process that was killed.
    """

    def __init__(self, folder: Path) -> None:
        folder = folder.absolute()
        self.folder = folder
        self.path = folder.with_name(f".{folder.name}.lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; a file system that has no locks gets a warning.

        Raises:
            ConfigError: Another process has it; it is named.
            OSError: The file cannot be made.
        """
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if not self._take(descriptor):
                    return
                if self._is_file(descriptor):
                    self._descriptor = descriptor
                    break
            finally:
                if self._descriptor is None:
                    os.close(descriptor)
        with contextlib.suppress(OSError):  # the disk is full: the lock holds without a name in it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Remove the file and let go; without the lock nothing happens."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def check_free(self) -> None:
        """Raise where another process has the lock, without taking it.

        Raises:
            ConfigError: As `acquire`.
        """
        if self.is_held():
            raise self._in_use()

    def is_held(self) -> bool:
        """Return True while a process, this one included, has the lock."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno not in _NO_LOCKS
        finally:
            os.close(descriptor)
        return False

    def dead_holder(self) -> Holder | None:
        """Return who left the lock behind when it was killed on this host; None where that is not known for sure."""
        if not self.path.is_file() or self.is_held():
            return None
        holder = self.holder()
        return holder if holder.pid and holder.host == socket.gethostname() else None

    def holder(self) -> Holder:
        """Return what the lock file says."""
        try:
            pid, host = self.path.read_text(encoding="utf-8").split()
            return Holder(int(pid), host)
        except (OSError, ValueError):
            return Holder()

    def _take(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use() from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            print(
                f"warning: {self.path.parent} is on a file system without locks: nothing keeps a second run out of "
                f"{self.folder}",
                file=sys.stderr,
                flush=True,
            )
            return False
        return True

    def _is_file(self, descriptor: int) -> bool:
        # Its last holder may have removed it after we had opened it: then the lock is one of nothing.
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _in_use(self) -> ConfigError:
        return ConfigError(f"run folder {self.folder} is in use by {self.holder()}: choose another --run.name")
