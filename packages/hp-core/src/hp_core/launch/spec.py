# SPDX-License-Identifier: Apache-2.0
"""What is to be launched."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hp_core.errors import LaunchError
from hp_core.launch.ports import port_is_free


@dataclass(frozen=True)
class LaunchSpec:
    """A job: what every rank runs, and how the ranks find each other.

    Attributes:
        target: a script's path, or a module's name when ``is_module``.
        args: the arguments it gets.
        num_ranks: ranks on this host.
        is_module: run ``target`` as ``python -m`` does.
        num_nodes: ``"2"``, or ``"1:4"`` for an elastic job.
        rdzv_backend: rendezvous of several hosts, by torch's names (``c10d``, ``etcd-v2``, …).
        rdzv_endpoint: ``host:port`` where the hosts meet; ``""`` for a job on this host only.
        rdzv_id: name of the job, the same on all its hosts.
        rdzv_conf: further settings of the rendezvous, by torch's names: ``"join_timeout=60,read_timeout=30"``.
        node_rank: number of this host, from 0, which the backend ``static`` needs (0 is where the endpoint is); the
            others number the hosts themselves.
        max_restarts: how often all ranks are started again after a failure.
        master_port: port of the job's store on this host; chosen by the kernel when ``None``.
        env: environment variables for the ranks, on top of ours.
        console_rank: local rank whose output goes to our terminal as it is, without a prefix (for live displays).
    """

    target: str
    args: Sequence[str] = ()
    num_ranks: int = 1
    is_module: bool = False
    num_nodes: str = "1"
    rdzv_backend: str = "c10d"
    rdzv_endpoint: str = ""
    rdzv_id: str = ""
    rdzv_conf: str = ""
    node_rank: int | None = None
    max_restarts: int = 0
    master_port: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    console_rank: int | None = None

    def nodes(self) -> tuple[int, int]:
        """Return the least and the largest number of hosts."""
        low, _, high = self.num_nodes.partition(":")
        try:
            bounds = int(low), int(high or low)
        except ValueError:
            bounds = 0, 0
        if not 1 <= bounds[0] <= bounds[1]:
            raise LaunchError(f"--nnodes {self.num_nodes}: give a number of hosts, or MIN:MAX, from 1")
        return bounds

    def rendezvous_settings(self) -> dict[str, str]:
        """Return `rdzv_conf` by name."""
        settings = {}
        for part in filter(None, self.rdzv_conf.split(",")):
            name, _, value = (text.strip() for text in part.partition("="))
            if not name or not value:
                raise LaunchError(f"--rdzv-conf {self.rdzv_conf}: give NAME=VALUE, several with commas between")
            settings[name] = value
        return settings

    def check(self) -> None:
        """Raise if the job cannot start; looks at this host only, and imports no framework.

        Raises:
            LaunchError: one line: what was given and the fix.
        """
        if self.num_ranks < 1:
            raise LaunchError(f"-n {self.num_ranks}: a job needs at least 1 rank")
        if self.max_restarts < 0:
            raise LaunchError(f"--max-restarts {self.max_restarts}: give 0 or more")
        _, most = self.nodes()
        if most > 1 and not self.rdzv_endpoint:
            raise LaunchError(
                f"--nnodes {self.num_nodes} needs --rdzv-endpoint HOST:PORT, the same on every host, where they meet"
            )
        self.rendezvous_settings()
        if self.rdzv_endpoint and self.rdzv_backend == "static":
            if self.node_rank is None or not 0 <= self.node_rank < most:
                raise LaunchError(
                    f"--rdzv-backend static needs --node-rank, another on each host, from 0 to {most - 1}"
                    + ("" if self.node_rank is None else f", not {self.node_rank}")
                )
        elif self.node_rank is not None:
            raise LaunchError(
                f"--node-rank {self.node_rank} is for --rdzv-backend static with an --rdzv-endpoint: leave it out, "
                "hosts are numbered as they come"
            )
        if not self.target.strip():
            what = "module" if self.is_module else "script"
            raise LaunchError(
                f"the name of the {what} is empty ({self.target!r}): give "
                + ("a module's name after -m" if self.is_module else "the path of a Python file, or -m MODULE")
            )
        if self.is_module:
            top = self.target.partition(".")[0]
            if not _module_is_there(top):
                raise LaunchError(
                    f"no module named {top!r}: install it, or run from the folder that has it"
                    + (f" (a script is run without -m: hp run {self.target})" if Path(self.target).is_file() else "")
                )
        elif not Path(self.target).is_file():
            what = "is a folder" if Path(self.target).is_dir() else "does not exist"
            raise LaunchError(f"script {self.target!r} {what}: give the path of a Python file, or -m MODULE")
        if self.master_port is not None:
            if self.rdzv_endpoint:
                raise LaunchError(
                    "--master-port is for jobs on one host; with --rdzv-endpoint the port is part of that"
                )
            if not 1 <= self.master_port <= 65535:
                raise LaunchError(f"--master-port {self.master_port}: a port is a number from 1 to 65535")
            if not port_is_free(self.master_port):
                raise LaunchError(
                    f"--master-port {self.master_port} is in use: give another, or none to have a free one chosen"
                )


def _module_is_there(name: str) -> bool:
    if name in sys.builtin_module_names:
        return True
    return importlib.machinery.PathFinder.find_spec(name, [os.getcwd(), *sys.path]) is not None
