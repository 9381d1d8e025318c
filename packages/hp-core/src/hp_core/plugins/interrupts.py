# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, or a ``KeyboardInterrupt`` that a plugin raised itself? Only the first is the user's wish to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def watch_interrupts() -> Iterator[Callable[[], bool]]:
    """Note each SIGINT inside the block; its handler does what it did before.

    Yields:
        A function that returns True once a SIGINT has come. Outside the main thread it always returns False: there
        Python raises no ``KeyboardInterrupt`` for a signal.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield lambda: False
        return
    handler: Callable[[int, FrameType | None], object] = previous
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # a plugin may have set its own
            signal.signal(signal.SIGINT, previous)
