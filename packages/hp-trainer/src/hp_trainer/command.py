# SPDX-License-Identifier: Apache-2.0
"""`hp train`: read the options, start the ranks if nobody did, train. Imports nothing heavy before it must."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hp_core.errors import ConfigError, HPError

if TYPE_CHECKING:
    from hp_trainer.config import TrainConfig

_HELP = frozenset({"-h", "--help"})


@dataclass
class CommandLine:
    """What the user typed: a YAML file, options in order, and whether help was asked for."""

    config: str | None = None
    options: list[tuple[str, str | None]] = field(default_factory=list)
    wants_help: bool = False


def parse(arguments: Sequence[str]) -> CommandLine:
    """Take the command line apart without knowing the keys: ``--key value``, ``--key=value``, ``-n N``, one file.

    Raises:
        ConfigError: Two files, or a short option that does not exist.
    """
    line = CommandLine()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in _HELP:
            line.wants_help = True
        elif word.startswith(("--", "-n")):
            name, equals, value = word.partition("=")
            if name.startswith("-n") and not name.startswith("--") and len(name) > 2:
                name, equals, value = "-n", "=", word[2:].removeprefix("=")
            key = "launch.ranks" if name in ("-n", "--ranks") else name[2:]
            if equals:
                line.options.append((key, value))
            elif rest and not rest[0].startswith("--") and rest[0] not in _HELP:
                line.options.append((key, rest.pop(0)))
            else:
                line.options.append((key, None))
        elif word.startswith("-"):
            raise ConfigError(
                f"unknown option {word!r}; options are -n RANKS, -h and --KEY VALUE (hp train --help lists all keys)"
            )
        elif line.config is None:
            line.config = word
        else:
            raise ConfigError(
                f"given two configuration files, {line.config!r} and {word!r}; give one, and keys as --KEY VALUE"
            )
    return line


def main(arguments: Sequence[str]) -> int:
    """Run `hp train` with ``arguments`` and return the exit status; a user's mistake is one line on stderr."""
    if "RANK" in os.environ:
        # A rank's failure is reported by its launcher, with the rank's number.
        return _main(list(arguments))
    try:
        return _main(list(arguments))
    except HPError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        return 130


def _main(arguments: list[str]) -> int:
    line = parse(arguments)
    if line.wants_help:
        from hp_trainer.config.listing import help_text

        print(help_text(), end="")
        return 0
    from hp_trainer.config import load_config

    config = load_config(line.config, line.options)
    if "RANK" in os.environ or config.launch.ranks == 1:
        train(config)
        return 0
    return _launch(config, arguments)


def train(config: TrainConfig) -> None:
    """Train on this rank."""
    from hp_trainer.trainer import LLMTrainer

    LLMTrainer(config).train()


def _launch(config: TrainConfig, arguments: list[str]) -> int:
    """Do the set-up that needs no ranks, start them on this host, and see to the run folder if they were killed."""
    from hp_core.launch.engine import launch
    from hp_core.launch.spec import LaunchSpec
    from hp_trainer.callbacks import check_callbacks
    from hp_trainer.prepare import prepare
    from hp_trainer.run import now, run_folder
    from hp_trainer.run_lock import RunLock

    RunLock(run_folder(config)).check_free()
    check_callbacks(config)
    prepare(config)
    environment = {} if config.launch.threads is None else {"OMP_NUM_THREADS": str(config.launch.threads)}
    status: int | None = None
    started = now()
    try:
        # Rank 0 draws the live table, so its output is passed through as it is.
        spec = LaunchSpec(
            "hp_trainer", arguments, num_ranks=config.launch.ranks, is_module=True, env=environment, console_rank=0
        )
        status = launch(spec)
    finally:
        if status != 0:
            _complete_run_folder(config, status, started)
    return status


def _complete_run_folder(config: TrainConfig, status: int | None, started: str) -> None:
    """Write what rank 0 could not: killed, or torn down with the job, it may leave its run `running` or reportless."""
    from hp_trainer.run import mark_failed, run_folder
    from hp_trainer.run_lock import RunLock

    folder = run_folder(config)
    if RunLock(folder).is_held():
        return  # rank 0 was refused: another job trains there
    if mark_failed(folder, _reason(status), since=started) and not (folder / "report.html").is_file():
        from hp_trainer.report import write_report

        write_report(folder)


def _reason(status: int | None) -> str:
    """Return what a job's exit status says: which rank it was, only the launcher's output tells."""
    if status is None:
        return "the job could not be started"
    if status in (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP):
        return "interrupted"
    names = {128 + number: number.name for number in signal.Signals}
    how = f"was killed by {names[status]}" if status in names else "failed"
    return f"a rank {how} (exit status {status}); the output of hp train names it"
