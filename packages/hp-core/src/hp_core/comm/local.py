# SPDX-License-Identifier: Apache-2.0
"""A group of one rank: nothing moves, whatever the framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hp_core.comm.types import P2P, Tensor, dtype_name
from hp_core.errors import CommError
from hp_core.platform import get_platform


class Done:
    """A handle of something that is complete already; the result is made by ``finish`` when it is called for."""

    __slots__ = ("_finish", "_result")

    def __init__(self, result: Any = None, finish: Callable[[], Any] | None = None) -> None:
        self._result = result
        self._finish = finish

    def wait(self, timeout_s: float) -> bool:
        """Return True."""
        return True

    def is_done(self) -> bool:
        """Return True."""
        return True

    def leave(self) -> None:
        """Nothing is left to do."""

    def finish(self) -> Any:
        """Return the result."""
        return self._result if self._finish is None else self._finish()


def _copy(tensor: Tensor, out: Tensor | None) -> Done:
    ops = get_platform().tensor
    if out is None:
        out = ops.empty(tuple(tensor.shape) or (1,), dtype_name(tensor.dtype), str(tensor.device).lower())
    ops.copy_(out, tensor)
    return Done(out)


class LocalChannel:
    """The channel of a group of one, on any backend that has nothing better to do."""

    def all_reduce(self, tensor: Tensor, op: str, timeout_s: float) -> Done:
        """Leave ``tensor`` as it is."""
        return Done(tensor)

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float) -> Done:
        """Copy ``tensor``."""
        return _copy(tensor, out)

    def reduce_scatter(
        self, tensor: Tensor, op: str, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float
    ) -> Done:
        """Copy ``tensor``."""
        return _copy(tensor, out)

    def all_to_all(
        self,
        tensor: Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        out: Tensor | None,
        timeout_s: float,
    ) -> Done:
        """Copy ``tensor``."""
        return _copy(tensor, out)

    def broadcast(self, tensor: Tensor, src: int, timeout_s: float) -> Done:
        """Leave ``tensor`` as it is."""
        return Done(tensor)

    def batch_p2p(self, ops: Sequence[P2P], timeout_s: float) -> Done:
        """Copy each send into the receive with the same tag, in order.

        Raises:
            CommError: a send without its receive, or the reverse, which could never complete.
        """
        sends: dict[int, list[Tensor]] = {}
        for op in ops:
            if op.kind == "send":
                sends.setdefault(op.tag, []).append(op.tensor)
        for op in ops:
            if op.kind == "recv":
                if not sends.get(op.tag):
                    raise CommError(f"recv from this rank itself with tag {op.tag} has no send in the same batch")
                get_platform().tensor.copy_(op.tensor, sends[op.tag].pop(0))
        left = [tag for tag, tensors in sends.items() if tensors]
        if left:
            raise CommError(f"send to this rank itself with tag {left[0]} has no recv in the same batch")
        return Done()

    def barrier(self, timeout_s: float) -> Done:
        """Return at once."""
        return Done()

    def all_gather_bytes(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return ``[data]``."""
        return [data]

    def abort(self) -> None:
        """Nothing ever blocks."""

    def close(self) -> None:
        """Nothing is held."""


class LocalStore:
    """The store of a world of one: a dictionary."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        """Set ``key``."""
        self._values[key] = value

    def set_once(self, key: str, value: bytes) -> bytes:
        """Set ``key`` unless it is set; return the value it has then."""
        return self._values.setdefault(key, value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Return the value of ``key``; nobody else could set it, so nothing is waited for."""
        return self._values.get(key)

    def check(self, key: str) -> bool:
        """Return whether ``key`` is set."""
        return key in self._values

    def clone(self) -> LocalStore:
        """Return this store."""
        return self
