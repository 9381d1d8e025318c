# SPDX-License-Identifier: Apache-2.0
"""The framework behind HyperParallel: ``get_platform()`` and its Protocols. Importing this imports no framework."""

from __future__ import annotations

from hp_core.platform.device_types import DEVICE_TYPES
from hp_core.platform.local_device import use_local_device
from hp_core.platform.select import get_platform

__all__ = ["DEVICE_TYPES", "get_platform", "use_local_device"]
