# SPDX-License-Identifier: Apache-2.0
"""A group of ranks that communicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hp_core.comm.tensors import requires_grad
from hp_core.comm.timeouts import seconds
from hp_core.comm.types import P2P, Call, Tensor

if TYPE_CHECKING:
    from hp_core.comm.backend import Channel
    from hp_core.comm.session import Session


class Group:
    """Some ranks of the world, in an order; made by `hp_core.comm.new_group`.

    Attributes:
        ranks: World ranks in group order.
        rank: This process's index in ``ranks``.
        size: Number of ranks.
        name: What errors call it.
        backend: Name of the comm backend that serves it.
    """

    __slots__ = (
        "__weakref__",
        "backend",
        "channel",
        "last_call",
        "last_done",
        "name",
        "p2p_seq",
        "rank",
        "ranks",
        "seq",
        "session",
        "size",
    )

    def __init__(
        self, ranks: tuple[int, ...], rank: int, name: str, backend: str, channel: Channel, session: Session
    ) -> None:
        self.ranks = ranks
        self.rank = rank
        self.size = len(ranks)
        self.name = name
        self.backend = backend
        self.channel = channel
        self.session = session
        #: Number of collectives started; every member counts alike.
        self.seq = 0
        #: Number of point-to-point batches started; only the ranks concerned call them, so these are counted apart.
        self.p2p_seq = 0
        self.last_call: Call | None = None
        self.last_done: Call | None = None

    def begin(self, kind: str, tensor: Tensor, timeout_s: float | None, detail: str = "", sizes: object = None) -> Call:
        """Record and return the next call. Every member must make the same calls in the same order."""
        session = self.session
        if session.down is not None:
            session.raise_down(self)
        if tensor is not None and requires_grad(tensor):
            session.refuse_grad(kind, self)
        limit_s = session.timeout_s if timeout_s is None else seconds(timeout_s)
        if session.in_flight.handles and tensor is not None:
            session.in_flight.check_free(kind, tensor)
        self.seq = seq = self.seq + 1
        call = Call(kind, self, seq, tensor, limit_s, detail, sizes)
        self.last_call = call
        if session.watched:
            session.before(call)
        return call

    def begin_p2p(self, ops: Sequence[P2P], timeout_s: float | None) -> Call:
        """Record and return the next batch of point-to-point operations."""
        session = self.session
        if session.down is not None:
            session.raise_down(self)
        for op in ops:
            if requires_grad(op.tensor):
                session.refuse_grad(op.kind, self)
        limit_s = session.timeout_s if timeout_s is None else seconds(timeout_s)
        self.p2p_seq += 1
        detail = ", ".join(f"{op.kind} peer {op.peer} tag {op.tag} {op.tensor.nbytes} bytes" for op in ops[:4])
        if len(ops) > 4:
            detail += f", and {len(ops) - 4} more"
        call = Call("batch_p2p", self, self.p2p_seq, None, limit_s, detail)
        call.nbytes = sum(op.tensor.nbytes for op in ops if op.kind == "send")
        self.last_call = call
        if session.watched:
            session.before(call)
        return call

    def refused(self, call: Call) -> None:
        """Take back the number of a call that the backend did not start: the other members have not counted it."""
        if call.kind == "batch_p2p":
            self.p2p_seq -= 1
        else:
            self.seq -= 1

    def completed(self, call: Call) -> None:
        """Record that ``call`` is complete on this rank."""
        done = self.last_done
        if done is None or call.seq > done.seq:
            self.last_done = call
        if self.session.watched:
            self.session.after(call)

    def __repr__(self) -> str:
        return f"Group({self.name}, ranks={list(self.ranks)}, rank={self.rank}, backend={self.backend!r})"
