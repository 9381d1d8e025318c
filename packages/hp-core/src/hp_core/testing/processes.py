# SPDX-License-Identifier: Apache-2.0
"""The worker processes of one pool: started, called, watched and killed here."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hp_core.launch.failure import Failure, from_returncode
from hp_core.launch.guard import Guard
from hp_core.launch.ports import free_port
from hp_core.testing.worker import send

_GRACE_S = 2.0  # for the other ranks, once one has failed
_KEPT_OUTPUT_BYTES = 64 * 1024
_BOOT = (
    "import sys, json; fds = json.loads(sys.argv[1]); sys.path[:] = json.loads(sys.argv[2]);"
    "from hp_core.testing.worker import main; main(*fds)"
)
# Left over from a launcher that this process itself may run under.
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Outcome:
    """What came of a call on one rank: a result, a failure (with the exception, if it could travel), or no answer.

    ``stuck`` is the stack of each thread of a rank that did not answer.
    """

    result: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    stuck: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the function returned."""
        return self.failure is None and self.stuck is None


class WorkerGroup:
    """``num_ranks`` processes at the other end of sockets. Starting does not wait for them."""

    def __init__(self, num_ranks: int, environments: Sequence[Mapping[str, str]], init_comm: bool) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._outputs: list[int] = []
        self._stacks: list[int] = []
        self._guard = Guard()
        port = free_port()
        try:
            for rank in range(num_ranks):
                job = {
                    "RANK": rank,
                    "LOCAL_RANK": rank,
                    "WORLD_SIZE": num_ranks,
                    "LOCAL_WORLD_SIZE": num_ranks,
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                    "OMP_NUM_THREADS": 1,
                    "MKL_NUM_THREADS": 1,
                    "TORCH_CPP_LOG_LEVEL": "ERROR",  # without the timeouts that the watchdog means to happen
                    "HP_TEST_INIT_COMM": int(init_comm),
                }
                inherited = {
                    name: value
                    for name, value in os.environ.items()
                    if name not in _NOT_INHERITED and not name.startswith("TORCHELASTIC_")
                }
                self._spawn({**inherited, **{k: str(v) for k, v in job.items()}, **environments[rank]})
        except BaseException:
            self.kill()
            raise

    def _spawn(self, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        # Memory files: no thread has to drain them, no path can be left behind.
        self._outputs.append(os.memfd_create("hp-test-output"))
        self._stacks.append(os.memfd_create("hp-test-stacks"))
        output, stacks = self._outputs[-1], self._stacks[-1]
        numbers = json.dumps([theirs.fileno(), stacks])
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-c", _BOOT, numbers, json.dumps(sys.path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(), stacks),
                start_new_session=True,  # a group of its own: killed with all it started, and spared our Ctrl-C
            )
        )
        self._guard.watch(self._processes[-1].pid)
        theirs.close()

    def is_alive(self) -> bool:
        """Whether every process still runs."""
        return all(process.poll() is None for process in self._processes)

    def call(self, payload: bytes, timeout_s: float) -> list[Outcome]:
        """Send the same pickled call to every rank and wait for the outcomes, in rank order."""
        for output in self._outputs:  # idle now, so what they printed before can go
            os.ftruncate(output, 0)
            os.lseek(output, 0, os.SEEK_SET)
        for connection in self._sockets:
            with contextlib.suppress(OSError):  # it died: seen below
                send(connection, payload)
        return self.wait_for_answers(timeout_s)

    def wait_for_answers(self, timeout_s: float) -> list[Outcome]:
        """Wait for an answer of each rank; after the first failure the others get two seconds."""
        outcomes: dict[int, Outcome] = {}
        buffers = {connection.fileno(): (rank, bytearray()) for rank, connection in enumerate(self._sockets)}
        poll = select.poll()
        for fd in buffers:
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while len(outcomes) < len(self._sockets):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            for fd, _ in poll.poll(left_s * 1000):
                rank, buffer = buffers[fd]
                outcome = self._read(rank, buffer)
                if outcome is None:
                    continue
                poll.unregister(fd)
                outcomes[rank] = outcome
                if not outcome.ok:
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        stuck = [rank for rank in range(len(self._sockets)) if rank not in outcomes]
        outcomes.update({rank: Outcome(stuck=stack) for rank, stack in self._where(stuck).items()})
        return [outcomes[rank] for rank in range(len(self._sockets))]

    def _read(self, rank: int, buffer: bytearray) -> Outcome | None:
        try:
            chunk = self._sockets[rank].recv(1 << 20)
        except OSError:
            chunk = b""
        if not chunk:
            return Outcome(failure=from_returncode(rank, self._returncode(rank)))
        buffer += chunk
        if len(buffer) < 8 or len(buffer) < 8 + int.from_bytes(buffer[:8], "little"):
            return None
        try:
            answer = pickle.loads(memoryview(buffer)[8:])  # noqa: S301  # our own worker's
        except Exception as error:
            raise TypeError(f"the result of rank {rank} cannot be unpickled here: {error}") from error
        if answer[0] == "ok":
            return Outcome(result=answer[1])
        return Outcome(failure=answer[1], error=answer[2])

    def _returncode(self, rank: int) -> int:
        process = self._processes[rank]
        try:
            return process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:  # it closed its socket, and lives
            process.kill()
            return process.wait()

    def _where(self, stuck: Sequence[int]) -> dict[int, str]:
        """Return the stacks of ranks that do not answer; faulthandler writes them even from a call into C."""
        for rank in stuck:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        deadline = time.monotonic() + 1.0
        stacks = dict.fromkeys(stuck, "")
        while time.monotonic() < deadline:
            before = dict(stacks)
            stacks = {rank: _content(self._stacks[rank]) for rank in stuck}
            if all(stacks.values()) and stacks == before:
                break
            time.sleep(0.02)
        none = "(no stack: the process does not answer a signal)"
        return {rank: stack or none for rank, stack in stacks.items()}

    def printed(self, rank: int) -> str:
        """Return what the rank printed since the last call began (the end of it, where it is long)."""
        return _content(self._outputs[rank])

    def kill(self) -> None:
        """Kill the processes and all that they started, and free what the group holds."""
        self._guard.dismiss()  # see [Note: The guard]
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for connection in self._sockets:
            connection.close()
        for fd in (*self._outputs, *self._stacks):
            os.close(fd)
        self._processes, self._sockets, self._outputs, self._stacks = [], [], [], []


def _content(fd: int) -> str:
    size = os.fstat(fd).st_size
    start = max(0, size - _KEPT_OUTPUT_BYTES)
    text = os.pread(fd, _KEPT_OUTPUT_BYTES, start).decode("utf-8", "replace").strip("\n")
    return f"(first {start} bytes left out)\n{text}" if start else text
