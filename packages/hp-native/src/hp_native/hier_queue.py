# SPDX-License-Identifier: Apache-2.0
"""Collectives of several stages, one after another: by their caller, or by a thread where nobody waits for them yet.

A group has a queue of its own, so that a group whose ranks are late holds up no other. All ranks put the same calls
into it in the same order, and so start the stages of each in the same order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from hp_core.comm.backend import Handle

#: The caller gives up first, so that it is the one that says what is missing.
_GRACE_S = 5.0
_LEAST_S = 0.001
_END_S = 5.0


def settle(handle: Handle, end: float) -> Any:
    """Wait for a stage and return its result.

    Raises:
        TimeoutError: it is not complete at ``end`` (of ``time.monotonic``).
        Exception: whatever it failed with.
    """
    if not handle.wait(max(end - time.monotonic(), _LEAST_S)):
        raise TimeoutError
    return handle.finish()


class Staged:
    """A handle of one collective.

    Args:
        line: The group's queue.
        run: Does all stages, until a time of ``time.monotonic``; on the caller's thread, or on the queue's.
        finish: Makes the result of what ``run`` returned, on the caller's thread.
        timeout_s: How long it may take.
    """

    __slots__ = ("_error", "_finish", "_line", "_over", "_run", "_value", "awaited", "end")

    def __init__(
        self, line: Queue, run: Callable[[float], Any], finish: Callable[[Any], Any], timeout_s: float
    ) -> None:
        self._line = line
        self._run: Callable[[float], Any] | None = run
        self._finish: Callable[[Any], Any] | None = finish
        self._value: Any = None
        self._error: BaseException | None = None
        #: Set at its end; None where it was not left to the queue.
        self._over: threading.Event | None = None
        #: Whether somebody waits, who is told of a failure.
        self.awaited = False
        self.end = time.monotonic() + timeout_s + _GRACE_S

    def work(self, end: float) -> None:
        """Do all stages and keep what came of them."""
        assert self._run is not None
        try:
            self._value = self._run(end)
        except BaseException as exc:
            self._error = exc
        self._run = None

    def wait(self, timeout_s: float) -> bool:
        """Block up to ``timeout_s``; False when it is still under way.

        Raises:
            Exception: what a stage failed with.
        """
        self.awaited = True
        if self._over is None and not self._line.is_idle():
            self.leave()  # after those that were left before
        if self._over is not None:
            if not self._over.wait(timeout_s):
                return False
        elif self._run is not None:
            self.work(time.monotonic() + timeout_s)
        if isinstance(self._error, TimeoutError):
            return False
        if self._error is not None:
            raise self._error
        return True

    def is_done(self) -> bool:
        """Return whether it is complete or has failed."""
        return self._run is None if self._over is None else self._over.is_set()

    def leave(self) -> None:
        """Let the queue's thread do it."""
        if self._over is None and self._run is not None:
            self._over = threading.Event()
            self._line.put(self)

    def over(self) -> None:
        """Tell whoever waits; on the queue's thread."""
        assert self._over is not None
        self._over.set()

    @property
    def failed(self) -> bool:
        """Whether a stage failed, or was late."""
        return self._error is not None

    def finish(self) -> Any:
        """Return the result and let go of the buffers."""
        assert self._finish is not None
        result = self._finish(self._value)
        self._finish = self._value = None
        return result


class Queue:
    """What was left to the thread of one group, in order. The thread starts with the first.

    Args:
        give_up: Called on the thread when something failed that nobody waits for: the other ranks are to fail too.
    """

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._calls: queue.SimpleQueue[Staged | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._num_left = 0

    def is_idle(self) -> bool:
        """Return whether nothing is left to the thread."""
        return self._num_left == 0

    def put(self, staged: Staged) -> None:
        """Add a collective."""
        with self._lock:
            self._num_left += 1
        self._calls.put(staged)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="hp-comm-hier", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            staged = self._calls.get()
            if staged is None:
                return
            staged.work(staged.end)
            with self._lock:
                self._num_left -= 1
            staged.over()
            if staged.failed and not staged.awaited:
                self._give_up()

    def close(self) -> bool:
        """End the thread, after what is under way has failed or is complete; return whether it has ended."""
        if self._thread is None:
            return True
        if not self.is_idle():
            self._give_up()
        self._calls.put(None)
        self._thread.join(_END_S)
        return not self._thread.is_alive()


class Together:
    """A handle of some that run at the same time; its result is None.

    Args:
        handles: Those that need their caller to go on come first.
    """

    __slots__ = ("_handles",)

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._handles = tuple(handles)

    def wait(self, timeout_s: float) -> bool:
        """Wait for all; False when one is still under way.

        Raises:
            Exception: what one failed with.
        """
        end = time.monotonic() + timeout_s
        return all(handle.wait(max(end - time.monotonic(), _LEAST_S)) for handle in self._handles)

    def is_done(self) -> bool:
        """Return whether all are complete or have failed."""
        return all(handle.is_done() for handle in self._handles)

    def leave(self) -> None:
        """Let each go on by itself."""
        for handle in self._handles:
            handle.leave()

    def finish(self) -> None:
        """Do what each has left to do."""
        for handle in self._handles:
            handle.finish()
