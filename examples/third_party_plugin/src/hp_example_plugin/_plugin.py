# SPDX-License-Identifier: Apache-2.0
"""What this distribution offers. It loads in every process that uses a plugin, so it imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hp_core.plugins import hookimpl
from hp_core.registry import Provide

if TYPE_CHECKING:
    import typer


@hookimpl
def hp_provide() -> list[Provide]:
    """Offer a schedule, a placement style and a storage; each is imported when somebody asks for its name."""
    return [
        Provide("schedule", "limited-gpipe", "hp_example_plugin.schedule:limited_gpipe"),
        Provide("parallel_style", "whole-parameters", "hp_example_plugin.style:WholeParameters"),
        Provide("storage", "sqlite", "hp_example_plugin.storage:SqliteStorage"),
    ]


@hookimpl
def hp_report_lines() -> list[tuple[str, str]]:
    """Add the version of SQLite to ``hp doctor`` and to reports."""
    import sqlite3

    return [("sqlite", sqlite3.sqlite_version)]


@hookimpl
def hp_add_commands(app: typer.Typer) -> None:
    """Add ``hp timeline``."""

    @app.command("timeline")
    def timeline(num_stages: int, num_micro_batches: int, max_in_flight: int = 0) -> None:
        """Draw the limited GPipe schedule, one line a rank."""
        from hp_example_plugin.schedule import limited_gpipe

        for rank, actions in enumerate(limited_gpipe(num_stages, num_micro_batches, max_in_flight or None)):
            print(f"rank {rank}:", " ".join(f"{op}{micro_batch}" for op, _, micro_batch in actions))
