# SPDX-License-Identifier: Apache-2.0
"""``hp plugins list``: every installed plugin, its state, and what it offers."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hp_core.plugins.info import PluginInfo

_STYLES = {"active": "green", "incompatible": "yellow", "broken": "red", "blocked": "dim"}


def add_plugins_commands(app: typer.Typer) -> None:
    """Add ``hp plugins`` to the application."""
    group = typer.Typer(help="Look at the installed plugins.", no_args_is_help=True, rich_markup_mode=None)

    @group.callback()
    def _group() -> None:
        """Look at the installed plugins."""

    group.command("list")(list_plugins)
    app.add_typer(group, name="plugins")


def list_plugins(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """List every plugin with its state and what it offers.

    Exits with 1 if one of them is not well.
    """
    import json

    if as_json:
        from hp_core.cli.plugin_output import only_result_on_stdout

        with only_result_on_stdout() as write:
            infos, problems, well = _look()
            found = {"plugins": [_as_dict(info) for info in infos], "problems": problems, "ok": well}
            write(json.dumps(found, indent=2))
    else:
        infos, problems, well = _look()
        _print_table(infos, problems)
    raise typer.Exit(0 if well else 1)


def _look() -> tuple[list[PluginInfo], list[str], bool]:
    """Return the plugins, what is wrong with settings and names, and whether all is well."""
    from hp_core import plugins, registry

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", plugins.PluginWarning)  # all of it is in the list
        infos = plugins.plugin_infos()
    problems = plugins.plugin_complaints() + [str(conflict) for conflict in registry.conflicts()]
    return infos, problems, not problems and all(info.well for info in infos)


def _as_dict(info: PluginInfo) -> dict[str, Any]:
    offers = [
        {
            "kind": offer.kind,
            "name": offer.name,
            "target": offer.target,
            "platform": offer.platform,
            "priority": offer.priority,
            "replaces": offer.replaces,
        }
        for offer in info.offers
    ]
    return {
        "name": info.name,
        "distribution": info.distribution,
        "version": info.version,
        "module": info.value,
        "state": info.state,
        "why": info.why,
        "offers": offers,
        "hooks": list(info.hooks),
    }


def _print_table(infos: list[PluginInfo], problems: list[str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("Plugin", "Distribution", "Version", "State", "Offers", box=None, pad_edge=False, header_style="bold")
    for info in infos:
        state = f"[{_STYLES[info.state]}]{info.state}[/]"
        table.add_row(
            escape(info.name), escape(info.distribution), escape(info.version), state, escape(_describe_offers(info))
        )
    console.print(table)
    for info in infos:
        if info.why:
            style = _STYLES[info.state]
            console.print(f"\n[{style}]{info.state}[/] {escape(f'{info.name}: {info.why}')}", soft_wrap=True)
    for problem in problems:
        console.print(f"\n[red]problem[/] {escape(problem)}", soft_wrap=True)


def _describe_offers(info: PluginInfo) -> str:
    by_kind: dict[str, list[str]] = {}
    for offer in info.offers:
        name = offer.name + (f" ({offer.platform})" if offer.platform else "")
        by_kind.setdefault(offer.kind, []).append(name)
    lines = [f"{kind}: {', '.join(names)}" for kind, names in by_kind.items()]
    hooks = [hook for hook in info.hooks if hook != "hp_provide"]
    if hooks:
        lines.append(f"hooks: {', '.join(hooks)}")
    return "\n".join(lines) or "-"
