# SPDX-License-Identifier: Apache-2.0
"""Where this process stands in its job, read from the environment that a launcher sets."""

from __future__ import annotations

import os

from hp_core.comm.backend import Launch
from hp_core.errors import CommError

_FIX = (
    "start the job with 'hp run' or torchrun (ranks of MindSpore: each with RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT set), or unset RANK and WORLD_SIZE for a world of one"
)


def read_launch(device_type: str, timeout_s: float, rank: int | None, world_size: int | None) -> Launch:
    """Return this process's place: the arguments, else ``RANK``, ``WORLD_SIZE``, …, else a world of one.

    Raises:
        CommError: a variable is missing or is not what it should be.
    """
    if rank is None and world_size is None and "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return Launch(0, 1, device_type, timeout_s)
    if world_size is None:
        world_size = _integer("WORLD_SIZE", 1, 2**31)
    elif world_size < 1:
        raise CommError(f"world_size must be at least 1, not {world_size}")
    if rank is None:
        rank = _integer("RANK", 0, world_size, f"WORLD_SIZE is {world_size}")
    elif not 0 <= rank < world_size:
        raise CommError(f"rank must be in [0, {world_size}), not {rank}")
    addr = os.environ.get("MASTER_ADDR")
    return Launch(
        rank,
        world_size,
        device_type,
        timeout_s,
        master_addr=addr,
        master_port=_integer("MASTER_PORT", 0, 2**16) if "MASTER_PORT" in os.environ else None,
        restart=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        agent_store=os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _integer(name: str, low: int, high: int, why: str = "") -> int:
    text = os.environ.get(name)
    if text is None:
        present = [key for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if key in os.environ]
        raise CommError(f"{name} is not set, but {', '.join(present) or 'the other one'} is; {_FIX}")
    try:
        value = int(text)
    except ValueError:
        raise CommError(f"{name}={text!r} is not a whole number; {_FIX}") from None
    if not low <= value < high:
        raise CommError(f"{name}={value} is not in [{low}, {high}){': ' + why if why else ''}; {_FIX}")
    return value
