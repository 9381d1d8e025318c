# SPDX-License-Identifier: Apache-2.0
"""The command line of ``hp run``. Importing this imports typer and nothing heavier."""

from __future__ import annotations

from typing import Annotated, Optional

import typer


def add_run_command(app: typer.Typer) -> None:
    """Add ``run`` to the ``hp`` application."""

    @app.command(
        "run",
        # Everything after the target belongs to the target, options too.
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
        options_metavar="[OPTIONS]",
        short_help="Run a script or a module on several ranks.",
    )
    def run(
        context: typer.Context,
        target: Annotated[str, typer.Argument(metavar="SCRIPT|MODULE", help="A Python file; with -m, a module.")],
        num_ranks: Annotated[int, typer.Option("-n", "--num-ranks", help="Ranks on this host.")] = 1,
        module: Annotated[bool, typer.Option("-m", "--module", help="Run a module, as python -m does.")] = False,
        nnodes: Annotated[str, typer.Option(help="Hosts of the job: N, or MIN:MAX.")] = "1",
        rdzv_endpoint: Annotated[str, typer.Option(help="HOST:PORT where several hosts meet.")] = "",
        rdzv_backend: Annotated[str, typer.Option(help="How they meet (torch's names).")] = "c10d",
        rdzv_id: Annotated[str, typer.Option(help="Name of the job, the same on every host.")] = "",
        rdzv_conf: Annotated[str, typer.Option(metavar="K=V,…", help="Further settings of how they meet.")] = "",
        node_rank: Annotated[
            Optional[int],  # noqa: UP045  # as below
            typer.Option(help="Number of this host, for --rdzv-backend static."),
        ] = None,
        max_restarts: Annotated[int, typer.Option(help="Starts again after a failure.")] = 0,
        master_port: Annotated[
            Optional[int],  # noqa: UP045  # typer evaluates it, and Python 3.10 must, too
            typer.Option(help="Port of the job's store; a free one is chosen by default."),
        ] = None,
    ) -> None:
        """Run a script or a module on several ranks: hp run -n 2 train.py --lr 0.1."""
        from hp_core.launch.engine import launch
        from hp_core.launch.spec import LaunchSpec

        spec = LaunchSpec(
            target=target,
            args=tuple(context.args),
            num_ranks=num_ranks,
            is_module=module,
            num_nodes=nnodes,
            rdzv_backend=rdzv_backend,
            rdzv_endpoint=rdzv_endpoint,
            rdzv_id=rdzv_id,
            rdzv_conf=rdzv_conf,
            node_rank=node_rank,
            max_restarts=max_restarts,
            master_port=master_port,
        )
        raise typer.Exit(launch(spec))
