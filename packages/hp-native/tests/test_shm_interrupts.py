# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C just as the library returns: an operation is let go of once, and no tensor that is gone is written to."""

from __future__ import annotations

import time
from typing import Any

from hp_core.testing import ranks

SHM = {"HP_COMM": "shm", "HP_TEST_INTERRUPTS": "1"}


class _Interrupted:
    """The library, but a Ctrl-C arrives while it waits, and is seen when it returns."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def hpn_wait(self, operation: int, seconds: float) -> int:
        if self._library.hpn_wait(operation, seconds) == 1:
            raise KeyboardInterrupt
        return 0


def _interrupt_waits(num_calls: int) -> int:
    import torch

    import hp_core.comm as comm
    import hp_native.handle

    library = hp_native.handle.native()
    num_interrupted = 0
    for number in range(num_calls):
        x = torch.full((100,), float(number))
        if comm.rank() == number % 2:
            time.sleep(0.001)  # so that the other has to wait
        handle = comm.world().channel.all_reduce(x, "sum", 10.0)  # type: ignore[attr-defined]
        hp_native.handle.native = lambda: _Interrupted(library)  # type: ignore[assignment]
        try:
            assert handle.wait(10.0)
        except KeyboardInterrupt:
            num_interrupted += 1
        finally:
            hp_native.handle.native = lambda: library  # type: ignore[assignment]
        del handle
        assert x.eq(2.0 * number).all()
    comm.barrier()
    return num_interrupted


def test_a_wait_that_is_interrupted_as_it_completes_lets_go_once() -> None:
    for num_interrupted in ranks(2, env=SHM).run(_interrupt_waits, 100):
        assert num_interrupted > 10


def _interrupt_the_start() -> str:
    import torch

    import hp_core.comm as comm
    import hp_native.channel
    from hp_core.errors import CommError

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    x = torch.ones(100_000)
    comm.barrier()
    text = ""
    if comm.rank() == 1:
        time.sleep(0.2)
        try:
            comm.all_reduce(x)
        except CommError as exc:
            text = str(exc)
    else:
        make, hp_native.channel.ShmHandle = hp_native.channel.ShmHandle, interrupted  # type: ignore[assignment, misc]
        try:
            comm.all_reduce(x)
        except KeyboardInterrupt:
            hp_native.channel.ShmHandle = make  # type: ignore[misc]
        try:
            comm.barrier()
        except CommError as exc:
            text = str(exc)
        time.sleep(0.5)
        assert x.eq(1.0).all(), "a call that was interrupted wrote to its tensor afterwards"
    comm.shutdown()
    comm.init_backend("cpu")
    return text


def test_a_start_that_is_interrupted_gives_the_group_up() -> None:
    for text in ranks(2, env=SHM).run(_interrupt_the_start):
        assert "rank" in text
        assert "gave up" in text or "taken down" in text or "failed" in text, text
