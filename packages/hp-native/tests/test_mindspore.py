# SPDX-License-Identifier: Apache-2.0
"""MindSpore's ranks communicate through shared memory. Run by ``nox -s mindspore``."""

from __future__ import annotations

import contextlib
import gc
import os
import re
from pathlib import Path
from typing import Any

import pytest

from hp_core.testing import CommSuite, RankError, ranks

pytestmark = pytest.mark.mindspore


class TestOnTwoRanks(CommSuite):
    backend = "shm"
    num_ranks = 2


class TestOnThreeRanks(CommSuite):
    backend = "shm"
    num_ranks = 3
    seeds = range(8, 14)


class TestOnFourRanks(CommSuite):
    backend = "shm"
    num_ranks = 4
    seeds = range(14, 20)


def test_there_is_nothing_to_configure() -> None:
    def work() -> tuple[str, str, list[float]]:
        import sys

        import mindspore
        import numpy as np

        import hp_core.comm as comm
        from hp_core.platform import get_platform

        assert "torch" not in sys.modules
        x = mindspore.Tensor(np.full(3, comm.rank() + 1.0, np.float32))
        return comm.world().backend, get_platform().name, comm.all_reduce(x).asnumpy().tolist()

    assert ranks(2).run(work) == [("shm", "mindspore", [3.0, 3.0, 3.0])] * 2


def test_results_wait_for_what_was_started_and_are_seen_by_what_follows() -> None:
    def work() -> list[float]:
        import numpy as np
        from mindspore import Tensor, mint

        import hp_core.comm as comm

        x = Tensor(np.full((700, 700), comm.rank() + 1.0, np.float32))
        for _ in range(20):
            product = mint.matmul(x, x)  # the call returns before the product is there
            comm.all_reduce(product)
            again = product * 1.0
            work = comm.all_gather(mint.matmul(x, x), async_op=True)
            del product
            found = [float(again.asnumpy().min()), float(again.asnumpy().max())]
            assert found == [700.0 * (1 + 4)] * 2
            rows = work.wait().asnumpy()
            assert (rows[:700] == 700.0).all()
            assert (rows[700:] == 2800.0).all()
        return found

    ranks(2).run(work)


def test_a_backend_that_reaches_no_other_rank_says_what_to_install() -> None:
    with pytest.raises(RankError, match=r"with MindSpore that needs hp-native .* pip install hp-native there"):
        ranks(2, env={"HP_COMM": "mindspore"}).run(os.getpid)


def test_ranks_of_two_hosts_are_told_that_they_cannot_communicate() -> None:
    with pytest.raises(RankError, match=r"all ranks on CPUs of one host; rank 1 is on another host than rank 0"):
        ranks(2, env=[{"HP_HOST": "a"}, {"HP_HOST": "b"}]).run(os.getpid)


def _symmetric() -> None:
    """Every dtype in symmetric memory: the same memory on all ranks, used directly by collectives."""
    import mindspore
    import numpy as np

    import hp_core.comm as comm
    import hp_native
    from hp_core.platform import get_platform

    ops, rank = get_platform().tensor, comm.rank()
    other = 1 - rank
    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 float8_e4m3fn"
    for name in names.split():
        dtype = getattr(mindspore, name)

        def holds(tensor: Any, number: int, dtype: Any = dtype) -> bool:
            array = ops.to_numpy(tensor)
            return bool(tensor.dtype == dtype and (array == np.array(number, array.dtype)).all())

        for shape in ((2, 3), (0, 3), (), 5):
            x = hp_native.empty(shape, dtype)
            assert tuple(x.shape) == ((shape,) if isinstance(shape, int) else shape)
            assert x.is_contiguous()
            ops.to_numpy(x)[...] = rank
            comm.barrier()
            assert holds(hp_native.peer(x, other), other)
            copy = hp_native.get(x, other, ops.empty(x.shape, name, "cpu"))
            assert holds(copy, other)
            whole = comm.all_gather(x)
            rows = len(ops.to_numpy(whole)) // 2
            assert holds(whole[:rows], 0)
            assert holds(whole[rows:], 1)
            ops.to_numpy(copy)[...] = rank
            comm.barrier()
            hp_native.put(copy, x, other, signal_index=3)
            hp_native.wait_signal(x, 1, 3)
            assert holds(x, other)
    x = hp_native.empty((3, 1000), mindspore.bfloat16)
    address = x.data_ptr()
    x.copy_(mindspore.mint.ones((3, 1000), dtype=mindspore.bfloat16) * (rank + 1))
    assert comm.all_reduce(x) is x
    assert x.data_ptr() == address
    assert (x.astype(mindspore.float32).asnumpy() == 3.0).all()


def test_symmetric_memory_holds_every_dtype() -> None:
    ranks(2).run(_symmetric)


def test_symmetric_memory_goes_with_its_last_tensor() -> None:
    def num_mappings() -> int:
        return len(re.findall(r"/memfd:hp", Path("/proc/self/maps").read_text()))

    def work() -> None:
        import mindspore

        import hp_core.comm as comm
        import hp_native

        before = num_mappings()
        for _ in range(3):
            x = hp_native.empty(1000, mindspore.float32)
            comm.all_reduce(x.copy_(mindspore.mint.ones((1000,))))
            row = x[10:20]
            y = row * 2
            del x
            gc.collect()
            assert num_mappings() == before + 1
            assert y.asnumpy().tolist() == [2.0 * comm.world_size()] * 10
            assert row.asnumpy().tolist() == [1.0 * comm.world_size()] * 10
            del row
            gc.collect()
            assert num_mappings() == before
            comm.barrier()

    ranks(2).run(work)


def test_low_precision_takes_tensors_of_mindspore() -> None:
    def work(wire: Any) -> float:
        import numpy as np
        from mindspore import Tensor

        import hp_core.comm as comm
        from hp_native import low_precision

        values = [np.random.default_rng(rank).standard_normal(10_001).astype(np.float32) for rank in range(2)]
        total = low_precision.all_reduce(Tensor(values[comm.rank()].copy()), wire=wire)
        error: float = np.abs(total.asnumpy() - values[0] - values[1]).max()
        return error

    for wire, bound in (("bf16", 0.05), ("e4m3", 0.6)):
        errors = ranks(2).run(work, wire)
        assert 0 < errors[0] == errors[1] < bound


def test_a_rank_that_dies_is_named_at_once() -> None:
    def work() -> None:
        from mindspore import mint

        import hp_core.comm as comm

        comm.all_reduce(mint.ones((3,)))
        if comm.rank() == 1:
            os._exit(3)
        with contextlib.suppress(ZeroDivisionError):
            comm.all_reduce(mint.ones((3,)))

    with pytest.raises(RankError) as error:
        ranks(2).run(work)
    assert error.value.failures[1].exit_code == 3
    assert "rank 1 has ended" in str(error.value)
