# SPDX-License-Identifier: Apache-2.0
"""The processes of this host's ranks, from one start to their end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from hp_core.errors import LaunchError
from hp_core.launch.console import descriptor
from hp_core.launch.descendants import Descendants, marked
from hp_core.launch.failure import Failure, from_returncode
from hp_core.launch.guard import Guard
from hp_core.launch.output import OutputPump
from hp_core.launch.spec import LaunchSpec
from hp_core.launch.worker import FAILURE_FD

_LINGER_S = 3.0  # from a rank's failure to its end: clean-up, then it is as good as ended
_SETTLE_S = 2.0  # for the first failure to show, where only consequences have
_TERM_S = 2.0  # from SIGTERM to SIGKILL
_LAST_OUTPUT_S = 2.0  # for the reader of our output to take what is left, when a signal ends the job
_REAP_S = 5.0  # from one look for orphans that have ended to the next


class RankProcesses:
    """The ranks of this host: their global numbers and environments are the agent's to say."""

    def __init__(
        self,
        spec: LaunchSpec,
        environments: Mapping[int, Mapping[str, str]],
        mark: str,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start a process for each global rank in ``environments``.

        Args:
            spec: what each runs.
            environments: environment variables by global rank, on top of ours.
            mark: by which the processes of the job are known.
            is_ending: whether `close` is not to wait for the reader of our output.

        Raises:
            LaunchError: the system does not give us so many processes or files, or will not run them.
        """
        self._is_ending = is_ending
        self._guard = Guard(mark)
        self._descendants = Descendants(mark)  # after the guard, which is none of them
        self._next_reap = time.monotonic() + _REAP_S
        self._pump = OutputPump()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._failure_fds: dict[int, int] = {}
        self._ended_by_us: set[int] = set()
        self._failures: dict[int, Failure] = {}
        self._lingering_since: dict[int, float] = {}
        self._closed = False
        command = [sys.executable, "-m", "hp_core.launch.worker", "module" if spec.is_module else "script"]
        try:
            for local_rank, (rank, environment) in enumerate(environments.items()):
                self._spawn(
                    rank,
                    [*command, spec.target, *spec.args],
                    marked({**os.environ, **environment, **spec.env}, mark),
                    to_console=local_rank == spec.console_rank,
                )
            self._pump.start()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise LaunchError(
                    f"only {len(self._processes)} of this host's {len(environments)} ranks could be started: {error}; "
                    "ask for fewer ranks, or raise the limits (`ulimit -n` for files, `ulimit -u` for processes)"
                ) from error
            raise

    def _spawn(self, rank: int, command: Sequence[str], environment: dict[str, str], *, to_console: bool) -> None:
        failure_fd = os.memfd_create("hp-launch-failure")
        self._failure_fds[rank] = failure_fd
        process = subprocess.Popen(
            command,
            env={**environment, FAILURE_FD: str(failure_fd)},
            stdin=subprocess.DEVNULL,
            stdout=None if to_console else subprocess.PIPE,
            stderr=None if to_console else subprocess.PIPE,
            pass_fds=(failure_fd,),
            start_new_session=True,  # a group of its own; Ctrl-C in the terminal reaches us only
        )
        self._processes[rank] = process
        self._guard.watch(process.pid)
        for source, stream, default in ((process.stdout, sys.stdout, 1), (process.stderr, sys.stderr, 2)):
            if source is not None:
                self._pump.add(source, descriptor(stream, default), f"[rank {rank}] ")  # type: ignore[arg-type]

    @property
    def pids(self) -> dict[int, int]:
        """Process numbers by global rank."""
        return {rank: process.pid for rank, process in self._processes.items()}

    @property
    def output_lost(self) -> str | None:
        """Why output of the ranks could not be written, where some was lost."""
        return self._pump.lost

    def poll(self) -> dict[int, Failure] | None:
        """Look at the ranks once.

        Returns:
            ``None`` while the job goes on; ``{}`` when every rank has ended well; else what failed, all ranks having
            been ended.
        """
        self._look()
        if time.monotonic() > self._next_reap:
            self._descendants.reap(self.pids.values())
            self._next_reap = time.monotonic() + _REAP_S
        if not self._failures:
            return {} if all(process.poll() == 0 for process in self._processes.values()) else None
        # A broken collective is often seen on other ranks before the end of the rank that broke it is seen here.
        deadline = time.monotonic() + _SETTLE_S
        while all(failure.secondary for failure in self._failures.values()) and time.monotonic() < deadline:
            if all(process.poll() is not None for process in self._processes.values()):
                self._look()
                break
            time.sleep(0.02)
            self._look()
        time.sleep(0.05)  # the others' own words, where they are on their way
        self._look()
        self.close()
        return self._failures

    def _look(self) -> None:
        for rank, process in self._processes.items():
            if rank in self._failures:
                continue
            returncode = process.poll()
            recorded = self._recorded(rank)
            if recorded is not None:
                since = self._lingering_since.setdefault(rank, time.monotonic())
                if returncode is not None or time.monotonic() - since > _LINGER_S:
                    self._failures[rank] = recorded
            elif returncode and rank not in self._ended_by_us:
                self._failures[rank] = from_returncode(rank, returncode)

    def _recorded(self, rank: int) -> Failure | None:
        fd = self._failure_fds[rank]
        text = os.pread(fd, os.fstat(fd).st_size, 0)
        return Failure(**json.loads(text)) if text else None

    def close(self) -> None:
        """End what still runs, and all that it started: SIGTERM, then after two seconds SIGKILL."""
        if self._closed:
            return
        running = {rank: process for rank, process in self._processes.items() if process.poll() is None}
        self._ended_by_us.update(running)
        self._descendants.note([process.pid for process in running.values()])
        for process in running.values():
            _signal_group(process.pid, signal.SIGTERM)
            _signal_group(process.pid, signal.SIGCONT)  # one that is stopped could not end
        deadline = time.monotonic() + _TERM_S
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self._guard.dismiss()
        for process in self._processes.values():  # of ranks that have ended, too: what they left
            _signal_group(process.pid, signal.SIGKILL)
        for process in running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):  # a process stuck in the kernel cannot be killed
                process.wait(_TERM_S)
        self._descendants.kill(self.pids.values())
        self._pump.finish(_LAST_OUTPUT_S if self._is_ending() else None)
        self._look()  # what they said while they were ending
        for fd in self._failure_fds.values():
            os.close(fd)
        self._closed = True  # last: a signal may have stopped us anywhere above, and then we come again


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
