# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory: one-sided operations, signals, and collectives of tensors that lie in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hp_core.testing import RankError, ranks

SHM = {"HP_COMM": "shm"}


def _pool(num_ranks: int) -> Any:
    return ranks(num_ranks, env=SHM)


def _values(rank: int, count: int, dtype: str = "float32") -> Any:
    import torch

    generator = torch.Generator().manual_seed(1000 * count + rank)
    return torch.randint(-8, 9, (count,), generator=generator).to(getattr(torch, dtype))


def _put_and_get(count: int, dtype: str) -> None:
    """Every rank puts into every other's memory, at a place of its own, and reads all of it back."""
    import torch

    import hp_core.comm as comm
    import hp_native

    size, rank = comm.world_size(), comm.rank()
    kind = getattr(torch, dtype)
    memory = hp_native.empty((size, count), kind)
    assert (tuple(memory.shape), memory.dtype, memory.is_contiguous()) == ((size, count), kind, True)
    for other in range(size):
        hp_native.put(_values(rank, count, dtype), memory[rank], other)
    hp_native.barrier(memory)
    for source in range(size):
        assert torch.equal(memory[source], _values(source, count, dtype))
    out = torch.empty((size, count), dtype=kind)
    for other in range(size):
        assert hp_native.get(memory, other, out) is out
        assert torch.equal(out, memory)
        assert torch.equal(hp_native.peer(memory, other), memory)
    hp_native.barrier(memory)
    # It is the other rank's memory itself, not a copy.
    if count and rank == 0:
        hp_native.peer(memory, size - 1)[0, 0] = 77
    hp_native.barrier(memory)
    assert (not count) or (memory[0, 0].item() == 77) == (rank == size - 1 or _values(0, count, dtype)[0].item() == 77)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_what_is_put_is_there_and_can_be_got(num_ranks: int) -> None:
    for count, dtype in ((0, "float32"), (1, "uint8"), (3, "bfloat16"), (1025, "float64"), (700_001, "int16")):
        _pool(num_ranks).run(_put_and_get, count, dtype)


def _ring(num_rounds: int, count: int, together: bool) -> None:
    """Hand a buffer on in a ring; signals say that it is there, and that it is free again."""
    import torch

    import hp_core.comm as comm
    import hp_native

    size, rank = comm.world_size(), comm.rank()
    after, before = (rank + 1) % size, (rank - 1) % size
    inbox = hp_native.empty(count, torch.float32)
    free, full = 0, 63
    for number in range(1, num_rounds + 1):
        if number > 1:
            hp_native.wait_signal(inbox, number - 1, free)
        data = _values(rank, count) + number
        if together:
            hp_native.put(data, inbox, after, signal_index=full)
        else:
            hp_native.put(data, inbox, after)
            hp_native.signal(inbox, after, full)
        hp_native.wait_signal(inbox, number, full, timeout_s=30)
        assert torch.equal(inbox, _values(before, count) + number)
        hp_native.signal(inbox, before, free)
    hp_native.barrier(inbox)
    assert [hp_native.read_signal(inbox, index) for index in (free, 1, full)] == [num_rounds, 0, num_rounds]


@pytest.mark.parametrize("together", [True, False], ids=["put with signal", "put, then signal"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_who_sees_the_signal_sees_what_was_put_before(num_ranks: int, together: bool) -> None:
    for count in (0, 1, 5000):
        _pool(num_ranks).run(_ring, 40, count, together)


def _add_signals() -> list[int]:
    """Every rank adds to a signal of rank 0; each allocation has its own."""
    import torch

    import hp_core.comm as comm
    import hp_native

    first, second = hp_native.empty(1, torch.uint8), hp_native.empty(0, torch.uint8)
    for _ in range(100):
        hp_native.signal(first, 0, 3, comm.rank() + 1)
    hp_native.signal(second, 0, 3, 0)
    if comm.rank() == 0:
        total = 100 * sum(range(1, comm.world_size() + 1))
        hp_native.wait_signal(first, total, 3)
    hp_native.barrier(first)
    return [hp_native.read_signal(first, 3), hp_native.read_signal(second, 3)]


def test_signals_of_all_ranks_add_up() -> None:
    assert _pool(4).run(_add_signals) == [[1000, 0], [0, 0], [0, 0], [0, 0]]


def _collectives(count: int, dtype: str, uneven: bool, in_group: bool) -> None:
    """Each collective gives the same bits in symmetric memory as in any other."""
    import torch

    import hp_core.comm as comm
    import hp_native

    group = comm.new_group(list(range(comm.world_size()))[::-1]) if in_group else comm.world()
    size, rank = group.size, group.rank
    kind = getattr(torch, dtype)
    pieces = [count + (7 * index % 5 if uneven else 0) for index in range(size)]
    total = sum(pieces)
    memory = hp_native.empty(2 * total + 16, kind, group)
    plain = _values(rank, total, dtype)

    def symmetric(values: Any, at: int = 0) -> Any:
        return memory[at : at + values.numel()].copy_(values)

    sizes = pieces if uneven else None
    for op in ("sum", "max"):
        expected = comm.all_reduce(plain.clone(), op, group)
        whole = symmetric(plain)
        assert comm.all_reduce(whole, op, group) is whole
        assert torch.equal(whole, expected)
        expected = comm.reduce_scatter(plain, op, group, sizes=sizes)
        out = memory[total : total + pieces[rank]]
        assert comm.reduce_scatter(symmetric(plain), op, group, sizes=sizes, out=out) is out
        assert torch.equal(out, expected)
        # One side in it only: also right.
        assert torch.equal(comm.reduce_scatter(symmetric(plain), op, group, sizes=sizes), expected)
        assert torch.equal(comm.reduce_scatter(plain, op, group, sizes=sizes, out=out), expected)
    mine = _values(rank, pieces[rank], dtype)
    expected = comm.all_gather(mine, group, sizes=sizes)
    out = memory[total : 2 * total]
    assert torch.equal(comm.all_gather(symmetric(mine), group, sizes=sizes, out=out), expected)
    assert torch.equal(comm.all_gather(mine, group, sizes=sizes, out=out.zero_()), expected)
    assert torch.equal(comm.all_gather(symmetric(mine), group, sizes=sizes), expected)
    sends = [pieces[rank]] * size if uneven else None
    comes = pieces if uneven else None
    outgoing = _values(rank, pieces[rank] * size if uneven else total, dtype)
    expected = comm.all_to_all(outgoing, group, input_sizes=sends, output_sizes=comes)
    source = hp_native.empty(max(pieces) * size, kind, group)[: outgoing.numel()].copy_(outgoing)
    assert torch.equal(comm.all_to_all(source, group, input_sizes=sends, output_sizes=comes, out=out), expected)
    expected = comm.broadcast(plain.clone(), size - 1, group)
    work = comm.broadcast(symmetric(plain, 8), size - 1, group, async_op=True)
    assert torch.equal(work.wait(), expected)
    hp_native.barrier(memory)


@pytest.mark.parametrize("in_group", [False, True], ids=["world", "another group"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_collectives_in_symmetric_memory_give_the_same_bits(num_ranks: int, in_group: bool) -> None:
    for count, dtype in ((0, "float32"), (1, "int64"), (4099, "bfloat16"), (300_001, "float32")):
        for uneven in (False, True):
            _pool(num_ranks).run(_collectives, count, dtype, uneven, in_group)


def _numpy() -> list[float]:
    import numpy as np

    import hp_core.comm as comm
    import hp_native

    memory = hp_native.empty((2, 3), np.float64)
    assert isinstance(memory, np.ndarray)
    memory[:] = comm.rank()
    hp_native.barrier(memory)
    hp_native.put(np.full(3, 5.0 + comm.rank()), memory[1], 1 - comm.rank(), signal_index=1)
    hp_native.wait_signal(memory, 1, 1)
    other = hp_native.get(memory, 1 - comm.rank(), np.empty((2, 3)))
    hp_native.barrier(memory)
    return [*memory[:, 2].tolist(), *other[:, 0].tolist()]


def test_numpy_arrays_too() -> None:
    assert _pool(2).run(_numpy) == [[0.0, 6.0, 1.0, 5.0], [1.0, 5.0, 0.0, 6.0]]


def _let_go() -> int:
    """Make and drop memory many times; return how many bytes this process has mapped more than before."""
    import gc

    import torch

    import hp_native

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    hp_native.empty(1, torch.uint8)
    gc.collect()
    before, descriptors = mapped(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        view = hp_native.empty(4 << 20, torch.uint8)[1000:]
        gc.collect()
        view[0] = 1  # a tensor of a part keeps the whole
        hp_native.barrier(view)
    del view
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    return mapped() - before


def test_it_goes_with_the_last_tensor() -> None:
    for more in _pool(2).run(_let_go):
        assert more < 16 << 20


def _too_late(limit_s: float) -> tuple[str, str, float]:
    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommTimeoutError

    memory = hp_native.empty(4, torch.float32)
    hp_native.signal(memory, comm.rank(), 2, 5)
    began = time.monotonic()
    try:
        hp_native.wait_signal(memory, 6, 2, timeout_s=limit_s)
    except CommTimeoutError as exc:
        took_s = time.monotonic() - began
        hp_native.barrier(memory)  # it was a look: the job goes on
        hp_native.wait_signal(memory, 5, 2, timeout_s=limit_s)
        return str(exc), type(exc).__name__, took_s
    raise AssertionError("a signal that nobody sent came")


@pytest.mark.parametrize("limit_s", [0.01, 0.5])
def test_a_signal_that_does_not_come_is_an_error_in_time(limit_s: float) -> None:
    for rank, (text, name, took_s) in enumerate(_pool(2).run(_too_late, limit_s)):
        assert name == "CommTimeoutError"
        assert f"rank {rank} of group world: signal 2 was 5 after {limit_s:g} s, waited for 6; " in text
        assert text.endswith(f"rank {rank} sent it once, rank {1 - rank} never did")
        assert limit_s <= took_s < limit_s + 10


def _wait_for_one_that_ends(path: str) -> None:
    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommError

    memory = hp_native.empty(4, torch.float32)
    if comm.rank() == 1:
        os._exit(3)
    began = time.monotonic()
    with pytest.raises(CommError, match=r"rank 1 of the group \(process \d+\) has ended"):
        hp_native.wait_signal(memory, 1)
    Path(path).write_text(str(time.monotonic() - began))


def test_whoever_waits_for_a_signal_sees_that_a_rank_ended(tmp_path: Path) -> None:
    with pytest.raises(RankError):
        _pool(2).run(_wait_for_one_that_ends, str(tmp_path / "took"))
    assert float((tmp_path / "took").read_text()) < 10
