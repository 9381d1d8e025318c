# SPDX-License-Identifier: Apache-2.0
"""Which backends serve this process."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from hp_core.comm.backend import CommBackend, Launch
from hp_core.errors import CommError, HPError, PluginError
from hp_core.platform import get_platform, use_local_device
from hp_core.platform.device_types import check_device_type
from hp_core.platform.select import choose
from hp_core.registry import names, offers, resolve

#: Names of c10d's libraries, accepted for c10d, and the device type each serves.
LIBRARIES = {"gloo": "cpu", "nccl": "cuda", "hccl": "npu"}
#: The backend that brings the world up for each platform.
_BOOT = {"torch": "c10d", "mindspore": "mindspore"}


def _load(name: str, platform: str | None) -> CommBackend:
    made: Any = resolve("comm", name, platform)
    backend: CommBackend = made()
    return backend


def boot_backend(device_type: str, wanted: str | None) -> CommBackend:
    """Return the backend that brings the world up.

    Raises:
        PlatformError: the device type is unknown.
        CommError: the named library does not serve it.
    """
    check_device_type(device_type)
    if wanted in LIBRARIES and LIBRARIES[wanted] != device_type:
        raise CommError(
            f"backend {wanted!r} serves {LIBRARIES[wanted]}, not {device_type}; leave backend out to get the right one"
        )
    if wanted == "fake":
        return _load("fake", None)
    platform = choose()
    if platform != "torch" and (wanted == "c10d" or wanted in LIBRARIES):
        raise CommError(
            f"backend {wanted!r} is torch's, and this process uses {platform}; leave HP_COMM and backend out to get "
            "the right one, or choose the framework with HP_PLATFORM"
        )
    if platform not in _BOOT:
        raise PluginError(f"platform {platform!r} names no comm backend that brings the world up")
    return _load(_BOOT[platform], platform)


def take_device(device_type: str, boot: CommBackend) -> None:
    """Make this rank's device current where ``LOCAL_RANK`` says which it is; else only look that there is one.

    Who starts ranks without numbering those of a host chooses their devices, too. A simulated world needs none.

    Raises:
        PlatformError: there is no such device, or no framework.
    """
    if device_type == "cpu" or boot.simulated:
        return
    if "LOCAL_RANK" in os.environ:
        use_local_device(device_type)
    else:
        get_platform().device(device_type)


def group_backends(boot: CommBackend, wanted: str | None) -> list[CommBackend]:
    """Return the backends that may serve groups before ``boot`` does, best first.

    That is the one asked for; else each that is offered with a positive priority (one that cannot be loaded is warned
    about and left out: ``boot`` serves any group).

    Raises:
        PluginError: the backend asked for is unknown or broken.
    """
    if wanted in LIBRARIES or wanted == boot.name or boot.simulated:
        return []
    platform = choose()
    if wanted is not None:
        return [_load(wanted, platform)]
    found = []
    reasons: dict[str, list[str]] = {}
    for name in names("comm", platform):
        if name in (boot.name, "fake") or all(
            offer.provide.priority <= 0 for offer in offers("comm", name) if offer.provide.platform in (None, platform)
        ):
            continue
        try:
            found.append(_load(name, platform))
        except HPError as exc:
            reasons.setdefault(str(exc), []).append(repr(name))
    for reason, kept in reasons.items():
        what = f"comm backends {' and '.join(kept)} are" if len(kept) > 1 else f"comm backend {kept[0]} is"
        warnings.warn(f"{what} not used: {reason}", RuntimeWarning, stacklevel=3)
    return found


def check_same(
    launch: Launch, backends: Sequence[str], device_type: str, backend: str | None, world_size: int | None
) -> None:
    """Raise where communication, which is up as ``launch`` over ``backends``, is asked for in another way.

    Raises:
        CommError: it is.
    """
    size = launch.world_size if world_size is None else world_size
    same_backend = backend is None or backend in LIBRARIES or backend in backends
    if (device_type, size) != (launch.device_type, launch.world_size) or not same_backend:
        names = f"{launch.device_type} with {launch.world_size} ranks over {' and '.join(backends)}"
        asked = f"{device_type} with {size}" + (f" over {backend}" if backend else "")
        raise CommError(f"communication is already up for {names}, asked again for {asked}; call comm.shutdown() first")
