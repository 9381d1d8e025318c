# SPDX-License-Identifier: Apache-2.0
"""``hp doctor``: versions, devices, communication, and what is missing with the command that installs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hp_core.cli.diagnosis import Diagnosis


def add_doctor_command(app: typer.Typer) -> None:
    """Add ``hp doctor`` to the application."""
    app.command("doctor")(doctor)


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Show versions, devices and what is missing.

    Exits with 1 if something that is needed is missing.
    """
    import json

    from hp_core.cli.diagnosis import diagnose

    if as_json:
        from hp_core.cli.plugin_output import only_result_on_stdout

        with only_result_on_stdout() as write:
            diagnosis = diagnose()
            write(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        diagnosis = diagnose()
        _print(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)


def _print(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    width = max(len(label) for lines in diagnosis.sections.values() for label, _ in lines)
    for section, lines in diagnosis.sections.items():
        console.print(f"[bold]{escape(section)}[/]")
        for label, value in lines:
            console.print(f"  [dim]{escape(label.ljust(width))}[/]  {escape(value)}")
    if not diagnosis.missing:
        console.print("\n[green]Nothing is missing.[/]")
    for item in sorted(diagnosis.missing, key=lambda item: not item.required):
        style, word = ("red", "missing") if item.required else ("yellow", "optional")
        console.print(f"\n[{style}]{word}[/]  {escape(item.what)}, for: {escape(item.why)}")
        console.print(f"  {escape(item.command)}")
