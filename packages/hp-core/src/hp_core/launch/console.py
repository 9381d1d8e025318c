# SPDX-License-Identifier: Apache-2.0
"""Our own standard output and standard error, written without waiting for ever for their readers.

[Note: Writing without a lock]
A reader that stalls (a pager, a terminal after Ctrl-S) must not make the launcher deaf. Python's buffered streams hold
a lock while they write, and the interpreter wants that lock when it ends. So what we write goes to the descriptor: when
``poll`` says that there is room, at most ``PIPE_BUF`` bytes at a time, which then do not block in a pipe. The
descriptor is not made non-blocking, since it is shared with other processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from typing import Any


def descriptor(stream: Any, default: int | None = None) -> int | None:
    """Return the descriptor of a text stream; ``default`` where it has none (a notebook), ``None`` for no stream."""
    if stream is None:  # closed when Python started
        return None
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return default


def write_some(fd: int, data: bytes | bytearray) -> int:
    """Write the beginning of ``data`` to any descriptor where there is room for it now; return how many bytes.

    Raises:
        OSError: the reader has gone, the disk is full, ….
    """
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    if not poll.poll(0):
        return 0
    try:
        return os.write(fd, bytes(data[: select.PIPE_BUF]))
    except BlockingIOError:  # whoever shares it has made it non-blocking
        return 0


def say(text: str, *, within_s: float | None = None) -> None:
    """Print ``text`` and a newline on standard error.

    Args:
        text: one or more lines.
        within_s: seconds after which it is given up, when nobody reads; ``None``: wait for the reader, where signal
            handlers run, and what they raise comes out of here.
    """
    if within_s is None:
        _say(text)
        return
    # In a terminal poll may promise more room than there is.
    thread = threading.Thread(target=_say, args=(text,), name="hp-launch-say", daemon=True)
    thread.start()
    thread.join(within_s)


def _say(text: str) -> None:
    fd = descriptor(sys.stderr)
    if fd is None:
        print(text, file=sys.stderr, flush=True)
        return
    data = (text + "\n").encode(getattr(sys.stderr, "encoding", None) or "utf-8", "backslashreplace")
    with contextlib.suppress(OSError):  # there is no other place to say it
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                select.select([], [fd], [])
