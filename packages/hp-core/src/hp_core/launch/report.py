# SPDX-License-Identifier: Apache-2.0
"""What ``hp run`` says last: which rank failed first, why, and what became of the others."""

from __future__ import annotations

from collections.abc import Mapping

from hp_core.launch.failure import Failure, first_failure

_HINTS = {
    "SIGKILL": "by another process, or by the kernel for want of memory (`dmesg` says so)",
    "SIGSEGV": "a fault in native code; its stack is above",
    "SIGABRT": "native code gave up; its message is above",
    "SIGBUS": "memory that is not there: a full /dev/shm, or a file that was cut short",
    "SIGTERM": "by another process: a scheduler, or a user",
}


def failure_report(failures: Mapping[int, Failure], world_size: int) -> str:
    """Return the text that ends a failed job; the first failure, with its rank, is its end.

    Args:
        failures: by global rank, of this host.
        world_size: ranks of the whole job.
    """
    first = first_failure(failures.values())
    lines = []
    for rank, failure in sorted(failures.items()):
        if rank != first.rank:
            after = "as a consequence" if failure.secondary else "too"
            lines.append(f"[rank {rank}] failed {after}: {failure.summary}")
    if not first.expected:
        lines += [f"[rank {first.rank}] {line}" for line in first.traceback.splitlines()]
    what = first.summary
    for name, hint in _HINTS.items():
        if first.kind == "signal" and name in what:
            what += f": {hint}"
    how = "was" if first.kind == "signal" else "failed:"
    which = "" if world_size == 1 else f" of {world_size}"
    lines.append(f"error: rank {first.rank}{which} {how} {what}")
    return "\n".join(lines)
