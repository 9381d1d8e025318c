# SPDX-License-Identifier: Apache-2.0
"""Handles of what is under way in torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any


class Collective:
    """One collective; ``keep`` is whatever must stay alive until it is complete."""

    __slots__ = ("_finish", "_keep", "_result", "_work")

    def __init__(self, work: Any, result: Any, finish: Callable[[], Any] | None = None, keep: Any = None) -> None:
        self._work = work
        self._result = result
        self._finish = finish
        self._keep = keep

    def then(self, finish: Callable[[], Any]) -> Collective:
        """Set what is left to do after completion; its value becomes the result."""
        self._finish = finish
        self._result = None
        return self

    def wait(self, timeout_s: float) -> bool:
        """Block up to ``timeout_s``; False when the collective is still under way.

        Raises:
            RuntimeError: torch.distributed's, when it failed.
        """
        try:
            self._work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            # wait() raises the same for "not yet" and for a failure; only a failure is "completed".
            if not self._work.is_completed():
                return False
            if not self._work.is_success():
                raise
        return True

    def is_done(self) -> bool:
        """Return whether it is complete or has failed."""
        return bool(self._work.is_completed())

    def finish(self) -> Any:
        """Do the rest, return the result and let go of the buffers."""
        result = self._result
        if self._finish is not None:
            value = self._finish()
            result = value if result is None else result
        self._keep = self._finish = None
        return result


class Batch:
    """Several point-to-point operations. gloo gives them one uninterruptible wait each."""

    __slots__ = ("_finish", "_keep", "_works")

    def __init__(self, works: Sequence[Any], finish: Sequence[Callable[[], Any]], keep: Sequence[Any]) -> None:
        self._works = list(works)
        self._finish = finish
        self._keep = keep

    def wait(self, timeout_s: float) -> bool:
        """Wait for all."""
        end = time.monotonic() + timeout_s
        while self._works:
            self._works[-1].wait(timedelta(seconds=max(end - time.monotonic(), 0.001)))
            self._works.pop()
        return True

    def is_done(self) -> bool:
        """Return whether nothing is left to wait for."""
        return all(work.is_completed() for work in self._works)

    def finish(self) -> None:
        """Copy what arrived to where it belongs."""
        for copy in self._finish:
            copy()
        self._keep = ()
