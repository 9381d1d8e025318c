# SPDX-License-Identifier: Apache-2.0
"""Memory of this process on the host: what a device's allocator counts elsewhere, the resident set is here."""

from __future__ import annotations

import contextlib
import functools
import resource
from pathlib import Path

import psutil

from hp_core.platform.protocols import Memory


def host_memory(*, reset_peak: bool = False) -> Memory:
    """Return the resident set of this process, its peak, and the memory there is; then, if asked, start a new peak.

    The peak is Linux' ``VmHWM``. Where the system lets no process reset it, it counts from the start of the process.
    """
    used = psutil.Process().memory_info().rss
    memory = Memory(used, max(used, _peak_bytes()), _total_bytes())
    if reset_peak:
        # 5 resets the peak resident set (proc(5), clear_refs).
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
    return memory


def _peak_bytes() -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@functools.cache
def _total_bytes() -> int:
    total: int = psutil.virtual_memory().total
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # not in a control group, or "max"
            total = min(total, int(Path(path).read_text()))
    return total
