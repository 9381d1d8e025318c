# SPDX-License-Identifier: Apache-2.0
"""torch's elastic agent with our processes: rendezvous, ranks and restarts are its; start, watch and end are ours.

Its own process handling tails log files and waits 30 s for a worker that ignores SIGTERM.
"""

from __future__ import annotations

import logging
import os
import sys
import uuid
from typing import Any

import torch.distributed
import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from torch.distributed.elastic.agent.server.api import (
    DEFAULT_ROLE,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError, RendezvousParameters

from hp_core.errors import LaunchError
from hp_core.launch.console import say
from hp_core.launch.failure import Failure
from hp_core.launch.processes import RankProcesses
from hp_core.launch.report import failure_report
from hp_core.launch.signals import StopSignals
from hp_core.launch.spec import LaunchSpec

_POLL_S = 0.1


class Agent(SimpleElasticAgent):
    """Runs one host's part of a job.

    Attributes:
        failures: of the last attempt, by global rank.
        world_size: ranks of the whole job, once they have met.
        output_lost: why output of the ranks could not be written, where some was lost.
    """

    def __init__(self, spec: LaunchSpec, mark: str, signals: StopSignals) -> None:
        self._launch = spec
        self._signals = signals
        self._mark = mark
        self._ranks: RankProcesses | None = None
        self.failures: dict[int, Failure] = {}
        self.world_size = spec.num_ranks
        self.output_lost: str | None = None
        super().__init__(_worker_spec(spec))

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run to the end; see `failures` for how it went.

        Raises:
            LaunchError: the hosts did not meet, or the store could not be opened.
        """
        try:
            result: RunResult = super().run(role)
        except (RendezvousError, torch.distributed.DistError) as error:
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            raise LaunchError(
                f"the ranks did not meet: {reason}; check that every host has the same options and reaches the endpoint"
            ) from error
        return result

    def close(self, *, for_good: bool = True) -> None:
        """End the ranks; ``for_good``: and the rendezvous, for all hosts."""
        self._shutdown()
        if for_good:
            self._worker_group.spec.rdzv_handler.shutdown()

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        if self.failures:
            say(failure_report(self.failures, self.world_size))
            say(f"hp run: starting again ({self._remaining_restarts} more left)")
            self.failures = {}
        shared = {
            "GROUP_RANK": worker_group.group_rank,
            "GROUP_WORLD_SIZE": worker_group.group_world_size,
            "ROLE_NAME": spec.role,
            "LOCAL_WORLD_SIZE": spec.local_world_size,
            "MASTER_ADDR": worker_group.master_addr,
            "MASTER_PORT": worker_group.master_port,
            "TORCHELASTIC_RESTART_COUNT": spec.max_restarts - self._remaining_restarts,
            "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": spec.rdzv_handler.use_agent_store,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            # The watchdog's lookups in the store time out by design, and torch would print a warning each time.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        }
        environments = {}
        for worker in worker_group.workers:
            own = {
                "RANK": worker.global_rank,
                "LOCAL_RANK": worker.local_rank,
                "WORLD_SIZE": worker.world_size,
                "ROLE_RANK": worker.role_rank,
                "ROLE_WORLD_SIZE": worker.role_world_size,
            }
            environments[worker.global_rank] = {name: str(value) for name, value in {**shared, **own}.items()}
            self.world_size = worker.world_size
        self._ranks = RankProcesses(self._launch, environments, self._mark, self._signals.is_ending)
        pids = self._ranks.pids
        return {worker.local_rank: pids[worker.global_rank] for worker in worker_group.workers}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._ranks is not None
        self._signals.raise_if_any()
        failures = self._ranks.poll()
        if failures is None:
            return RunResult(state=WorkerState.HEALTHY)
        if not failures:
            done: dict[int, Any] = dict.fromkeys(worker.global_rank for worker in worker_group.workers)
            self._shutdown()
            return RunResult(state=WorkerState.SUCCEEDED, return_values=done)
        self.failures = dict(failures)
        pids = self._ranks.pids
        local_ranks = {worker.global_rank: worker.local_rank for worker in worker_group.workers}
        return RunResult(
            state=WorkerState.FAILED,
            failures={
                rank: ProcessFailure(local_ranks[rank], pids[rank], failure.exit_code, error_file="")
                for rank, failure in failures.items()
            },
        )

    # torch passes other arguments to these two from version to version.
    def _stop_workers(self, worker_group: WorkerGroup, *args: Any, **kwargs: Any) -> None:
        self._shutdown()

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self.output_lost = self.output_lost or self._ranks.output_lost


def _worker_spec(spec: LaunchSpec) -> WorkerSpec:
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    fewest, most = spec.nodes()
    alone = not spec.rdzv_endpoint
    backend, endpoint, options = spec.rdzv_backend, spec.rdzv_endpoint, dict[str, object](spec.rendezvous_settings())
    if spec.master_port is not None:
        # Only this backend gives the ranks the very port that was asked for.
        backend, endpoint = "static", f"127.0.0.1:{spec.master_port}"
        options["rank"] = 0
    elif alone:
        # Port 0: the kernel chooses when the store binds, so no other process can come first.
        backend, endpoint = "c10d", "127.0.0.1:0"
        options["is_host"] = "true"
    elif spec.node_rank is not None:
        options["rank"] = spec.node_rank
    parameters = RendezvousParameters(
        backend=backend,
        endpoint=endpoint,
        run_id=spec.rdzv_id or (str(uuid.uuid4()) if alone else "hp"),
        min_nodes=fewest,
        max_nodes=most,
        local_addr="127.0.0.1" if alone else None,
        **options,
    )
    try:
        handler = rendezvous_registry.get_rendezvous_handler(parameters)
    except (RendezvousConnectionError, RendezvousError, ValueError) as error:
        raise LaunchError(
            f"no rendezvous at {endpoint} by --rdzv-backend {backend}: {error}"
            "; check that the first host runs and that its port can be reached"
        ) from error
    return WorkerSpec(
        role="default",
        local_world_size=spec.num_ranks,
        rdzv_handler=handler,
        entrypoint=sys.executable,
        args=(spec.target, *spec.args),
        max_restarts=spec.max_restarts,
        monitor_interval=_POLL_S,
        local_addr="127.0.0.1" if alone else None,
    )
