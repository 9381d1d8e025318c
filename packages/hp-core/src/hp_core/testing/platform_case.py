# SPDX-License-Identifier: Apache-2.0
"""What the checks of a platform share: the platform and the device under test, and values in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hp_core.platform.protocols import DeviceOps, Platform

if TYPE_CHECKING:
    import numpy as np


class PlatformCase:
    """A platform and a device. A suite for another framework overrides what names the framework's own operations."""

    platform_name = "torch"
    device_type = "cpu"

    # What a subclass may replace

    def linear(self, num_in: int, num_out: int) -> Any:
        """Return a linear layer with a bias on the device, in float32: parameters ``weight`` (out, in) and ``bias``."""
        import torch

        return torch.nn.Linear(num_in, num_out, device=self.device_type)

    def nested(self, **modules: Any) -> Any:
        """Return a module that has ``modules`` as its children."""
        import torch

        return torch.nn.ModuleDict(modules)

    def randn(self, *shape: int) -> Any:
        """Return normal random numbers from the device's generator, in float32."""
        import torch

        return torch.randn(*shape, device=self.device_type)

    # Fixtures

    @property
    def platform(self) -> Platform:
        """The platform under test."""
        from hp_core.registry import resolve

        factory: Any = resolve("platform", self.platform_name)
        platform: Platform = factory()
        return platform

    @property
    def device(self) -> DeviceOps:
        """The device under test."""
        return self.platform.device(self.device_type)

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        """Return a tensor on the device with ``values``."""
        import numpy as np

        array = np.ascontiguousarray(np.asarray(values, dtype="float32"))
        ops = self.platform.tensor
        out = ops.empty(array.shape, dtype, self.device_type)
        ops.copy_(out, ops.from_numpy(array))
        return out

    def numpy(self, tensor: Any) -> np.ndarray[Any, Any]:
        """Return a tensor's values."""
        return self.platform.tensor.to_numpy(tensor)

    def values(self, tensor: Any) -> list[Any]:
        """Return a tensor's values as lists."""
        values: list[Any] = self.numpy(tensor).tolist()
        return values


def check_raises(kind: type[Exception], call: Any) -> None:
    """Check that ``call()`` raises ``kind``."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected and nothing was raised")
