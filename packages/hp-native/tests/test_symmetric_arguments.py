# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory: what does not fit is refused, says what would, and does nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from hp_core.testing import ranks

SHM = {"HP_COMM": "shm"}


def _pool(num_ranks: int) -> Any:
    return ranks(num_ranks, env=SHM)


WRONG: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "put to no rank": (lambda hp, x: hp.put(x.clone(), x, 2), "put on group world: rank 2 is not a rank of the group"),
    "put to a negative rank": (lambda hp, x: hp.put(x.clone(), x, -1), "rank -1 is not a rank of the group"),
    "put too much": (lambda hp, x: hp.put(x.repeat(2), x, 0), "of 24 bytes is expected, not one of 48"),
    "put strided": (lambda hp, x: hp.put(x.repeat(2)[::2], x, 0), "a contiguous tensor of 24 bytes is expected"),
    "get too little": (lambda hp, x: hp.get(x, 0, x[:2].clone()), "of 24 bytes is expected, not one of 8"),
    "get from no rank": (lambda hp, x: hp.get(x, 7, x.clone()), "rank 7 is not a rank of the group"),
    "put elsewhere": (lambda hp, x: hp.put(x.clone(), x.clone(), 0), "does not lie in symmetric memory"),
    "a strided part": (lambda hp, x: hp.get(x[::2], 0, x[:3].clone()), "does not lie in symmetric memory"),
    "peer elsewhere": (lambda hp, x: hp.peer(x.clone(), 0), "make it with hp_native.empty"),
    "peer of no rank": (lambda hp, x: hp.peer(x, 2), "peer on group world: rank 2 is not a rank of the group"),
    "signal to no rank": (lambda hp, x: hp.signal(x, 2), "signal on group world: rank 2 is not a rank of the group"),
    "no such signal": (lambda hp, x: hp.signal(x, 0, 64), "signal 64 is not one of the 64"),
    "put with no such signal": (lambda hp, x: hp.put(0 * x, x, 0, signal_index=-1), "signal -1 is not one of the 64"),
    "signal down": (lambda hp, x: hp.signal(x, 0, 0, -1), r"value -1 is not in \[0, 2\*\*64\)"),
    "signal of a fraction": (lambda hp, x: hp.signal(x, 0, 0.5), "signal 0.5 is not a whole number"),
    "no rank at all": (lambda hp, x: hp.signal(x, "0"), "rank '0' is not a whole number"),
    "wait for no time": (lambda hp, x: hp.wait_signal(x, 1, timeout_s=0), "timeout_s must be positive, not 0"),
    "wait for no such signal": (lambda hp, x: hp.wait_signal(x, 1, 64), "signal 64 is not one of the 64"),
    "read no such signal": (lambda hp, x: hp.read_signal(x, -1), "signal -1 is not one of the 64"),
    "barrier elsewhere": (lambda hp, x: hp.barrier(x.clone()), "does not lie in symmetric memory"),
    "no dtype": (lambda hp, x: hp.empty(3, "no dtype"), "'no dtype' is not a dtype of torch, MindSpore or NumPy"),
    "no shape": (lambda hp, x: hp.empty((2, -1), x.dtype), r"shape \(2, -1\)"),
    "no group": (lambda hp, x: hp.empty(3, x.dtype, [0, 1]), r"group=\[0, 1\] is a list, not a comm Group"),
}  # fmt: skip


def _wrong(which: str) -> str:
    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommError

    memory = hp_native.empty(6, torch.float32).fill_(3.0)
    call, _ = WRONG[which]
    try:
        call(hp_native, memory)
    except CommError as exc:
        text = str(exc)
    else:
        raise AssertionError(f"{which}: accepted")
    hp_native.barrier(memory)  # nothing was written, and the job goes on
    assert torch.equal(hp_native.peer(memory, 1 - comm.rank()), torch.full((6,), 3.0))
    hp_native.barrier(memory)
    return text


@pytest.mark.parametrize("which", WRONG)
def test_what_does_not_fit_is_refused_and_does_nothing(which: str) -> None:
    for text in _pool(2).run(_wrong, which):
        assert re.search(WRONG[which][1], text), text


def _different() -> str:
    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommError

    with pytest.raises(CommError) as caught:
        hp_native.empty(3 + comm.rank(), torch.float32)
    assert comm.all_reduce(torch.ones(1)).item() == comm.world_size()
    return str(caught.value)


def test_different_shapes_are_an_error_on_all_ranks() -> None:
    for text in _pool(2).run(_different):
        assert "the ranks ask for different ones: [((3,), 'torch.float32'), ((4,), 'torch.float32')]" in text


def _alone() -> str:
    import torch

    import hp_native
    from hp_core.errors import CommError

    with pytest.raises(CommError) as caught:
        hp_native.empty(3, torch.float32)
    return str(caught.value)


def test_one_rank_is_told_that_it_needs_another() -> None:
    (text,) = ranks(1).run(_alone)
    assert "symmetric memory needs a group of at least two CPU ranks on one host" in text


def _after_shutdown() -> str:
    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommError

    memory = hp_native.empty(3, torch.float32).fill_(1.0)
    comm.barrier()
    comm.shutdown()
    with pytest.raises(CommError) as caught:
        hp_native.signal(memory, 0)
    comm.init_backend("cpu")
    assert memory.tolist() == [1.0] * 3  # the memory is there as long as the tensor
    assert comm.all_reduce(memory).tolist() == [float(comm.world_size())] * 3
    return str(caught.value)


def test_after_shutdown_it_is_plain_memory() -> None:
    for text in _pool(2).run(_after_shutdown):
        assert "and again after communication was shut down" in text
