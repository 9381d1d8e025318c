# SPDX-License-Identifier: Apache-2.0
"""``PlatformSuite``: what every framework backend must do, on a real device.

In pytest, subclass it and name the platform and the device::

    class TestTorchOnCpu(PlatformSuite):
        platform_name = "torch"
        device_type = "cpu"

Without pytest, ``PlatformSuite.run_all("cuda")`` returns what passed and what did not. Values are checked through
numpy, so that a wrong operation of the framework cannot hide itself.
"""

from __future__ import annotations

import os
import time
import traceback
from typing import NamedTuple

from hp_core.errors import PlatformError
from hp_core.platform.protocols import Memory, Platform
from hp_core.testing.platform_case import PlatformCase, check_raises
from hp_core.testing.platform_training_checks import TrainingChecks


class CheckResult(NamedTuple):
    """How one check of a suite went."""

    name: str
    ok: bool
    error: str
    """The traceback, or an empty string."""
    time_s: float


class TensorAndDeviceChecks(PlatformCase):
    """Tensors, streams, memory, random numbers."""

    # The platform

    def test_the_platform_has_its_name_and_one_handle_a_device(self) -> None:
        """Name, handle identity, unknown devices."""
        platform = self.platform
        assert isinstance(platform, Platform)
        assert platform.name == self.platform_name
        assert platform.device(self.device_type) is platform.device(self.device_type)
        assert platform.device(self.device_type).type == self.device_type
        check_raises(PlatformError, lambda: platform.device("abacus"))

    # Tensors

    def test_empty_has_the_shape_dtype_and_device_asked_for(self) -> None:
        """All dtypes, zero sizes, no dims, meta."""
        ops = self.platform.tensor
        for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"):
            for shape in ((2, 3), (0, 3), ()):
                tensor = ops.empty(shape, name, self.device_type)
                assert tuple(tensor.shape) == shape
                assert name in str(tensor.dtype).lower()
                assert self.device_type in str(tensor.device).lower()
        assert tuple(ops.empty((1 << 40,), "float32", "meta").shape) == (1 << 40,)
        check_raises(PlatformError, lambda: ops.empty((1,), "float31", self.device_type))

    def test_pinned_memory_is_of_the_host_or_refused(self) -> None:
        """Pinned where there is an accelerator, an error where there is none."""
        ops = self.platform.tensor
        check_raises(PlatformError, lambda: ops.empty((4,), "float32", "meta", pinned=True))
        if self.device_type == "cpu":
            return
        pinned = ops.empty((4,), "float32", "cpu", pinned=True)
        assert pinned.is_pinned()
        source = self.tensor([1, 2, 3, 4])
        ops.copy_(pinned, source, non_blocking=True)
        self.device.synchronize()
        assert self.numpy(pinned).tolist() == [1, 2, 3, 4]

    def test_values_go_to_numpy_and_back(self) -> None:
        """Round trip; bits of bfloat16; shared memory on the CPU."""
        import numpy as np

        ops = self.platform.tensor
        values = np.arange(6, dtype="float32").reshape(2, 3)
        assert np.array_equal(self.numpy(self.tensor(values)), values)
        bits = self.numpy(self.tensor([1.0, -2.0], "bfloat16"))
        assert bits.dtype.itemsize == 2
        assert bits.tolist() == [0x3F80, 0xC000]
        shared = ops.from_numpy(values)
        values[0, 0] = 7
        assert ops.to_numpy(shared)[0, 0] == 7
        ops.to_numpy(shared)[1, 2] = 9
        assert values[1, 2] == 9

    def test_a_view_aliases_the_storage_at_its_strides(self) -> None:
        """Writing the base shows in the view; the offset counts from the beginning of the storage."""
        ops = self.platform.tensor
        base = self.tensor(range(12))
        view = ops.view(base, (2, 3), (1, 2), 4)
        assert self.numpy(view).tolist() == [[4, 6, 8], [5, 7, 9]]
        ops.copy_(base, self.tensor(range(100, 112)))
        assert self.numpy(view).tolist() == [[104, 106, 108], [105, 107, 109]]
        again = ops.view(view, (2,), (1,), 10)
        assert self.numpy(again).tolist() == [110, 111]

    def test_copy_writes_through_every_kind_of_view(self) -> None:
        """Slice, transpose, strided, other dtype, broadcast, leaf that requires grad."""
        import numpy as np

        ops = self.platform.tensor
        base = self.tensor(np.zeros((4, 6)))
        expected = np.zeros((4, 6), dtype="float32")
        ops.copy_(base[1:3], self.tensor(np.ones((2, 6))))
        expected[1:3] = 1
        ops.copy_(base.T[2:4], self.tensor(np.full((2, 4), 2.0)))
        expected.T[2:4] = 2
        ops.copy_(ops.view(base, (2, 3), (12, 2), 0), self.tensor(np.full((2, 3), 3.0), "bfloat16"))
        expected.reshape(2, 12)[:, 0:6:2] = 3
        ops.copy_(base[3], self.tensor(4.0))
        expected[3] = 4
        assert np.array_equal(self.numpy(base), expected)
        layer = self.linear(2, 2)
        ops.copy_(layer.weight, self.tensor([[1, 2], [3, 4]]))
        assert self.numpy(layer.weight).tolist() == [[1, 2], [3, 4]]

    def test_a_storage_is_freed_and_comes_back_under_its_aliases(self) -> None:
        """Shape and aliases survive; foreign memory is refused."""
        import numpy as np

        ops = self.platform.tensor
        base = self.tensor(range(8))
        view = base[2:4]
        ops.resize_storage(base, 0)
        assert tuple(view.shape) == (2,)
        ops.resize_storage(base, 32)
        ops.copy_(base, self.tensor(range(10, 18)))
        assert self.numpy(view).tolist() == [12, 13]
        check_raises(PlatformError, lambda: ops.resize_storage(ops.from_numpy(np.zeros(4, dtype="float32")), 0))

    # Devices

    def test_devices_are_counted_and_chosen(self) -> None:
        """The first is there; one past the last is not."""
        device = self.device
        assert device.num_devices >= 1
        device.use(0)
        check_raises(PlatformError, lambda: device.use(device.num_devices))
        check_raises(PlatformError, lambda: device.use(-1))

    def test_streams_wait_for_events_of_each_other(self) -> None:
        """A long computation on one stream is seen whole on another that waits; streams nest."""
        device = self.device
        one, two = device.stream(), device.stream()
        base = self.tensor([[0.5, 0.0], [0.0, 0.5]])
        device.synchronize()
        with one:
            result = base
            for _ in range(200):
                result = result @ base + base
            done = device.record()
            with two:
                device.wait(done)
                doubled = result + result
                finished = device.record()
            tripled = result * 3
        device.wait(finished)
        copied = doubled + 0
        device.synchronize(finished)
        device.synchronize()
        value = 0.5
        for _ in range(200):
            value = value * 0.5 + 0.5
        for tensor, factor in ((doubled, 2), (copied, 2), (tripled, 3)):
            assert abs(float(self.numpy(tensor)[0, 0]) - factor * value) < 1e-5

    def test_time_between_events_is_that_of_the_work(self) -> None:
        """Not negative, and no more than the host saw."""
        device = self.device
        base = self.randn(64, 64)
        device.synchronize()
        begin = time.perf_counter()
        start = device.record()
        for _ in range(20):
            base = base @ base * 0.01
        end = device.record()
        device.synchronize(end)
        host_s = time.perf_counter() - begin
        assert 0 < device.elapsed_s(start, end) <= host_s * 1.05 + 1e-3

    def test_memory_follows_what_is_allocated(self) -> None:
        """Used rises with a large tensor, the peak remembers it, a reset forgets it."""
        device, ops = self.device, self.platform.tensor
        before = device.memory(reset_peak=True)
        num_bytes = 64 << 20
        big = ops.empty((num_bytes // 4,), "float32", self.device_type)
        ops.copy_(big, self.tensor(1.0))  # the host counts pages only once they are written
        during = device.memory()
        assert isinstance(during, Memory)
        slack = 8 << 20
        assert during.used_bytes - before.used_bytes >= num_bytes - slack
        assert during.total_bytes > num_bytes
        del big
        after = device.memory(reset_peak=True)
        assert after.peak_bytes >= during.used_bytes - slack
        assert after.used_bytes <= during.used_bytes - num_bytes + slack
        if self.device_type != "cpu" or os.access("/proc/self/clear_refs", os.W_OK):
            assert device.memory().peak_bytes <= after.used_bytes + slack

    def test_a_seed_and_a_state_give_the_same_numbers_again(self) -> None:
        """Seeds repeat and differ; a state continues; rubbish is refused."""
        device = self.device
        device.seed(1)
        first, second = self.numpy(self.randn(5)).tolist(), self.numpy(self.randn(5)).tolist()
        assert first != second
        device.seed(1)
        state = device.rng_state()
        assert isinstance(state, bytes)
        assert self.numpy(self.randn(5)).tolist() == first
        assert self.numpy(self.randn(5)).tolist() == second
        device.set_rng_state(state)
        assert self.numpy(self.randn(5)).tolist() == first
        device.seed(2)
        assert self.numpy(self.randn(5)).tolist() != first
        check_raises(PlatformError, lambda: device.set_rng_state(b"abc"))

    def test_deterministic_kernels_give_the_same_bits_twice(self) -> None:
        """On and off again, with a forward and backward in between."""
        device = self.device
        device.set_deterministic(True)
        try:
            device.set_deterministic(True, warn_only=True)
            device.set_deterministic(True)
            seen = []
            for _ in range(2):
                device.seed(3)
                x, layer = self.randn(16, 32), self.linear(32, 32)
                self.platform.autograd.backward([(layer(layer(x))).sum()])
                seen.append(self.numpy(self.platform.autograd.grad(layer.weight)).tobytes())
            assert seen[0] == seen[1]
        finally:
            device.set_deterministic(False)


class PlatformSuite(TensorAndDeviceChecks, TrainingChecks):
    """Every callable of a platform, exercised on one device.

    A check is a method called ``test_…``. A suite for another framework overrides ``linear``, ``nested`` and ``randn``
    of `PlatformCase`, the only methods that name a framework's own operations.
    """

    @classmethod
    def setup_class(cls) -> None:
        """Set what cuBLAS reads once, at the first matrix product of the process; pytest calls it, and ``run_all``."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    @classmethod
    def run_all(cls, device_type: str | None = None) -> list[CheckResult]:
        """Run every check, outside pytest, and return how each went; raises nothing.

        Args:
            device_type: Instead of the class' own.
        """
        cls.setup_class()
        results = []
        for name in dir(cls):
            if not name.startswith("test_"):
                continue
            suite = cls()
            if device_type is not None:
                suite.device_type = device_type
            start, error = time.perf_counter(), ""
            try:
                getattr(suite, name)()
            except Exception:
                error = traceback.format_exc()
            results.append(CheckResult(name, not error, error, time.perf_counter() - start))
        return results
