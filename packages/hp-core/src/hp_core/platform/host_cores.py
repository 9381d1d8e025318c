# SPDX-License-Identifier: Apache-2.0
"""How many cores of the host this process may use: what threads are shared out by."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def num_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process may use, at least 1: by its affinity, and by quotas of control groups.

    The quotas are those of its own control group and of all above it, of version 1 (``cpu.cfs_quota_us``) and 2
    (``cpu.max``). One and a half cores count as one.

    Args:
        root: Where ``proc`` and ``sys`` are.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min([float(affinity), *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:
            for folder in _upwards([mounts, mounts / "unified"], path):
                yield from _quota(*_words(folder / "cpu.max"))
        elif "cpu" in names:
            for folder in _upwards([mounts / controllers, mounts / "cpu"], path):
                yield from _quota(*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us"))


def _upwards(mounts: list[Path], path: str) -> Iterator[Path]:
    """Yield the folders of a control group and of those above it.

    In a container ``path`` may be the host's, and only its end, or nothing of it, is there.
    """
    inside = Path(path.lstrip("/"))
    for mount in mounts:
        yield mount / inside
        yield from (mount / parent for parent in inside.parents)


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _quota(*words: str) -> Iterator[float]:
    """Yield quota / period where both are there and limit something ("max" and -1 do not)."""
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
        yield int(words[0]) / int(words[1])
