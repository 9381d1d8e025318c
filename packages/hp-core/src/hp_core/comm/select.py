# SPDX-License-Identifier: Apache-2.0
"""Which backends serve this process."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hp_core.comm.backend import CommBackend
from hp_core.errors import CommError, PluginError, did_you_mean

#: Names of c10d's libraries, accepted for c10d, and the device type each serves.
LIBRARIES = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}
DEVICE_TYPES = ("cpu", "cuda", "npu")
_TARGETS = {"c10d": "hp_core.comm.c10d:C10dBackend", "fake": "hp_core.comm.fake:FakeBackend"}


def _load(name: str) -> CommBackend:
    target = _TARGETS.get(name)
    if target is None:
        raise PluginError(f"no comm backend {name!r}{did_you_mean(name, _TARGETS)}")
    module, _, attr = target.partition(":")
    made: Any = getattr(import_module(module), attr)()
    return made  # type: ignore[no-any-return]


def boot_backend(device_type: str, wanted: str | None) -> CommBackend:
    """Return the backend that brings the world up.

    Raises:
        CommError: the device type is unknown, or the named library does not serve it.
    """
    if device_type not in DEVICE_TYPES:
        hint = did_you_mean(device_type, DEVICE_TYPES) or f"; use one of {', '.join(DEVICE_TYPES)}"
        raise CommError(f"unknown device type {device_type!r}{hint}")
    if wanted in LIBRARIES:
        if LIBRARIES[wanted] != device_type:
            raise CommError(
                f"backend {wanted!r} serves {LIBRARIES[wanted]}, not {device_type}; leave backend out to get the right one"
            )
        wanted = "c10d"
    return _load("fake" if wanted == "fake" else "c10d")


def group_backends(boot: CommBackend, wanted: str | None) -> list[CommBackend]:
    """Return the backends that may serve groups before ``boot`` does, best first."""
    if wanted is None or wanted in LIBRARIES or wanted == boot.name:
        return []
    return [_load(wanted)]
