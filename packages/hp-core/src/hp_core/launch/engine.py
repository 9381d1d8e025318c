# SPDX-License-Identifier: Apache-2.0
"""``launch(spec)``: run a job from its start to its end, and say how it ended."""

from __future__ import annotations

import os
import signal
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from hp_core.errors import LaunchError
from hp_core.launch.console import say
from hp_core.launch.descendants import adopting_orphans
from hp_core.launch.failure import first_failure
from hp_core.launch.report import failure_report
from hp_core.launch.signals import EndedBySignal, StopSignals, stop_signals
from hp_core.launch.spec import LaunchSpec
from hp_core.platform.host_cores import num_cores

if TYPE_CHECKING:
    from hp_core.launch.agent import Agent

_LAST_WORDS_S = 1.0  # for the reader of our standard error, when a signal ends the job


def launch(spec: LaunchSpec) -> int:
    """Start the ranks of this host, wait for them, and return the job's exit code.

    Every rank's output appears line by line, with its rank in front. When a rank fails, all others are ended within
    seconds, with all that they started, and the first failure is printed last. Needs torch. Works from any thread;
    in the main thread SIGINT, SIGTERM and SIGHUP end the job.

    Returns:
        0; the exit code of the rank that failed first (128 + signal number for a killed one); 1 when all ended well,
        but some of their output could not be written; 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        LaunchError: the job could not be started.
    """
    spec.check()
    with stop_signals() as signals, adopting_orphans():
        agent: Agent | None = None
        try:
            spec = _share_cores(spec)
            with signals.held():  # it imports torch
                agent = _new_agent(spec, signals)
            agent.run()
            agent.close()
            return _say_how_it_went(agent)
        except BaseException as error:
            ended = isinstance(error, EndedBySignal)
            if agent is not None:
                # A host that is asked to go leaves the rendezvous open to the others.
                agent.close(for_good=not ended)
            if not isinstance(error, EndedBySignal):
                raise
            # This is where a preemption would ask the ranks to save, and wait for them, before they are ended.
            lost = f"; output is lost: {agent.output_lost}" if agent is not None and agent.output_lost else ""
            name = signal.Signals(error.number).name
            say(f"hp run: {name} received, the ranks were ended{lost}", within_s=_LAST_WORDS_S)
            return 128 + error.number


def _say_how_it_went(agent: Agent) -> int:
    """Print the failure, if there is one, and return the exit code."""
    if agent.failures:
        say(failure_report(agent.failures, agent.world_size))
        return first_failure(agent.failures.values()).exit_code
    if agent.output_lost:
        say(f"error: the ranks ended well, but output of theirs is lost: {agent.output_lost}")
        return 1
    return 0


def _new_agent(spec: LaunchSpec, signals: StopSignals) -> Agent:
    try:
        from hp_core.launch.agent import Agent
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise LaunchError(
            "hp run needs torch: pip install 'hp-core[torch]'; start ranks of MindSpore without it, each with RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT set"
        ) from None
    return Agent(spec, uuid.uuid4().hex, signals)


def _share_cores(spec: LaunchSpec) -> LaunchSpec:
    """Share the cores among the ranks: each would otherwise start a thread for every core."""
    name = "OMP_NUM_THREADS"
    if name in os.environ or name in spec.env:
        return spec
    cores = num_cores()
    threads = max(1, cores // spec.num_ranks)
    if spec.num_ranks > 1:
        say(f"hp run: {name}={threads} for each of {spec.num_ranks} ranks ({cores} cores), unless you set it")
    return replace(spec, env={name: str(threads), **spec.env})
