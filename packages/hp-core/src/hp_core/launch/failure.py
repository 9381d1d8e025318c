# SPDX-License-Identifier: Apache-2.0
"""What is known of a rank that failed, and which of several failures came first.

One rank that dies makes the others fail too: their collectives break ("connection closed by peer"). Those
are consequences, and reporting one of them as the error sends the reader to the wrong rank.
"""

from __future__ import annotations

import re
import signal
import time
import traceback
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hp_core.errors import CommError, HPError

# What gloo, nccl, hccl and the c10d store say when a peer has gone. Matched on RuntimeErrors whose class says nothing.
_PEER_IS_GONE = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|socket timeout|timed out (waiting|after)|"
    r"\bnccl\b|\bhccl\b|TCPStore|process group|watchdog|remote process exited",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Failure:
    """How one rank failed.

    Attributes:
        rank: global rank.
        kind: ``"exception"``, ``"signal"`` or ``"exit"``.
        summary: one line: the exception and its message, the signal's name, or the exit code.
        traceback: the formatted traceback, or ``""`` where there is none.
        time_ns: when, by the monotonic clock of the host (comparable between processes of one host only).
        wall_ns: when, by the wall clock (comparable between hosts as far as their clocks agree).
        secondary: whether it looks like the consequence of another rank's end.
        exit_code: what the process ended with, as a shell would show it (128 + signal number).
        expected: whether it is an error for users, whose message says all: no traceback is shown.
    """

    rank: int
    kind: str
    summary: str
    traceback: str = ""
    time_ns: int = 0
    wall_ns: int = 0
    secondary: bool = False
    exit_code: int = 1
    expected: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object."""
        return asdict(self)


def root_cause(error: BaseException) -> BaseException:
    """Return the exception at the start of the chain that led to ``error`` (``__cause__``, ``__context__``)."""
    seen = {id(error)}
    while True:
        below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if below is None or id(below) in seen:
            return error
        seen.add(id(below))
        error = below


def is_consequence(error: BaseException) -> bool:
    """Return whether ``error`` is what a rank sees when another one has failed.

    The start of the chain decides: a ``ValueError`` whose clean-up then met a broken collective is a first
    error; an exception raised because a collective broke is not.
    """
    root = root_cause(error)
    if isinstance(root, CommError | ConnectionError):
        return True
    names = {base.__name__ for base in type(root).__mro__}
    if names & {"DistError", "DistBackendError", "DistNetworkError", "DistStoreError"}:
        return True
    return type(root) is RuntimeError and bool(_PEER_IS_GONE.search(str(root)))


def from_exception(rank: int, error: BaseException, *, own_files: Collection[str] = ()) -> Failure:
    """Describe an exception caught on this rank, now.

    Args:
        rank: this rank.
        error: the exception.
        own_files: files of ours whose frames are left out of the traceback where it begins with them.
    """
    # Where a collective failed is worth a traceback: the message says which one, not from where it was called.
    expected = error.at_start if isinstance(error, CommError) else isinstance(error, HPError)
    text = str(error) if expected else _without_notes(error)
    return Failure(
        rank=rank,
        kind="exception",
        summary=text.strip().split("\n", 1)[0],
        traceback=_format(error, own_files),
        time_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        secondary=is_consequence(error),
        expected=expected,
    )


def _without_notes(error: BaseException) -> str:
    """Return ``ValueError: message``; notes (`BaseException.add_note`) stand below it, in the traceback."""
    described = traceback.TracebackException(type(error), error, None)
    described.__notes__ = None
    return list(described.format_exception_only())[-1]


def from_exit(rank: int, code: int, error: SystemExit, *, own_files: Collection[str] = ()) -> Failure:
    """Describe a ``sys.exit`` with a code other than 0, now."""
    return Failure(
        rank=rank,
        kind="exit",
        summary=f"sys.exit({error.code!r})",
        traceback=_format(error, own_files),
        time_ns=time.monotonic_ns(),
        wall_ns=time.time_ns(),
        secondary=is_consequence(error),
        exit_code=code,
    )


def _format(error: BaseException, own_files: Collection[str]) -> str:
    stack = error.__traceback__
    while stack is not None and stack.tb_frame.f_code.co_filename in own_files:
        stack = stack.tb_next
    return "".join(traceback.format_exception(type(error), error, stack)).rstrip()


def from_returncode(rank: int, returncode: int) -> Failure:
    """Describe the end of a process that left no exception; negative ``returncode`` is a signal's number."""
    if returncode >= 0:
        kind, summary, exit_code = "exit", f"ended with exit code {returncode}", returncode or 1
    else:
        number = -returncode
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        kind, summary, exit_code = "signal", f"killed by {name} (signal {number})", 128 + number
    return Failure(rank, kind, summary, exit_code=exit_code, time_ns=time.monotonic_ns(), wall_ns=time.time_ns())


def first_failure(failures: Iterable[Failure]) -> Failure:
    """Return the failure to report: the earliest one that is no consequence of another, else the earliest.

    Raises:
        ValueError: ``failures`` is empty.
    """
    return min(failures, key=lambda failure: (failure.secondary, failure.time_ns, failure.rank))
