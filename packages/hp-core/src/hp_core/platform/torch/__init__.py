# SPDX-License-Identifier: Apache-2.0
"""The torch platform: cpu, cuda and npu, which is torch with another device handle."""

from __future__ import annotations

from hp_core.platform.torch.autograd import TorchAutograd
from hp_core.platform.torch.device import TorchDevice, open_device
from hp_core.platform.torch.module import TorchModule
from hp_core.platform.torch.tensor import TorchTensor

__all__ = ["TorchPlatform"]


class TorchPlatform:
    """``get_platform()`` where the framework is torch; see `hp_core.platform.protocols.Platform`."""

    name = "torch"

    def __init__(self) -> None:
        self.tensor = TorchTensor()
        self.module = TorchModule()
        self.autograd = TorchAutograd()
        self._devices: dict[str, TorchDevice] = {}

    def device(self, device_type: str) -> TorchDevice:
        """Return the handle of ``"cpu"``, ``"cuda"`` or ``"npu"``; the same object each time.

        Raises:
            PlatformError: If it is unknown or not there; the message says what to install.
        """
        if device_type not in self._devices:
            self._devices[device_type] = open_device(device_type)
        return self._devices[device_type]
