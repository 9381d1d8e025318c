# SPDX-License-Identifier: Apache-2.0
"""``hp report RUN_DIR``. Imports typer only; the page's libraries come when the command runs."""

from __future__ import annotations

from pathlib import Path

import typer


def add_report_command(app: typer.Typer) -> None:
    """Add the command ``report`` to ``app`` (called from hp-trainer's ``hp_add_commands``)."""

    @app.command("report")
    def report(run_dir: Path = typer.Argument(help="The folder of a run, such as runs/NAME.")) -> None:  # noqa: B008
        """Write report.html for a run folder, finished or not, and print its path."""
        from hp_trainer.report.write import write_report
        from hp_trainer.run import mark_killed

        mark_killed(run_dir)
        typer.echo(str(write_report(run_dir)))
