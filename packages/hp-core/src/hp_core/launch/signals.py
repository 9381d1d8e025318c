# SPDX-License-Identifier: Apache-2.0
"""Signals that end the job: SIGINT, SIGTERM and SIGHUP to the launcher."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class EndedBySignal(BaseException):
    """Raised in the main thread by a signal; no ``except Exception`` on its way may stop it.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopSignals:
    """Whether a signal has come that ends the job.

    Attributes:
        came: the number of the first one.
    """

    def __init__(self) -> None:
        self.came: int | None = None
        self._held = False

    def is_ending(self) -> bool:
        """Whether one has come: from then on nothing may wait without a limit."""
        return self.came is not None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within it the first signal is only remembered, and raised at the end; a second one is raised at once.

        For imports: their callbacks and finalizers print and swallow whatever is raised in them.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False
        self.raise_if_any()

    def raise_if_any(self) -> None:
        """Raise `EndedBySignal` again where the first one may have been swallowed, as by a finalizer."""
        if self.came is not None:
            raise EndedBySignal(self.came)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take a signal, as a Python handler does. Those after one that was raised change nothing.

        They are not set to be ignored: one that is on its way meanwhile would be reported as an error by Python.
        """
        first = self.came is None
        if self.came is None:
            self.came = number
        if first != self._held:  # not held: the first, as ending the ranks is not to be interrupted; held: the next
            raise EndedBySignal(self.came)


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Within it, a signal raises `EndedBySignal` in the main thread; in other threads nothing changes."""
    signals = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # ignored: nohup wants the job to go on
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, signals.handle) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
