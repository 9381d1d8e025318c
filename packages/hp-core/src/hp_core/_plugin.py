# SPDX-License-Identifier: Apache-2.0
"""What hp-core offers to the registry."""

from __future__ import annotations

from hp_core.plugins import hookimpl
from hp_core.provide import Provide


@hookimpl
def hp_provide() -> list[Provide]:
    """Offer the platforms, the built-in communication backends and the public names of hp-core."""
    return [
        Provide("platform", "torch", "hp_core.platform.torch:TorchPlatform"),
        Provide("platform", "mindspore", "hp_core.platform.mindspore:MindSporePlatform"),
        Provide("comm", "c10d", "hp_core.comm.c10d:C10dBackend", platform="torch"),
        Provide("comm", "mindspore", "hp_core.comm.mindspore:MindSporeBackend", platform="mindspore"),
        Provide("comm", "fake", "hp_core.comm.fake:FakeBackend", priority=-10),
        Provide("export", "DeviceMesh", "hp_core.mesh:DeviceMesh"),
        Provide("export", "get_current_mesh", "hp_core.mesh:get_current_mesh"),
        Provide("export", "get_platform", "hp_core.platform:get_platform"),
        Provide("export", "init_device_mesh", "hp_core.mesh:init_device_mesh"),
    ]
