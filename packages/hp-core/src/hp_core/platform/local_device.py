# SPDX-License-Identifier: Apache-2.0
"""Which device of its host each rank uses."""

from __future__ import annotations

import os

from hp_core.errors import PlatformError
from hp_core.platform.select import get_platform


def use_local_device(device_type: str) -> int:
    """Make this rank's device the current one of this thread, and return its index.

    Each rank of a host takes the device with its ``LOCAL_RANK``, or device 0 where that is not set. A launcher that
    shows each rank one device only calls that one 0: where there is just one, it is used. On the CPU nothing is done.
    Nothing is communicated.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or ``"npu"``.

    Raises:
        PlatformError: If there is no framework, no such device, or ``LOCAL_RANK`` is not a rank.
    """
    device = get_platform().device(device_type)
    if device_type == "cpu":
        return 0
    text = os.environ.get("LOCAL_RANK") or "0"
    if not text.isdecimal():
        raise PlatformError(f"LOCAL_RANK={text!r} is not a whole number from 0: unset it or start with `hp run`")
    index = int(text) if device.num_devices > 1 else 0
    device.use(index)
    return index
