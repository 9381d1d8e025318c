# SPDX-License-Identifier: Apache-2.0
"""Keep what plugins print out of what a command prints for programs to read."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def only_result_on_stdout() -> Iterator[Callable[[str], None]]:
    """Send to stderr whatever is written to stdout inside the block, by Python or by the descriptor, but the result.

    The same holds for what is printed by the ``atexit`` handlers registered in the block. Use it around all that may
    run a plugin's code in a command that prints JSON.

    Yields:
        The function that writes the result, and a line end, to the stdout of before.
    """
    stdout: TextIO | None = sys.stdout  # None when hp was started with it closed
    with contextlib.ExitStack() as stack:
        result = stdout
        if stdout is not None:
            stdout.flush()
        saved = _duplicate(1)
        if saved is not None:
            stack.callback(os.close, saved)
            if stdout is not None and _is_descriptor_1(stdout):
                result = stack.enter_context(
                    open(saved, "w", encoding=stdout.encoding, errors=stdout.errors, closefd=False)
                )
            _point_stdout_to_stderr()
            stack.callback(_restore, stdout, saved)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))

        def write(text: str) -> None:
            if result is not None:
                result.write(f"{text}\n")
                result.flush()

        yield write
    if saved is not None and _is_descriptor_1(stdout):
        # Handlers run last in, first out: before those of the plugins.
        atexit.register(_point_everything_to_stderr)


def _duplicate(descriptor: int) -> int | None:
    try:
        # Not as descriptor 2, which is free when hp was started with stderr closed.
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None


def _is_descriptor_1(stream: TextIO | None) -> bool:
    # Under a capturing test or in a notebook it is another object, which redirecting the descriptor does not reach.
    try:
        return stream is not None and stream.fileno() == 1
    except (OSError, ValueError):
        return False


def _point_stdout_to_stderr() -> None:
    try:
        os.dup2(2, 1)
    except OSError:  # hp was started with stderr closed
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def _restore(stdout: TextIO | None, saved: int) -> None:
    if stdout is not None and _is_descriptor_1(stdout):
        stdout.flush()  # what was printed through another name of it, such as sys.__stdout__
    os.dup2(saved, 1)


def _point_everything_to_stderr() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    _point_stdout_to_stderr()
