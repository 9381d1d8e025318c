# SPDX-License-Identifier: Apache-2.0
"""How much memory this rank uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def used_bytes(device: torch.device) -> int:
    """Return the resident memory of this process on a CPU, the peak of the device's allocator elsewhere; bytes."""
    if device.type == "cpu":
        import psutil

        return int(psutil.Process().memory_info().rss)
    import torch

    return int(torch.get_device_module(device).max_memory_allocated(device))
