# SPDX-License-Identifier: Apache-2.0
"""What the ranks print, line by line as it comes, each line with its rank in front."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import selectors
import sys
import termios
import threading
import time
from typing import BinaryIO

from hp_core.launch.console import descriptor, write_some

_LONGEST_LINE_BYTES = 1 << 20  # a longer one is shown in pieces


class OutputPump:
    """Copies pipes to our standard output and standard error in a thread of its own.

    Lines of ranks never mix; the end of a stream counts as the end of its last line, and so does a carriage return, so
    that progress bars show. While the reader of our output does not read, nothing is read from the ranks either, and
    they wait as they would in a pipe; see [Note: Writing without a lock].

    Attributes:
        lost: why output could not be written, where some was lost.
    """

    def __init__(self) -> None:
        self.lost: str | None = None
        self._selector = selectors.PollSelector()  # not epoll: it takes no files
        self._destinations: dict[int, _Destination] = {}
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._closed = False
        self._finishing = False
        self._deadline: float | None = None

    def add(self, source: BinaryIO, destination: int | None, prefix: str) -> None:
        """Copy ``source`` until its end to a descriptor (``None``: nowhere). Call it before `start`."""
        os.set_blocking(source.fileno(), False)
        key = -1 if destination is None else destination
        shared = self._destinations.setdefault(key, _Destination(destination))
        self._selector.register(source, selectors.EVENT_READ, _Stream(source, shared, prefix.encode()))

    def start(self) -> None:
        """Begin to copy."""
        self._thread = threading.Thread(target=self._run, name="hp-launch-output", daemon=True)
        self._thread.start()

    def finish(self, within_s: float | None = None) -> None:
        """Copy what is there already, and end. What is printed later (the ranks should have ended) is lost.

        Args:
            within_s: seconds to wait for the reader of our output; ``None``: as long as it takes. After an exception
                (a signal) in that wait, call it again.
        """
        if self._closed:
            return
        if self._thread is not None:
            self._deadline = None if within_s is None else time.monotonic() + within_s
            self._finishing = True
            os.write(self._wake_write, b"x")
            # Not join: broken off by a signal, it takes the thread for ended (Python before 3.13).
            if not self._ended.wait(None if within_s is None else within_s + 0.5):
                # A terminal blocks in spite of poll: the thread is left where it is.
                self.lost = self.lost or _NOT_READ
                self._closed = True
                return
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Stream):
                key.data.source.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._closed = True

    def _run(self) -> None:
        try:
            self._copy_all()
        finally:
            self._ended.set()

    def _copy_all(self) -> None:
        budgets_known = False
        while not (self._finishing and budgets_known and self._is_done()):
            wait_s = None if self._deadline is None else self._deadline - time.monotonic()
            if wait_s is not None and wait_s <= 0:
                break
            for key, _ in self._selector.select(wait_s):
                if key.data is None:
                    os.read(self._wake_read, 1)
                elif isinstance(key.data, _Destination):
                    self._write(key.data)
                else:
                    self._copy(key.data)
            if self._finishing and not budgets_known:
                budgets_known = True
                for stream in self._streams():
                    stream.limit_to_what_is_there()
                    if stream.is_done():
                        self._end(stream)
        if not self._is_done():
            self.lost = self.lost or _NOT_READ
        for stream in self._streams():
            stream.source.close()

    def _streams(self) -> list[_Stream]:
        selected = [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Stream)]
        return selected + [stream for each in self._destinations.values() for stream in each.paused]

    def _is_done(self) -> bool:
        return not self._streams() and not any(destination.pending for destination in self._destinations.values())

    def _copy(self, stream: _Stream) -> None:
        if stream.destination.pending:
            self._selector.unregister(stream.source)
            stream.destination.paused.append(stream)
            return
        stream.read()
        if stream.is_done():
            self._end(stream)
        else:
            self._write(stream.destination)

    def _end(self, stream: _Stream) -> None:
        if stream in stream.destination.paused:
            stream.destination.paused.remove(stream)
        else:
            self._selector.unregister(stream.source)
        stream.close()
        self._write(stream.destination)

    def _write(self, destination: _Destination) -> None:
        error = destination.write()
        if error is not None:
            self._say_lost(destination, error)
        waiting = destination.fd is not None and destination.fd in self._selector.get_map()
        if destination.pending and not waiting:
            assert destination.fd is not None
            self._selector.register(destination.fd, selectors.EVENT_WRITE, destination)
        elif waiting and not destination.pending:
            self._selector.unregister(destination.fd)  # type: ignore[arg-type]
            paused, destination.paused = destination.paused, []
            for stream in paused:
                self._selector.register(stream.source, selectors.EVENT_READ, stream)

    def _say_lost(self, destination: _Destination, error: OSError) -> None:
        # A reader that has gone (hp run … | head) or a full disk must not stop the job, nor fill the ranks' pipes.
        if destination.said:
            return
        destination.said = True
        if error.errno == errno.EPIPE:  # it has seen what it wanted: said, and no failure
            text = "the reader of the output has gone, the job goes on without it"
        else:
            self.lost = self.lost or str(error)
            text = f"output is lost, it cannot be written: {error}"
        errors = self._destinations.get(descriptor(sys.stderr, 2) or -1)
        if errors is not None and errors is not destination:
            errors.pending += f"hp run: {text}\n".encode()
            self._write(errors)


class _Destination:
    def __init__(self, fd: int | None) -> None:
        self.fd = fd
        self.pending = bytearray()
        self.paused: list[_Stream] = []
        self.said = False

    def write(self) -> OSError | None:
        """Write what can be written now; what fails for good is dropped, and the error returned."""
        if self.fd is None:
            self.pending.clear()
        try:
            while self.pending:
                written = write_some(self.fd, self.pending)  # type: ignore[arg-type]
                if not written:
                    break
                del self.pending[:written]
        except OSError as error:
            self.pending.clear()
            return error
        return None


class _Stream:
    def __init__(self, source: BinaryIO, destination: _Destination, prefix: bytes) -> None:
        self.source = source
        self.destination = destination
        self._prefix = prefix
        self._partial = b""
        self._left_bytes: int | None = None  # None: until its end
        self._at_end = False

    def is_done(self) -> bool:
        return self._at_end or self._left_bytes == 0

    def limit_to_what_is_there(self) -> None:
        """Read no further than to what the pipe holds now: a process that survived may print for ever."""
        there = array.array("i", [0])
        fcntl.ioctl(self.source.fileno(), termios.FIONREAD, there)
        self._left_bytes = there[0]

    def read(self) -> None:
        """Take what is there over to the destination's pending bytes."""
        most = 1 << 16
        try:
            chunk = os.read(self.source.fileno(), most if self._left_bytes is None else min(most, self._left_bytes))
        except BlockingIOError:
            return
        self._at_end = not chunk
        if self._left_bytes is not None:
            self._left_bytes -= len(chunk)
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if b"\r" in chunk or b"\r" in self._partial:
            lines = [part for line in lines for part in _parts(line)]
            # The last byte may be half of the end of a line.
            *parts, last = self._partial[:-1].split(b"\r")
            lines += filter(None, parts)
            self._partial = last + self._partial[-1:]
        if len(self._partial) > _LONGEST_LINE_BYTES:
            lines, self._partial = [*lines, self._partial], b""
        self._hand_over(lines)

    def close(self) -> None:
        """Hand over the last line, where it has no end of its own."""
        if self._partial:
            self._hand_over(_parts(self._partial))
            self._partial = b""
        self.source.close()

    def _hand_over(self, lines: list[bytes]) -> None:
        self.destination.pending += b"".join(self._prefix + line + b"\n" for line in lines)


def _parts(line: bytes) -> list[bytes]:
    """Return what a line shows one after the other; carriage returns at its end stay."""
    text = line.rstrip(b"\r")
    if not text:
        return [line]
    *parts, last = text.split(b"\r")
    return [*filter(None, parts), last + line[len(text) :]]


_NOT_READ = "nobody reads it"
