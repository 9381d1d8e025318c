# SPDX-License-Identifier: Apache-2.0
"""What was started with ``async_op=True`` and not waited for yet.

A library must not be torn down while it works: at the end of the process, or of communication, what is still under
way gets a little time, and is then given up by name.
"""

from __future__ import annotations

import sys
import time

from hp_core.comm.backend import Handle
from hp_core.comm.types import Call, Tensor
from hp_core.errors import CommError

#: How long what is under way may take when communication ends.
DRAIN_S = 5.0
_SHOWN = 4
_MAX_KEPT = 256


class InFlight:
    """The calls of this rank that nobody waited for yet, in the order in which they were started.

    Their handles are kept, and with them the memory that they use, also where the caller has dropped the ``Work``.
    """

    def __init__(self) -> None:
        self.handles: dict[Call, Handle] = {}
        #: Which call overwrites in place the tensor that begins there.
        self._written: dict[int, Call] = {}
        self._addresses: dict[Call, int] = {}
        self._kept = _MAX_KEPT

    def start(self, call: Call, handle: Handle, written: Tensor | None) -> None:
        """Keep the handle of a call that was started, which overwrites ``written`` in place."""
        if len(self.handles) >= self._kept:
            # Somebody never waits: what is complete is let go of.
            for other in [other for other, kept in self.handles.items() if kept.is_done()]:
                self.waited(other)
            self._kept = max(_MAX_KEPT, 2 * len(self.handles))
        self.handles[call] = handle
        if written is not None and not call.group.session.simulated:
            address = self._addresses[call] = written.data_ptr()
            self._written[address] = call

    def waited(self, call: Call) -> None:
        """Let go of a call."""
        if self.handles.pop(call, None) is not None:
            self._written.pop(self._addresses.pop(call, 0), None)

    def check_free(self, kind: str, tensor: Tensor) -> None:
        """Raise where a call that is under way overwrites ``tensor``, or another one that begins where it does.

        Raises:
            CommError: one does.
        """
        other = self._written.get(tensor.data_ptr()) if self._written else None
        if other is not None and tensor.nbytes:
            raise CommError(
                f"{kind} on a tensor that {other.title()}, which was started with async_op=True, still overwrites; "
                "call wait() of its Work first"
            )

    def end(self, event: str) -> bool:
        """Wait a little for all, and name on standard error what nobody waited for; ``event`` says why now.

        Returns:
            Whether nothing is under way any more.
        """
        if not self.handles:
            return True
        # An exception that ends the program is the news, and the other ranks wait for it.
        crashed = getattr(sys, "last_value", None) is not None
        complete, late = self.drain(0.001 if crashed else DRAIN_S)
        if not crashed:
            print(f"{event} {told(complete, late)}", file=sys.stderr, flush=True)
        return not late

    def drain(self, limit_s: float) -> tuple[list[Call], list[Call]]:
        """Wait for all; return those that are complete, and those that are not within ``limit_s`` in all (or failed).

        Their results stay for whoever calls ``wait()`` later; the list is empty afterwards.
        """
        end = time.monotonic() + limit_s
        complete: list[Call] = []
        late: list[Call] = []
        for call, handle in list(self.handles.items()):
            try:
                done = handle.wait(max(end - time.monotonic(), 0.001))
            except Exception:
                # Whatever the backend says: it did not complete, and its name is what is reported.
                done = False
            (complete if done else late).append(call)
        self.handles.clear()
        self._written.clear()
        self._addresses.clear()
        return complete, late


def told(complete: list[Call], late: list[Call]) -> str:
    """Return in words what nobody waited for; a few of many."""
    words = []
    if late:
        words.append(f"while {_listed(late)} was under way, which is given up")
    if complete:
        words.append(f"before wait() was called for {_listed(complete)}, whose results may be missing")
    return " and ".join(words) + "; call wait() of each Work"


def _listed(calls: list[Call]) -> str:
    more = f" and {len(calls) - _SHOWN} more" if len(calls) > _SHOWN else ""
    return ", ".join(call.title() for call in calls[:_SHOWN]) + more
