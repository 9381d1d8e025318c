# SPDX-License-Identifier: Apache-2.0
"""The small types of the communication interface: reduce operations, calls, work and point-to-point operations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from hp_core.comm.timeouts import seconds
from hp_core.errors import CommError, did_you_mean

if TYPE_CHECKING:
    from hp_core.comm.backend import Handle
    from hp_core.comm.group import Group

#: A tensor of whatever framework is in use. The interface never looks inside.
Tensor = Any


class ReduceOp(str, Enum):
    """How values of several ranks become one.

    ``bool`` tensors: ``sum``, ``max`` and ``bor`` are the logical or, ``product``, ``min`` and ``band`` the logical
    and, ``bxor`` the parity. ``avg`` needs a floating-point tensor; ``band``, ``bor``, ``bxor`` an integer or bool one.
    """

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"

    def __str__(self) -> str:
        return self.value


#: What dtypes each kind of operation takes.
INTEGER_DTYPES = frozenset({"uint8", "int8", "int16", "int32", "int64"})
FLOAT_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64"})
REDUCIBLE_DTYPES = INTEGER_DTYPES | FLOAT_DTYPES | {"bool"}
_BITWISE = frozenset({"band", "bor", "bxor"})

_dtype_names: dict[Any, str] = {}


def dtype_name(dtype: Any) -> str:
    """Return the framework-free name of ``dtype``: ``torch.float32`` and ``mindspore.float32`` are ``"float32"``."""
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = repr(dtype).rsplit(".", 1)[-1].lower()
    return name


_reductions: dict[tuple[Any, str], str] = {}


def reduction(dtype: Any, op: str) -> str:
    """Return the plain name of reduce operation ``op``, after checking that it is defined for ``dtype``.

    Raises:
        CommError: the operation is unknown, or not defined for this dtype.
    """
    name = _reductions.get((dtype, op)) if isinstance(op, str) else None
    if name is None:
        name = _reductions[dtype, op] = _check_reduction(dtype, op)
    return name


def _check_reduction(dtype: Any, op: str) -> str:
    try:
        name = ReduceOp(op).value
    except (ValueError, TypeError):
        options = [item.value for item in ReduceOp]
        hint = did_you_mean(str(op), options) or f"; use one of {', '.join(options)}"
        raise CommError(f"unknown reduce operation {op!r}{hint}") from None
    kind = dtype_name(dtype)
    if kind not in REDUCIBLE_DTYPES:
        raise CommError(f"{name} is not defined for {kind} tensors; use one of {', '.join(sorted(REDUCIBLE_DTYPES))}")
    if name == "avg" and kind not in FLOAT_DTYPES:
        raise CommError(f"avg is not defined for {kind} tensors; use sum, or convert to a floating-point dtype first")
    if name in _BITWISE and kind in FLOAT_DTYPES:
        raise CommError(f"{name} is not defined for {kind} tensors; it needs an integer or bool dtype")
    return name


@dataclass(frozen=True)
class P2P:
    """One send or receive of a batch.

    Attributes:
        kind: ``"send"`` or ``"recv"``.
        tensor: What is sent, or what is overwritten in place; any shape and dtype, the same on both sides.
        peer: The other side's rank within the group.
        tag: Tells apart messages between the same two ranks, ``0 <= tag < 2**30``; equal tags match in order.
    """

    kind: Literal["send", "recv"]
    tensor: Tensor
    peer: int
    tag: int = 0


class Call:
    """One call of a collective, as the errors and the watchdog name it."""

    __slots__ = ("detail", "dtype", "group", "kind", "nbytes", "seq", "shape", "sizes", "started", "timeout_s")

    def __init__(
        self, kind: str, group: Group, seq: int, tensor: Tensor, timeout_s: float, detail: str = "", sizes: Any = None
    ) -> None:
        self.kind = kind
        self.group = group
        self.seq = seq
        self.timeout_s = timeout_s
        #: What else all members must agree on (the reduce operation or the source); of a batch, its messages.
        self.detail = detail
        self.sizes = sizes
        self.started = time.monotonic()
        if tensor is None:
            self.shape: Any = None
            self.dtype: Any = None
            self.nbytes = 0
        else:
            self.shape = tensor.shape
            self.dtype = tensor.dtype
            self.nbytes = tensor.nbytes

    def __str__(self) -> str:
        """Return e.g. ``all_reduce #812 on group dp (shape (4, 3), float32, 48 bytes)``."""
        about = []
        if self.shape is not None:
            about = [f"shape {tuple(self.shape)}", dtype_name(self.dtype), f"{self.nbytes} bytes"]
        if self.detail:
            about.append(self.detail)
        return self.title() + (f" ({', '.join(about)})" if about else "")

    def title(self) -> str:
        """Return e.g. ``all_reduce #812 on group dp``."""
        return f"{self.kind} #{self.seq} on group {self.group.name}"


class Work:
    """A collective under way. ``wait()`` completes it on this rank and returns its result.

    Whatever the collective reads or writes is kept alive until then; what is left to do (casting back, copying into a
    strided tensor) happens in ``wait()``.

    On an accelerator ``wait()`` orders the current stream behind the collective and does not block the host: "complete"
    then means that whatever the program puts on that stream afterwards sees the result. Time limits are there the
    library's (NCCL, HCCL), which ends the process when the device does not complete the collective in time.
    """

    __slots__ = ("_call", "_done", "_handle", "_result")

    def __init__(self, call: Call, handle: Handle) -> None:
        self._call = call
        self._handle: Handle | None = handle
        self._result: Any = None
        self._done = False

    def wait(self, timeout_s: float | None = None) -> Any:
        """Complete the collective and return its result; later calls return the same again.

        Args:
            timeout_s: Seconds from now; by default what is left of the timeout that the collective was called with.
                A wait that expires is a failure of the job like any other: communication is taken down on every
                rank, and another ``wait()`` cannot succeed (``is_done()`` asks without that). On an accelerator it
                has no effect.

        Raises:
            CommError: ``timeout_s`` is not a positive number of seconds; the collective goes on.
            CommTimeoutError: it did not complete in time; the message says what each other rank is doing.
            CommError: it failed, or another rank reported a failure.
        """
        if not self._done:
            handle, call = self._handle, self._call
            if handle is None:
                raise CommError(f"{call} failed at an earlier wait()")
            session = call.group.session
            now = time.monotonic()
            limit_s = call.started + call.timeout_s - now if timeout_s is None else seconds(timeout_s)
            session.waiting = call
            session.in_flight.waited(call)
            try:
                if not handle.wait(limit_s if limit_s > _LEAST_S else _LEAST_S):
                    raise TimeoutError
                self._result = handle.finish()
            except Exception as exc:
                self._handle = None
                session.fail(call, exc, timeout_s)
            finally:
                session.waiting = None
            self._done = True
            self._handle = None
            call.group.completed(call)
        return self._result

    def is_done(self) -> bool:
        """Return whether ``wait()`` would return at once. Never blocks."""
        return self._done or (self._handle is not None and self._handle.is_done())

    def __repr__(self) -> str:
        return f"Work({self._call}, {'done' if self.is_done() else 'under way'})"


_LEAST_S = 0.001
