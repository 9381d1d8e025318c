# SPDX-License-Identifier: Apache-2.0
"""Worker processes must not outlive the process that started them, however it ends.

[Note: The guard]
``PR_SET_PDEATHSIG`` is not enough: it does not reach the children that a worker has started, and it fires when the
THREAD that started the worker ends. A watching thread in the worker is not enough either: it cannot run while C code
holds the interpreter. So a shell waits for the end of a pipe whose other end only we hold, and then kills the process
groups whose numbers it was told, and what has made itself a session of its own but kept the mark in its environment.
"""

from __future__ import annotations

import re
import subprocess

from hp_core.launch.descendants import MARK

_SCRIPT = """
while read group; do groups="$groups -$group"; done
[ -z "$groups" ] || kill -s KILL -- $groups
[ -z "$1" ] && exit
for process in $(grep -Eslz "$1" /proc/[0-9]*/environ); do
    process=${process#/proc/}
    kill -s KILL "${process%/environ}"
done
"""


class Guard:
    """A shell that kills process groups when this process is gone. One per set of processes."""

    def __init__(self, mark: str = "") -> None:
        """Start the shell; processes that have ``mark`` (see `descendants`) are then killed, too."""
        pattern = f"^{MARK}=(.*,)?{re.escape(mark)}(,.*)?$" if mark else ""
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", pattern],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # spared the Ctrl-C of our terminal
        )

    @property
    def pid(self) -> int:
        """Process number of the shell."""
        return self._shell.pid

    def watch(self, group: int) -> None:
        """Have the process group killed when this process ends."""
        pipe = self._shell.stdin
        assert pipe is not None
        pipe.write(f"{group}\n".encode())
        pipe.flush()

    def dismiss(self) -> None:
        """End the watch. Call it before the groups are killed: the shell must not meet their numbers again."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()
