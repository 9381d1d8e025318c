# SPDX-License-Identifier: Apache-2.0
"""``launch(spec)``: run a job from its start to its end, and say how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from hp_core.errors import LaunchError
from hp_core.launch.descendants import adopting_orphans
from hp_core.launch.failure import first_failure
from hp_core.launch.report import failure_report
from hp_core.launch.spec import LaunchSpec

if TYPE_CHECKING:
    from hp_core.launch.agent import Agent

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _EndedBySignal(BaseException):
    """Raised in the main thread by a signal; no ``except Exception`` on its way may stop it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def launch(spec: LaunchSpec) -> int:
    """Start the ranks of this host, wait for them, and return the job's exit code.

    Every rank's output appears line by line, with its rank in front. When a rank fails, all others are ended within
    seconds, with all that they started, and the first failure is printed last. Needs torch. Works from any thread;
    in the main thread SIGINT, SIGTERM and SIGHUP end the job.

    Returns:
        0; the exit code of the rank that failed first (128 + signal number for a killed one); 130 after Ctrl-C, 143
        after SIGTERM.

    Raises:
        LaunchError: the job could not be started.
    """
    spec.check()
    agent: Agent | None = None
    spec = _share_cores(spec)
    with _signals_as_exceptions() as raise_if_signalled, adopting_orphans():
        try:
            agent = _new_agent(spec)
            raise_if_signalled()  # importing torch runs code that swallows whatever is raised
            agent.run()
            agent.close()
        except BaseException as error:
            if agent is not None:
                # A host that is asked to go leaves the rendezvous open to the others.
                agent.close(for_good=not isinstance(error, _EndedBySignal))
            if not isinstance(error, _EndedBySignal):
                raise
            # This is where a preemption would ask the ranks to save, and wait for them, before they are ended.
            name = signal.Signals(error.number).name
            print(f"hp run: {name} received, the ranks were ended", file=sys.stderr, flush=True)
            return 128 + error.number
    if agent.failures:
        print(failure_report(agent.failures, agent.world_size), file=sys.stderr, flush=True)
        return first_failure(agent.failures.values()).exit_code
    return 0


def _new_agent(spec: LaunchSpec) -> Agent:
    try:
        from hp_core.launch.agent import Agent
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise LaunchError("hp run needs torch: pip install 'hp-core[torch]'") from None
    return Agent(spec, mark=uuid.uuid4().hex)


@contextlib.contextmanager
def _signals_as_exceptions() -> Iterator[Callable[[], None]]:
    """Raise in the block where a signal arrives, and again where the block calls what this yields."""
    came: list[int] = []

    def raise_if_signalled() -> None:
        if came:
            raise _EndedBySignal(came[0])

    if threading.current_thread() is not threading.main_thread():
        yield raise_if_signalled
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:  # ending the ranks takes seconds at most: it is not to be interrupted
            signal.signal(each, signal.SIG_IGN)
        came.append(number)
        raise_if_signalled()

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield raise_if_signalled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _share_cores(spec: LaunchSpec) -> LaunchSpec:
    """Share the cores among the ranks: each would otherwise start a thread for every core."""
    name = "OMP_NUM_THREADS"
    if name in os.environ or name in spec.env:
        return spec
    num_cores = len(os.sched_getaffinity(0))
    threads = max(1, num_cores // spec.num_ranks)
    if spec.num_ranks > 1:
        print(
            f"hp run: {name}={threads} for each of {spec.num_ranks} ranks ({num_cores} cores), unless you set it",
            file=sys.stderr,
            flush=True,
        )
    return replace(spec, env={name: str(threads), **spec.env})
