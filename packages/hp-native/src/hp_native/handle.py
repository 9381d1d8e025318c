# SPDX-License-Identifier: Apache-2.0
"""A collective that is under way in the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hp_native.abi import native, raise_last, wait_in_slices

_DONE, _GONE = 1, 0


class ShmHandle:
    """One collective.

    Args:
        operation: The library's: 1 where it is complete already.
        result: The result.
        finish: What is left to do after completion; its value becomes the result.
        keep: Whatever must stay alive until it is complete.
    """

    __slots__ = ("_finish", "_keep", "_operation", "_result")

    def __init__(self, operation: int, result: Any, finish: Callable[[], Any] | None, keep: Any) -> None:
        self._operation = operation
        self._result = result
        self._finish = finish
        self._keep = keep

    def wait(self, timeout_s: float) -> bool:
        """Block up to ``timeout_s``; False when it is still under way.

        Raises:
            PeerError: another rank has ended or given up.
            NativeError: it failed.
        """
        operation = self._operation
        if operation == _DONE:
            return True
        if operation == _GONE:
            raise_last()
        done = wait_in_slices(native().hpn_wait, (operation,), timeout_s)
        if done == 0:
            return False
        # In this order: a Ctrl-C in between leaves a few bytes, and not an operation that is let go of twice.
        self._operation = _DONE if done == 1 else _GONE
        native().hpn_drop(operation)
        if done < 0:
            raise_last()
        return True

    def is_done(self) -> bool:
        """Return whether it is complete or has failed."""
        return self._operation in (_DONE, _GONE) or native().hpn_test(self._operation) != 0

    def finish(self) -> Any:
        """Do the rest, return the result and let go of the buffers."""
        result = self._result if self._finish is None else self._finish()
        self._finish = self._keep = self._result = None
        return result

    def leave(self) -> None:
        """Let the library's thread go on with it."""
        if self._operation not in (_DONE, _GONE):
            native().hpn_leave(self._operation)

    def __del__(self) -> None:
        # Interrupted, or never waited for. The buffers go with this object: the library must be done with them before.
        operation, self._operation = self._operation, _GONE
        if operation not in (_DONE, _GONE):
            native().hpn_drop(operation)
