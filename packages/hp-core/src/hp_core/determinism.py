# SPDX-License-Identifier: Apache-2.0
"""The same bits every run: seeds, deterministic kernels, and the state of every generator.

Two runs of a program on the same machine, versions, number of ranks and number of threads are bitwise equal if it
calls `enable_determinism` before it computes anything, and takes its data in a fixed order.
``docs/determinism.md`` says what else can differ, and what it costs.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hp_core.errors import ConfigError, PlatformError
from hp_core.platform import DEVICE_TYPES, get_platform
from hp_core.platform.protocols import DeviceOps

_MAX_SEED = 2**63 - 1

_enabled = False
_warn_only = False


@dataclass(frozen=True)
class RngState:
    """The state of every generator of this process; plain values, so that it can be pickled and sent.

    Attributes:
        python: Of ``random``.
        numpy: Of numpy's global generator: name, key as bytes, position, and the cached normal number.
        devices: Of the current device of each kind, by its type.
    """

    python: tuple[Any, ...]
    numpy: tuple[str, bytes, int, int, float]
    devices: dict[str, bytes]


def seed_all(seed: int, *, rank_offset: int = 0) -> int:
    """Seed python's ``random``, numpy's global generator and the framework's on every device of this process.

    Generators made by hand (``numpy.random.default_rng``, ``torch.Generator``) are not reached. Any rank may call it;
    nothing is communicated.

    Args:
        seed: From 0 to 2**63 - 1. With ``rank_offset=0`` it is used as it is, so all ranks draw the same numbers.
        rank_offset: Anything but 0 derives another seed from ``seed`` and it. Pass the rank where ranks should draw
            different numbers, such as dropout of different data.

    Returns:
        The seed that was used.

    Raises:
        ConfigError: If a number is out of range.
        PlatformError: If there is no framework.
    """
    import numpy as np

    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MAX_SEED:
        raise ConfigError(f"seed={seed!r} must be a whole number from 0 to {_MAX_SEED}")
    if isinstance(rank_offset, bool) or not isinstance(rank_offset, int) or rank_offset < 0:
        raise ConfigError(f"rank_offset={rank_offset!r} must be a whole number, not negative")
    if rank_offset:
        # A hash, not a sum: seed 1 on rank 1 must not be seed 2 on rank 0.
        digest = hashlib.blake2b(f"{seed}/{rank_offset}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") & _MAX_SEED
    random.seed(seed)
    np.random.seed(seed % 2**32)
    for device in _devices():
        device.seed(seed)
    return seed


def enable_determinism(seed: int, *, rank_offset: int = 0, warn_only: bool = False) -> int:
    """Seed everything and use deterministic kernels from here on. Call it on every rank, before the first computation.

    Args:
        seed: As in `seed_all`.
        rank_offset: As in `seed_all`.
        warn_only: Where an operation has no deterministic kernel, warn instead of raising.

    Returns:
        The seed that was used.

    Raises:
        ConfigError: If a number is out of range.
        PlatformError: If there is no framework.
    """
    used = seed_all(seed, rank_offset=rank_offset)
    _set_deterministic(True, warn_only)
    return used


def is_deterministic() -> bool:
    """Return whether deterministic kernels were switched on through this module."""
    return _enabled


@contextlib.contextmanager
def deterministic(enabled: bool = True, *, warn_only: bool = False) -> Iterator[None]:
    """Use deterministic kernels (or, with ``False``, any) inside the block, in the whole process; seeds nothing.

    Blocks nest; at the end of each it is as it was before. What cuBLAS has read when it started stays.

    Args:
        enabled: On or off.
        warn_only: Where an operation has no deterministic kernel, warn instead of raising.
    """
    before = _enabled, _warn_only
    _set_deterministic(enabled, warn_only)
    try:
        yield
    finally:
        _set_deterministic(*before)


def rng_state() -> RngState:
    """Return the state of every generator that `seed_all` seeds (of each kind of device the current one's)."""
    import numpy as np

    name, key, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return RngState(
        random.getstate(),
        (str(name), np.asarray(key).tobytes(), int(position), int(has_gauss), float(gauss)),
        {device.type: device.rng_state() for device in _devices()},
    )


def set_rng_state(state: RngState) -> None:
    """Continue from a state that `rng_state` returned, here or in another process with the same devices.

    Raises:
        PlatformError: If the state has a kind of device that is not here, or is damaged.
    """
    import numpy as np

    platform = get_platform()
    devices = {device_type: platform.device(device_type) for device_type in state.devices}
    for device_type, device in devices.items():
        device.set_rng_state(state.devices[device_type])
    name, key, position, has_gauss, gauss = state.numpy
    np.random.set_state((name, np.frombuffer(key, dtype=np.uint32), position, has_gauss, gauss))
    random.setstate(state.python)


def _set_deterministic(enabled: bool, warn_only: bool) -> None:
    global _enabled, _warn_only
    for device in _devices():
        device.set_deterministic(enabled, warn_only=warn_only)
    _enabled, _warn_only = enabled, warn_only


def _devices() -> list[DeviceOps]:
    platform = get_platform()
    found = []
    for device_type in DEVICE_TYPES:
        # The one question is whether it is there: a device that is not has nothing to seed.
        with contextlib.suppress(PlatformError):
            found.append(platform.device(device_type))
    return found
