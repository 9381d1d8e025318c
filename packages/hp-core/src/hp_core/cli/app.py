# SPDX-License-Identifier: Apache-2.0
"""The application behind ``hp``: built-in commands, and those of plugins when one of them may be meant."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from hp_core import __version__
from hp_core.cli.doctor import add_doctor_command
from hp_core.cli.plugins import add_plugins_commands
from hp_core.errors import HPError

#: Commands that need no plugin to be found.
BUILT_IN = ("run", "plugins", "doctor")


def run_app(argv: Sequence[str]) -> None:
    """Run the command that ``argv`` says; see `hp_core.cli.main`."""
    with warnings.catch_warnings():
        _show_plugin_warnings_as_lines()
        try:
            app = make_app(plugins=_may_need_plugins(argv))
            app(args=list(argv), prog_name="hp")
        except HPError as exc:
            sys.stdout.flush()
            print(f"error: {' '.join(str(exc).split())}", file=sys.stderr)
            sys.exit(2)


def make_app(*, plugins: bool) -> typer.Typer:
    """Return the application, with the commands of the plugins or without.

    Raises:
        PluginError: in strict mode, for any plugin in trouble.
    """
    # Without rich's help pages: importing rich costs as much as everything else that `hp --help` does.
    app = typer.Typer(
        name="hp",
        help="HyperParallel: train a model written for one device on many.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
        ] = False,
    ) -> None:
        """Take the options that come before the command."""

    from hp_core.launch.command import add_run_command

    add_run_command(app)
    add_plugins_commands(app)
    add_doctor_command(app)
    if plugins:
        from hp_core.cli.plugin_commands import add_plugin_commands

        add_plugin_commands(app, BUILT_IN)
    _keep_summaries_whole(app)
    return app


def _keep_summaries_whole(app: typer.Typer) -> None:
    """Let ``hp --help`` wrap the first line of a command's docstring, which typer would cut at the line's end."""
    for command in app.registered_commands:
        text = command.help or (command.callback.__doc__ if command.callback else None)
        if text and text.strip() and not command.short_help:
            command.short_help = text.strip().splitlines()[0]


def _show_version(value: bool) -> None:
    if value:
        print(f"hp {__version__}")
        raise typer.Exit


def _may_need_plugins(argv: Sequence[str]) -> bool:
    """Return False when a built-in command or ``--version`` is asked for: loading plugins takes time."""
    if "_HP_COMPLETE" in os.environ:
        return True
    command = next((word for word in argv if not word.startswith("-")), None)
    return command not in BUILT_IN and "--version" not in argv[:1]


def _show_plugin_warnings_as_lines() -> None:
    from hp_core.errors import PluginWarning

    show = warnings.showwarning

    def show_line(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if issubclass(category, PluginWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            show(message, category, *args, **kwargs)

    warnings.showwarning = show_line
