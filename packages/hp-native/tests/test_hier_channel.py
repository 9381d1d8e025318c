# SPDX-License-Identifier: Apache-2.0
"""The stages of the ``hier`` backend for many placements: ranks are threads here, and channels are lists between them.

`test_hier_suite` runs real processes, of which few placements fit on a small machine.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import pytest
import torch

from hp_core.comm.types import P2P
from hp_native.hier_channel import HierChannel
from hp_native.hier_plan import place
from hp_native.tensors import TorchTensors

PLACEMENTS = ["AABB", "AAB", "ABAB", "BAABA", "AABBCC", "ABCABCA"]
LIMIT_S = 20.0


class Board:
    """What the ranks of one channel have posted, call by call; counts what each sends to others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.posted = defaultdict(dict)
        self.changed = threading.Condition()
        self.sent_bytes = 0

    def post(self, call, rank, value):
        with self.changed:
            self.posted[call][rank] = value
            self.changed.notify_all()

    def collect(self, call, timeout_s):
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.posted[call]) == self.size, timeout_s):
                return None
            return [self.posted[call][rank] for rank in range(self.size)]


class Pending:
    def __init__(self, board, call, make):
        self.board, self.call, self.make = board, call, make
        self.all = None

    def wait(self, timeout_s):
        self.all = self.board.collect(self.call, timeout_s)
        return self.all is not None

    def is_done(self):
        return self.wait(0.0)

    def leave(self):
        pass

    def finish(self):
        return self.make(self.all)


class ListChannel:
    """A channel that is right by being simple."""

    def __init__(self, board, rank):
        self.board, self.rank, self.num_calls = board, rank, 0

    def start(self, value, make):
        self.num_calls += 1
        self.board.post(self.num_calls, self.rank, value)
        return Pending(self.board, self.num_calls, make)

    def count(self, nbytes):
        self.board.sent_bytes += nbytes

    def all_reduce(self, tensor, op, timeout_s):
        self.count(2 * tensor.nbytes * (self.board.size - 1) // self.board.size)
        return self.start(tensor.clone(), lambda all_: tensor.copy_(sum(all_[1:], all_[0])))

    def reduce_scatter(self, tensor, op, sizes, out, timeout_s):
        self.count(tensor.nbytes - tensor[: sizes[self.rank]].nbytes)
        return self.start(tensor.clone(), lambda all_: sum(all_[1:], all_[0]).split(list(sizes))[self.rank].clone())

    def all_gather(self, tensor, sizes, out, timeout_s):
        self.count(tensor.nbytes * (self.board.size - 1))

        def make(all_):
            if sizes is not None:
                assert [len(one) for one in all_] == list(sizes)
            return torch.cat(all_) if out is None else out.copy_(torch.cat(all_))

        return self.start(tensor.clone(), make)

    def all_to_all(self, tensor, input_sizes, output_sizes, out, timeout_s):
        self.count(tensor.nbytes - tensor[: input_sizes[self.rank]].nbytes)

        def make(all_):
            came = [pieces[self.rank] for pieces in all_]
            assert [len(one) for one in came] == list(output_sizes)
            return torch.cat(came)

        return self.start(tensor.clone().split(list(input_sizes)), make)

    def broadcast(self, tensor, src, timeout_s):
        self.count(tensor.nbytes * (self.board.size - 1) if self.rank == src else 0)
        return self.start(tensor.clone(), lambda all_: tensor.copy_(all_[src]))

    def barrier(self, timeout_s):
        return self.start(None, lambda all_: None)

    def all_gather_bytes(self, data, timeout_s):
        pending = self.start(data, lambda all_: all_)
        assert pending.wait(timeout_s)
        return pending.finish()

    def batch_p2p(self, ops, timeout_s):
        for op in ops:
            if op.kind == "send":
                self.board.post(("message", self.rank, op.peer, op.tag), 0, op.tensor.clone())

        class Batch(Pending):
            def wait(batch, timeout_s):
                with self.board.changed:
                    for op in ops:
                        where = self.board.posted[("message", op.peer, self.rank, op.tag)]
                        if op.kind == "recv":
                            assert self.board.changed.wait_for(lambda where=where: where, timeout_s)
                            op.tensor.copy_(where[0])
                return True

            def finish(batch):
                return None

        return Batch(None, None, None)

    def abort(self):
        pass

    def close(self):
        pass


def on_each_rank(hosts: str, work):
    """Run ``work(channel, rank)`` on a thread a rank; return the results, and the bytes that went between hosts."""
    size = len(hosts)
    placements = [place(hosts, rank) for rank in range(size)]
    within = [Board(len(ranks)) for ranks in placements[0].hosts]
    lanes = [Board(len(within)) for _ in range(placements[0].num_lanes)]
    wide = Board(size)
    order = list(range(size))[::-1]
    results: list = [None] * size

    def run(rank: int) -> None:
        placement = placements[rank]
        lane = None if placement.lane is None else ListChannel(lanes[placement.local], placement.host)
        near = ListChannel(within[placement.host], placement.local)
        far = ListChannel(wide, order.index(rank))
        channel = HierChannel(placement, near, lane, far, order, TorchTensors())
        results[rank] = work(channel, rank)
        channel.close()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a rank hangs"
    assert all(result is not None for result in results), "a rank failed"
    return results, sum(board.sent_bytes for board in (*lanes, wide))


def complete(handle, later: bool):
    if later:
        handle.leave()
    assert handle.wait(LIMIT_S)
    return handle.finish()


def values(rank: int, *shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1000.0 * rank


@pytest.mark.parametrize("later", [False, True], ids=["waits", "later"])
@pytest.mark.parametrize("hosts", PLACEMENTS)
def test_every_collective_gives_what_it_should(hosts: str, later: bool) -> None:
    size = len(hosts)
    uneven = [(3 * rank) % 4 for rank in range(size)]

    def work(channel, rank):
        total = complete(channel.all_reduce(values(rank, 5, 3), "sum", 9.0), later)
        assert torch.equal(total, sum(values(other, 5, 3) for other in range(size)))
        mean = complete(channel.all_reduce(values(rank, 2), "avg", 9.0), later)
        assert torch.equal(mean, sum(values(other, 2) for other in range(size)) / size)
        for sizes in ([2] * size, uneven):
            given = None if len(set(sizes)) == 1 else sizes
            everything = torch.cat([values(other, sizes[other], 3) for other in range(size)])
            whole = complete(channel.all_gather(values(rank, sizes[rank], 3), given, None, 9.0), later)
            assert torch.equal(whole, everything)
            contributions = [values(other, sum(sizes), 2) for other in range(size)]
            piece = complete(channel.reduce_scatter(contributions[rank], "sum", given, None, 9.0), later)
            assert torch.equal(piece, sum(contributions).split(sizes)[rank])
        cuts = [[(src + 2 * dst) % 3 for dst in range(size)] for src in range(size)]
        out = torch.empty(sum(row[rank] for row in cuts), 2)
        came = complete(
            channel.all_to_all(values(rank, sum(cuts[rank]), 2), cuts[rank], [row[rank] for row in cuts], out, 9.0),
            later,
        )
        expected = torch.cat([values(src, sum(cuts[src]), 2).split(cuts[src])[rank] for src in range(size)])
        assert came is out
        assert torch.equal(came, expected)
        for src in range(size):
            strided = values(rank, 4, 6)[:, ::2]
            assert torch.equal(complete(channel.broadcast(strided, src, 9.0), later), values(src, 4, 6)[:, ::2])
        complete(channel.barrier(9.0), later)
        assert channel.all_gather_bytes(b"x" * rank, 9.0) == [b"x" * other for other in range(size)]
        arrivals = [torch.zeros(2) for _ in range(size)]
        ops = [P2P("recv", arrivals[peer], peer, 7) for peer in range(size)]
        ops += [P2P("send", values(rank, 2) + peer, peer, 7) for peer in range(size)]
        complete(channel.batch_p2p(ops, 9.0), later)
        assert all(torch.equal(arrivals[peer], values(peer, 2) + rank) for peer in range(size))
        return True

    on_each_rank(hosts, work)


@pytest.mark.parametrize("hosts", PLACEMENTS)
def test_each_byte_goes_between_hosts_as_seldom_as_can_be(hosts: str) -> None:
    size, others = len(hosts), len(set(hosts)) - 1
    nbytes = 4 * 120 * size

    def sent(start) -> int:
        return on_each_rank(hosts, lambda channel, rank: [complete(start(channel, rank), False)])[1]

    assert sent(lambda channel, rank: channel.all_gather(values(rank, 120), None, None, 9.0)) == nbytes * others
    assert sent(lambda channel, rank: channel.broadcast(values(rank, 120 * size), 1, 9.0)) == nbytes * others
    scattered = sent(lambda channel, rank: channel.reduce_scatter(values(rank, 120 * size), "sum", None, None, 9.0))
    assert scattered == nbytes * others  # of each host's partial sum, what other hosts keep
    # Reduced and handed on, for each host: 2 (H - 1) / H of it, but for what rounding to whole bytes takes away.
    reduced = sent(lambda channel, rank: channel.all_reduce(values(rank, 120 * size), "sum", 9.0))
    assert 2 * nbytes * others - size * 4 <= reduced <= 2 * nbytes * others


def test_calls_keep_their_order_whether_somebody_waits_or_not() -> None:
    def work(channel, rank):
        handles = []
        for number in range(12):
            handles.append(channel.all_reduce(torch.full((3,), float(number)), "sum", 9.0))
            if number % 3 == rank % 3 or number % 4 == 0:
                handles[-1].leave()
            else:
                assert handles[-1].wait(LIMIT_S)
        results = []
        for handle in handles:
            assert handle.wait(LIMIT_S)
            assert handle.is_done()
            results.append(handle.finish()[0].item())
        return results

    for results in on_each_rank("ABAB", work)[0]:
        assert results == [4.0 * number for number in range(12)]


def test_a_rank_that_does_not_come_is_a_wait_in_vain_and_a_failure_that_nobody_awaits_is_told() -> None:
    board = Board(2)
    aborted = threading.Event()

    class Broken(ListChannel):
        def all_reduce(self, tensor, op, timeout_s):
            raise ConnectionError("the peer has gone")

        def abort(self):
            aborted.set()

    def third_rank(kind):
        return HierChannel(
            place("AAB", 2), ListChannel(Board(1), 0), kind(board, 1), kind(board, 0), (2, 1, 0), TorchTensors()
        )

    assert not third_rank(ListChannel).all_reduce(torch.ones(3), "sum", 9.0).wait(0.05)
    broken = third_rank(Broken)
    handle = broken.all_reduce(torch.ones(3), "sum", 9.0)
    handle.leave()
    assert aborted.wait(LIMIT_S), "the other ranks were not told"
    with pytest.raises(ConnectionError, match="the peer has gone"):
        handle.wait(1.0)
