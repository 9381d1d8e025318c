# SPDX-License-Identifier: Apache-2.0
"""Handles of what is under way in torch.distributed.

[Note: Waiting on an accelerator] ``Work.wait()`` of NCCL and HCCL orders the current stream behind the collective and
returns at once; ``Work.wait(timeout)`` would block the host until the device is done. So no time is given there, and
none is kept here: the time limit in the options of the collective is the library's to keep, by its own watchdog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any


class Collective:
    """One collective.

    Args:
        work: torch.distributed's work.
        result: The result, a tensor on the device that the collective runs on; None for one that runs on the host.
        finish: What is left to do after completion; see `then`.
        keep: Whatever must stay alive until it is complete.
    """

    __slots__ = ("_finish", "_keep", "_on_host", "_result", "_work")

    def __init__(self, work: Any, result: Any, finish: Callable[[], Any] | None = None, keep: Any = None) -> None:
        self._work = work
        self._result = result
        self._finish = finish
        self._keep = keep
        self._on_host = result is None or result.is_cpu

    def then(self, finish: Callable[[], Any]) -> Collective:
        """Set what is left to do after completion; its value becomes the result."""
        self._finish = finish
        self._result = None
        return self

    def wait(self, timeout_s: float) -> bool:
        """Block up to ``timeout_s``; False when the collective is still under way.

        On an accelerator it neither blocks nor looks at ``timeout_s``: see [Note: Waiting on an accelerator].

        Raises:
            RuntimeError: torch.distributed's, when it failed.
        """
        if not self._on_host:
            self._work.wait()
            return True
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            # wait() raises the same for "not yet" and for a failure; only a failure is "completed".
            if not self._work.is_completed():
                return False
            self._work.wait()  # raises the failure, if it is one
        return True

    def is_done(self) -> bool:
        """Return whether it is complete or has failed."""
        return bool(self._work.is_completed())

    def leave(self) -> None:
        """torch.distributed goes on by itself."""

    def finish(self) -> Any:
        """Do the rest, return the result and let go of the buffers."""
        result = self._result
        if self._finish is not None:
            value = self._finish()
            result = value if result is None else result
        self._keep = self._finish = None
        return result


class Batch:
    """Several point-to-point operations.

    gloo cannot be asked whether one is complete, and a wait for one that is too short breaks the connection: so
    ``wait`` must be given all the time that there is, is cut short by ``C10dChannel.abort`` alone, and ``is_done``
    needs a thread that waits.

    Args:
        works: gloo's works.
        queued: An accelerator's works; see [Note: Waiting on an accelerator].
        finish: What is left to do afterwards.
        keep: Tensors that must stay alive until then.
        timeout_s: How long gloo's part may take.
    """

    __slots__ = ("_end", "_error", "_finish", "_keep", "_queued", "_thread", "_works")

    def __init__(
        self,
        works: Sequence[Any],
        queued: Sequence[Any],
        finish: Sequence[Callable[[], Any]],
        keep: Sequence[Any],
        timeout_s: float,
    ) -> None:
        self._works = list(works)
        self._queued = queued
        self._finish = finish
        self._keep = keep
        self._end = time.monotonic() + timeout_s
        self._thread: threading.Thread | None = None
        self._error: RuntimeError | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait for all; False (and the group is broken) when they are not complete in time.

        Raises:
            RuntimeError: torch.distributed's, when one failed.
        """
        for work in self._queued:
            work.wait()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._error is not None:
                raise self._error
            return not self._works
        return self._wait(time.monotonic() + timeout_s)

    def _wait(self, end: float) -> bool:
        while self._works:
            try:
                self._works[-1].wait(timedelta(seconds=max(end - time.monotonic(), 0.001)))
            except RuntimeError:
                if time.monotonic() >= end:
                    return False
                raise
            self._works.pop()
        return True

    def is_done(self) -> bool:
        """Return whether nothing is left to wait for, or one has failed."""
        if not all(work.is_completed() for work in self._queued):
            return False
        if self._thread is None and self._works:
            self._thread = threading.Thread(target=self._wait_aside, name="hp-comm-p2p", daemon=True)
            self._thread.start()
        return self._thread is None or not self._thread.is_alive()

    def _wait_aside(self) -> None:
        try:
            self._wait(self._end)
        except RuntimeError as exc:
            self._error = exc

    def leave(self) -> None:
        """torch.distributed goes on by itself."""

    def finish(self) -> None:
        """Copy what arrived to where it belongs."""
        for copy in self._finish:
            copy()
        self._keep = ()
