# SPDX-License-Identifier: Apache-2.0
"""The accelerator's side of the torch device handle, on a stand-in for ``torch.cuda`` and ``torch.npu``.

It checks which calls are made, and that a device is not started where it is not used. On real devices the platform
suite checks what they do (``tools/gpu_check.py``).
"""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from hp_core.errors import PlatformError
from hp_core.platform.torch.device import TorchDevice


class Accelerator:
    """Behaves as ``torch.cuda`` with two devices; every call is noted."""

    def __init__(self) -> None:
        self.calls: list = []
        self.started = False
        self.generator = torch.Generator()
        self.queue: list = ["default"]
        outer = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.stream = None

            def record(self) -> None:
                self.stream = outer.queue[-1]

            def synchronize(self) -> None:
                outer.calls.append(("event.synchronize", self.stream))

            def elapsed_time(self, other) -> float:
                assert other.stream is not None
                return 1500.0

        class Stream:
            pass

        self.Event, self.Stream = Event, Stream

    def device_count(self) -> int:
        return 2

    def is_initialized(self) -> bool:
        return self.started

    def current_device(self) -> int:
        return 1

    def set_device(self, index: int) -> None:
        self.calls.append(("set_device", index))

    def synchronize(self) -> None:
        self.calls.append(("synchronize",))

    @contextmanager
    def stream(self, stream):
        self.queue.append(stream)
        yield
        assert self.queue.pop() is stream

    def current_stream(self):
        queue = self.queue[-1]
        return SimpleNamespace(wait_event=lambda event: self.calls.append(("wait", queue, event.stream)))

    def get_device_properties(self, index: int):
        assert index == 1
        return SimpleNamespace(total_memory=1000)

    def memory_allocated(self) -> int:
        return 10

    def max_memory_allocated(self) -> int:
        return 20

    def reset_peak_memory_stats(self) -> None:
        self.calls.append(("reset_peak",))

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self):
        self.started = True
        return self.generator.get_state()

    def set_rng_state(self, state) -> None:
        self.started = True
        self.generator.set_state(state)

    def draw(self) -> float:
        self.started = True
        return float(torch.rand((), generator=self.generator))


@pytest.fixture
def api() -> Accelerator:
    return Accelerator()


@pytest.fixture
def device(api: Accelerator) -> TorchDevice:
    return TorchDevice("npu", api)


def test_the_device_is_chosen_among_those_that_are_there(device: TorchDevice, api: Accelerator) -> None:
    assert device.num_devices == 2
    device.use(1)
    assert api.calls == [("set_device", 1)]
    with pytest.raises(PlatformError, match=r"device npu:2 was asked for, but this process can use 2, from 0"):
        device.use(2)


def test_streams_nest_and_events_are_recorded_and_waited_for_on_the_current_one(
    device: TorchDevice, api: Accelerator
) -> None:
    one, two = device.stream(), device.stream()
    with one:
        first = device.record()
        with two:
            device.wait(first)
            second = device.record()
        with one:
            assert api.queue == ["default", one.native, one.native]
    device.wait(second)
    device.synchronize(second)
    device.synchronize()
    assert api.calls == [
        ("wait", two.native, one.native),
        ("wait", "default", two.native),
        ("event.synchronize", two.native),
        ("synchronize",),
    ]
    assert device.elapsed_s(first, second) == 1.5


def test_memory_is_the_allocators_and_the_peak_is_reset_after_it_is_read(device: TorchDevice, api: Accelerator) -> None:
    memory = device.memory()
    assert (memory.used_bytes, memory.peak_bytes, memory.total_bytes) == (10, 20, 1000)
    assert api.calls == []
    device.memory(reset_peak=True)
    assert api.calls == [("reset_peak",)]


def test_seeding_and_capturing_do_not_start_a_device_that_is_not_used(device: TorchDevice, api: Accelerator) -> None:
    device.seed(5)
    state = device.rng_state()
    device.set_rng_state(state)
    assert not api.started
    expected = api.draw()
    other = Accelerator()
    TorchDevice("npu", other).set_rng_state(state)
    assert other.draw() == expected
    assert TorchDevice("npu", Accelerator()).rng_state() == TorchDevice("cuda", Accelerator()).rng_state()
    TorchDevice("npu", other).set_rng_state(TorchDevice("npu", Accelerator()).rng_state())


def test_the_state_of_a_used_device_continues(device: TorchDevice, api: Accelerator) -> None:
    device.seed(5)
    api.draw()
    state = device.rng_state()
    expected = [api.draw(), api.draw()]
    device.set_rng_state(state)
    assert [api.draw(), api.draw()] == expected
    with pytest.raises(PlatformError, match="no state of a npu generator"):
        device.set_rng_state(b"123")
