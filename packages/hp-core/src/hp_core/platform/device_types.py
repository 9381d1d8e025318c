# SPDX-License-Identifier: Apache-2.0
"""The kinds of devices that there are names for."""

from __future__ import annotations

from hp_core.errors import PlatformError, did_you_mean

#: Every kind of device, the host's first.
DEVICE_TYPES = ("cpu", "cuda", "npu")
_OTHER_NAMES = {"gpu": "cuda", "rocm": "cuda", "hip": "cuda", "ascend": "npu", "host": "cpu"}


def check_device_type(device_type: str) -> None:
    """Raise unless ``device_type`` is a kind of device, whether or not one is there.

    Raises:
        PlatformError: If it is not; the message says which is meant.
    """
    if device_type in DEVICE_TYPES:
        return
    meant = _OTHER_NAMES.get(device_type.lower(), device_type.lower().partition(":")[0])
    hint = f"; did you mean {meant!r}?" if meant in DEVICE_TYPES else did_you_mean(device_type, DEVICE_TYPES)
    raise PlatformError(f"unknown device {device_type!r}: it is one of {', '.join(DEVICE_TYPES)}{hint}")
