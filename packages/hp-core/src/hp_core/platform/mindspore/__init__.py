# SPDX-License-Identifier: Apache-2.0
"""The MindSpore platform (2.10, PyNative mode, CPU): tensors, which is what communication needs.

Devices, modules and autograd are not there yet. Asking for them is a `PlatformError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hp_core.errors import PlatformError
from hp_core.platform.device_types import check_device_type
from hp_core.platform.mindspore.tensor import MindSporeTensor

__all__ = ["MindSporePlatform"]


class MindSporePlatform:
    """``get_platform()`` where the framework is MindSpore; see `hp_core.platform.protocols.Platform`."""

    name = "mindspore"

    def __init__(self) -> None:
        self.tensor = MindSporeTensor()
        self.module: Any = _Missing("modules")
        self.autograd: Any = _Missing("autograd")

    def device(self, device_type: str) -> Any:
        """Refuse.

        Raises:
            PlatformError: Always.
        """
        check_device_type(device_type)
        raise _missing(f"devices ({device_type!r} was asked for)")


class _Missing:
    """A part of the platform that is not written: it has every method, and each says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise _missing(f"{self._what} ({name} was called)")

        return refuse


def _missing(what: str) -> PlatformError:
    return PlatformError(
        f"the MindSpore platform has no {what} yet, only tensors and communication on a CPU; use MindSpore's own, or "
        "torch"
    )
