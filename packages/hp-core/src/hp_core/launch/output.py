# SPDX-License-Identifier: Apache-2.0
"""What the ranks print, line by line as it comes, each line with its rank in front."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
from typing import BinaryIO

_LONGEST_LINE_BYTES = 1 << 20


class OutputPump:
    """Copies pipes to our standard output and standard error in a thread of its own.

    A line is written whole or not at all, so lines of ranks never mix; the end of a stream counts as the end of its
    last line.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None

    def add(self, source: BinaryIO, destination: BinaryIO, prefix: str) -> None:
        """Copy ``source`` until its end. Call it before `start`."""
        os.set_blocking(source.fileno(), False)
        self._selector.register(source, selectors.EVENT_READ, _Stream(source, destination, prefix.encode()))

    def start(self) -> None:
        """Begin to copy."""
        self._thread = threading.Thread(target=self._run, name="hp-launch-output", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Copy what is there already, and end. The processes must have ended: later output is lost."""
        if self._thread is not None:
            os.write(self._wake_write, b"x")
            self._thread.join()
            self._thread = None
            self._selector.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        finishing = False
        while True:
            events = self._selector.select(0 if finishing else None)
            streams = [key.data for key, _ in events if key.data is not None]
            for stream in streams:
                if not stream.copy():
                    self._selector.unregister(stream.source)
                    stream.close()
            if finishing and not streams:
                break
            finishing = finishing or any(key.data is None for key, _ in events)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.close()


class _Stream:
    def __init__(self, source: BinaryIO, destination: BinaryIO, prefix: bytes) -> None:
        self.source = source
        self._destination = destination
        self._prefix = prefix
        self._partial = b""
        self._said = False

    def copy(self) -> bool:
        """Copy what is there; return False at the end of the stream."""
        try:
            chunk = os.read(self.source.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > _LONGEST_LINE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        self._write(lines)
        return True

    def close(self) -> None:
        """Write the last line, where it has no end of its own."""
        if self._partial:
            self._write([self._partial])
            self._partial = b""
        self.source.close()

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            # A reader that has gone (hp run … | head) or a full disk must not stop the job, nor fill the ranks' pipes.
            try:
                self._destination.write(b"".join(self._prefix + line + b"\n" for line in lines))
                self._destination.flush()
            except (BrokenPipeError, ValueError):
                pass
            except OSError as error:
                if not self._said:
                    self._said = True
                    with contextlib.suppress(OSError, ValueError):
                        print(f"hp run: output is lost, it cannot be written: {error}", file=sys.stderr, flush=True)
