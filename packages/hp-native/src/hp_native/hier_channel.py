# SPDX-License-Identifier: Apache-2.0
"""One group of the ``hier`` backend: the stages of each collective, in shared memory and between hosts.

What goes where is `hp_native.hier_plan`'s; see its [Note: Lanes]. Collectives go through the group's queue; messages
between two ranks do not, as only their two ends call them.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from hp_core.comm.backend import Channel, Handle
from hp_core.comm.local import Done, LocalChannel
from hp_core.comm.types import P2P, Tensor, dtype_name
from hp_native.hier_plan import Moves, Placement, lane_pieces, part, plan_exchange
from hp_native.hier_queue import Queue, Staged, Together, settle
from hp_native.tensors import StagedTensors

_WIDENED = frozenset({"sum", "avg", "product"})


class HierChannel:
    """The collectives of one group.

    Args:
        placement: Where its ranks are.
        within: The channel of the ranks of this host.
        lane: That of this rank's lane, in the order of hosts; None when it is in none.
        wide: That of all ranks.
        order: The ranks of the group in the order of ``wide``.
        tensors: The framework's.
    """

    def __init__(
        self,
        placement: Placement,
        within: Channel,
        lane: Channel | None,
        wide: Channel,
        order: Sequence[int],
        tensors: StagedTensors,
    ) -> None:
        self._placement = placement
        self._within = within
        self._lane = lane
        self._wide = wide
        self._order = tuple(order)
        self._tensors = tensors
        self._rank = placement.here[placement.local]
        self._size = placement.size
        self._queue = Queue(self.abort)
        #: Whether a thread is still inside of it although it was closed.
        self.stuck = False

    def _staged(
        self, run: Callable[[float], Any], timeout_s: float, finish: Callable[[Any], Any] = lambda value: value
    ) -> Staged:
        mode = self._tensors.mode()

        def run_alike(end: float) -> Any:
            with mode():
                return run(end)

        return Staged(self._queue, run_alike, finish, timeout_s)

    def _wide_enough(self, flat: Tensor, op: str) -> Tensor:
        """Return ``flat`` as it is reduced: what several hosts round to 16 bits one after another would lose."""
        narrow = dtype_name(flat.dtype) in ("float16", "bfloat16") and op in _WIDENED
        return self._tensors.float32(flat) if narrow else flat

    def all_reduce(self, tensor: Tensor, op: str, timeout_s: float) -> Staged:
        """Reduce-scatter in the host, all-reduce of each piece between hosts, all-gather in the host."""
        flat = self._tensors.flat(tensor)
        total = self._wide_enough(flat, op)
        pieces = lane_pieces(self._placement, int(flat.shape[0]))
        partial_op = "sum" if op == "avg" else op

        def run(end: float) -> None:
            piece = settle(self._within.reduce_scatter(total, partial_op, pieces, None, timeout_s), end)
            if self._lane is not None:
                piece = settle(self._lane.all_reduce(piece, partial_op, timeout_s), end)
            settle(self._within.all_gather(piece, pieces, total, timeout_s), end)

        def finish(_: None) -> Tensor:
            self._put_back(tensor, flat, self._average(total, op))
            return tensor

        return self._staged(run, timeout_s, finish)

    def _average(self, total: Tensor, op: str) -> Tensor:
        return total.div_(self._size) if op == "avg" else total

    def _put_back(self, tensor: Tensor, flat: Tensor, values: Tensor) -> None:
        """Write ``values`` into ``tensor``, unless they lie there already."""
        if values is not flat or not tensor.is_contiguous():
            self._tensors.assign(tensor, values.reshape(tensor.shape))

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float) -> Staged:
        """Each lane takes a slice of what its host has, exchanges it with its like, and all gather that in the host."""
        shape = tuple(tensor.shape) or (1,)
        sizes = [shape[0]] * self._size if sizes is None else sizes
        unit = prod(shape[1:]) * int(tensor.itemsize)
        plan = plan_exchange(self._placement, tuple(size * unit for size in sizes))
        mine = self._tensors.octets(self._tensors.flat(tensor))
        result = self._tensors.empty(tensor, (sum(sizes), *shape[1:])) if out is None else out

        def run(end: float) -> Tensor:
            some = settle(self._within.all_to_all(mine, plan.to_lanes, plan.from_members, None, timeout_s), end)
            if self._lane is not None:
                some = settle(self._lane.all_gather(some, _uneven(plan.between), None, timeout_s), end)
            return settle(self._within.all_gather(some, plan.by_lane, None, timeout_s), end)

        def finish(by_lane: Tensor) -> Tensor:
            _copy(by_lane, self._tensors.octets(self._tensors.flat(result)), plan.moves)
            return result

        return self._staged(run, timeout_s, finish)

    def reduce_scatter(
        self, tensor: Tensor, op: str, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float
    ) -> Staged:
        """Reduce-scatter by lanes in the host, then between hosts; in the host each piece goes to its owner."""
        rest = tuple(tensor.shape[1:])
        sizes = [tensor.shape[0] // self._size] * self._size if sizes is None else sizes
        plan = plan_exchange(self._placement, tuple(size * prod(rest) for size in sizes))
        flat = self._wide_enough(self._tensors.flat(tensor), op)
        by_lane = self._tensors.empty(flat, flat.shape)
        _copy(flat, by_lane, tuple((target, source, length) for source, target, length in plan.moves))
        result = self._tensors.empty(tensor, (sizes[self._rank], *rest)) if out is None else out
        partial_op = "sum" if op == "avg" else op

        def run(end: float) -> Tensor:
            some = settle(self._within.reduce_scatter(by_lane, partial_op, plan.by_lane, None, timeout_s), end)
            if self._lane is not None:
                some = settle(self._lane.reduce_scatter(some, partial_op, plan.between, None, timeout_s), end)
            return settle(self._within.all_to_all(some, plan.from_members, plan.to_lanes, None, timeout_s), end)

        def finish(mine: Tensor) -> Tensor:
            self._tensors.assign(result, self._average(mine, op).reshape(result.shape))
            return result

        return self._staged(run, timeout_s, finish)

    def all_to_all(
        self,
        tensor: Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        out: Tensor | None,
        timeout_s: float,
    ) -> Staged:
        """What stays in the host goes through shared memory, and at the same time the rest straight to its rank."""
        rest = tuple(tensor.shape[1:])
        unit = prod(rest)
        sent, came = (
            part(self._placement, tuple(size * unit for size in sizes), self._order)
            for sizes in (input_sizes, output_sizes)
        )
        flat = self._tensors.flat(tensor)
        near, far = (self._tensors.empty(flat, (sum(lengths),)) for lengths in (sent.here, sent.away))
        _copy(flat, near, sent.here_moves)
        _copy(flat, far, sent.away_moves)
        result = self._tensors.empty(tensor, (sum(output_sizes), *rest)) if out is None else out

        def run(end: float) -> tuple[Tensor, Tensor]:
            from_far = self._wide.all_to_all(far, sent.away, came.away, None, timeout_s)
            from_near = settle(self._within.all_to_all(near, sent.here, came.here, None, timeout_s), end)
            return from_near, settle(from_far, end)

        def finish(both: tuple[Tensor, Tensor]) -> Tensor:
            target = self._tensors.flat(result)
            for values, moves in zip(both, (came.here_moves, came.away_moves), strict=True):
                _copy(values, target, tuple((source, place, length) for place, source, length in moves))
            return result

        return self._staged(run, timeout_s, finish)

    def broadcast(self, tensor: Tensor, src: int, timeout_s: float) -> Staged:
        """In the host of ``src``; from there each lane brings a piece to the others, which gather them."""
        flat = self._tensors.flat(tensor)
        host, local = self._placement.find(src)
        pieces = lane_pieces(self._placement, int(flat.shape[0]))
        start = sum(pieces[: self._placement.local])
        length = pieces[self._placement.local]

        def run(end: float) -> None:
            if self._placement.host == host:
                settle(self._within.broadcast(flat, local, timeout_s), end)
                if self._lane is not None:
                    settle(self._lane.broadcast(flat[start : start + length], host, timeout_s), end)
                return
            piece = self._tensors.empty(flat, (length,))
            if self._lane is not None:
                settle(self._lane.broadcast(piece, host, timeout_s), end)
            settle(self._within.all_gather(piece, pieces, flat, timeout_s), end)

        def finish(_: None) -> Tensor:
            if src != self._rank:
                self._put_back(tensor, flat, flat)
            return tensor

        return self._staged(run, timeout_s, finish)

    def batch_p2p(self, ops: Sequence[P2P], timeout_s: float) -> Together | Done:
        """Messages to ranks of this host go through shared memory, the others straight to their rank."""
        own = [op for op in ops if op.peer == self._rank]
        if own:
            LocalChannel().batch_p2p(own, timeout_s)
        near: list[P2P] = []
        far: list[P2P] = []
        for op in ops:
            if op.peer == self._rank:
                continue
            if op.peer in self._placement.here:
                near.append(P2P(op.kind, op.tensor, self._placement.here.index(op.peer), op.tag))
            else:
                far.append(P2P(op.kind, op.tensor, self._order.index(op.peer), op.tag))
        handles: list[Handle] = []
        if near:
            handles.append(self._within.batch_p2p(near, timeout_s))
        if far:
            handles.append(self._wide.batch_p2p(far, timeout_s))
        return Together(handles) if handles else Done()

    def barrier(self, timeout_s: float) -> Staged:
        """In the host, then between the first ranks of hosts, then in the host again."""

        def run(end: float) -> None:
            settle(self._within.barrier(timeout_s), end)
            if self._placement.local == 0 and self._lane is not None:
                settle(self._lane.barrier(timeout_s), end)
            settle(self._within.barrier(timeout_s), end)

        return self._staged(run, timeout_s)

    def all_gather_bytes(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Gather in the host, between the first ranks of hosts, and hand that out in the host."""

        def run(end: float) -> list[bytes]:
            here = self._within.all_gather_bytes(data, _left(end))
            packed = b""
            if self._placement.local == 0 and self._lane is not None:
                packed = pickle.dumps(self._lane.all_gather_bytes(pickle.dumps(here), _left(end)))
            packed = self._within.all_gather_bytes(packed, _left(end))[0]
            # Lists of bytes that this function packed, on ranks of one job.
            blocks = [pickle.loads(block) for block in pickle.loads(packed)]  # noqa: S301
            parts = [b""] * self._size
            for ranks, block in zip(self._placement.hosts, blocks, strict=True):
                for rank, one in zip(ranks, block, strict=True):
                    parts[rank] = one
            return parts

        staged = self._staged(run, timeout_s)
        if not staged.wait(timeout_s):
            raise TimeoutError(f"not complete within {timeout_s:g} s")
        parts: list[bytes] = staged.finish()
        return parts

    def _channels(self) -> list[Channel]:
        return [channel for channel in (self._within, self._lane, self._wide) if channel is not None]

    def abort(self) -> None:
        """Fail what is under way, in this host and at the ranks of others, from any thread."""
        for channel in self._channels():
            with contextlib.suppress(Exception):  # one that is broken already must not spare the others
                channel.abort()

    def close(self) -> None:
        """Let go of all; what the group's thread is still inside of stays until the process ends."""
        self.stuck = not self._queue.close()
        if not self.stuck:
            for channel in self._channels():
                channel.close()


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


def _uneven(sizes: Sequence[int]) -> Sequence[int] | None:
    return None if min(sizes) == max(sizes) else sizes


def _copy(source: Tensor, target: Tensor, moves: Moves) -> None:
    """Copy parts of one flat tensor into another."""
    for start, place, length in moves:
        target[place : place + length] = source[start : start + length]
