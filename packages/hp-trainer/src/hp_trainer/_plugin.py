# SPDX-License-Identifier: Apache-2.0
"""What hp-trainer offers: the commands `hp train` and `hp report`, the trainer's public names, its callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hp_core.plugins import hookimpl
from hp_core.provide import Provide

if TYPE_CHECKING:
    import typer


@hookimpl
def hp_provide() -> list[Provide]:
    """Offer `LLMTrainer`, `TrainConfig` and the built-in callbacks."""
    return [
        Provide("export", "LLMTrainer", "hp_trainer.trainer:LLMTrainer"),
        Provide("export", "TrainConfig", "hp_trainer.config:TrainConfig"),
        Provide("callback", "metrics", "hp_trainer.metrics:MetricsWriter"),
        Provide("callback", "progress", "hp_trainer.progress:Progress"),
    ]


@hookimpl
def hp_add_commands(app: typer.Typer) -> None:
    """Add `hp train` and `hp report`."""
    import typer as _typer

    # The keys are those of the configuration's schema: they are read, checked and listed there, not by typer.
    @app.command(
        "train",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
        short_help="Fine-tune or train a language model.",
    )
    def train(context: _typer.Context) -> None:
        from hp_trainer.command import main

        raise _typer.Exit(main(context.args))

    # typer resolves the annotation by name in this module, where typer is imported for type checkers only.
    train.__annotations__ = {"context": _typer.Context, "return": None}

    from hp_trainer.report.command import add_report_command

    add_report_command(app)
