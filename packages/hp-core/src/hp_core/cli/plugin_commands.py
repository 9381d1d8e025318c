# SPDX-License-Identifier: Apache-2.0
"""Commands that plugins add to ``hp``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command_name

from hp_core import plugins
from hp_core.catalog import COMMANDS, where_to_get
from hp_core.errors import PluginError, PluginWarning


def add_plugin_commands(app: typer.Typer, built_in: Sequence[str]) -> None:
    """Let each plugin add its commands to ``app``; one that fails is warned of and the others go on.

    A command of ours whose package is missing gets a hidden stand-in that says what to install.

    Raises:
        PluginError: under ``HP_PLUGINS_STRICT=1``, when a plugin fails or takes a name that is taken.
    """
    manager = plugins.manager()
    taken = dict.fromkeys(built_in, "hp-core")
    for name, plugin in manager.list_name_plugin():
        if plugin is None:
            continue
        others = [other for other in manager.get_plugins() if other is not plugin]
        commands, groups = list(app.registered_commands), list(app.registered_groups)
        try:
            manager.subset_hook_caller("hp_add_commands", others)(app=app)
            for command in _new_commands(app, commands, groups):
                if command in taken:
                    raise PluginError(
                        f"plugin {name!r} adds the command {command!r}, which {taken[command]} has already"
                    )
                taken[command] = name
        except PluginError as exc:
            if plugins.settings().strict:
                raise
            app.registered_commands[:], app.registered_groups[:] = commands, groups
            warnings.warn(str(exc), PluginWarning, stacklevel=2)
    for command, distribution in COMMANDS.items():
        if command not in taken:
            _add_stand_in(app, command, distribution)


def _new_commands(app: typer.Typer, commands: Sequence[Any], groups: Sequence[Any]) -> list[str]:
    names = [
        info.name or get_command_name(info.callback.__name__)
        for info in app.registered_commands[len(commands) :]
        if info.callback is not None
    ]
    for group in app.registered_groups[len(groups) :]:
        name = group.name or (group.typer_instance.info.name if group.typer_instance else None)
        if isinstance(name, str):
            names.append(name)
    return names


def _add_stand_in(app: typer.Typer, command: str, distribution: str) -> None:
    context = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

    @app.command(command, hidden=True, context_settings=context)
    def stand_in() -> None:
        for info in plugins.plugin_infos():
            if plugins.same_distribution(info.distribution, distribution):
                raise PluginError(f"hp {command} comes from {info.describe()}") from info.error
        raise PluginError(f"hp {command} comes with {distribution}{where_to_get(distribution)}")
