# SPDX-License-Identifier: Apache-2.0
"""A run and its folder: what is running, and the `run.json` that says so."""

from __future__ import annotations

import json
import os
import traceback
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hp_core.errors import ConfigError, HPError
from hp_trainer.cache import DISK_FULL
from hp_trainer.config import TrainConfig, dump_yaml
from hp_trainer.run_lock import Holder, RunLock


class TrainingError(HPError, RuntimeError):
    """The training itself cannot go on, or its results cannot be written."""


@dataclass
class Run:
    """A run as callbacks see it.

    Attributes:
        config: The resolved configuration.
        dir: The run folder, the same path on all ranks; only rank 0 writes there.
        rank: This rank.
        world_size: Number of ranks.
        info: What `run.json` holds; complete on rank 0.
        step: Steps done so far.
        has_folder: Whether the folder is this run's, made by `start`; an error before that leaves what is there alone.
    """

    config: TrainConfig
    dir: Path
    rank: int = 0
    world_size: int = 1
    info: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    has_folder: bool = False
    _lock: RunLock | None = field(default=None, init=False, repr=False)
    _aside: Path | None = field(default=None, init=False, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this rank writes the run folder and the terminal."""
        return self.rank == 0

    @property
    def num_steps(self) -> int:
        """How many steps the run is to take."""
        return self.config.train.steps

    def start(self) -> None:
        """Make the run folder with `config.yaml` and a first `run.json` (rank 0); an earlier run is kept aside.

        Rank 0 holds the folder's lock until `close`.

        Raises:
            ConfigError: Another process trains in that folder, it holds something that is no run, or cannot be made.
        """
        self.info.update(
            name=self.config.run.name,
            status="running",
            started=now(),
            world_size=self.world_size,
            seed=self.config.run.seed,
        )
        if self.is_main:
            self._lock = RunLock(self.dir)
            self._aside = make_folder(self.dir, self._lock)
            self.has_folder = True
            (self.dir / "config.yaml").write_text(dump_yaml(self.config), encoding="utf-8")
            self.save()

    def finish(self, status: str, error: BaseException | None = None) -> None:
        """Write the final status, ``done`` or ``failed``, to `run.json` (rank 0)."""
        self.info.update(status=status, ended=now())
        if error is not None:
            self.info["error"] = describe(error, self.rank)
        if self.is_main:
            self.save()

    def give_back(self) -> bool:
        """Put the earlier run of this name back (rank 0) where this one failed before its first step.

        A mistake in the model or the data shall not push a good run aside.

        Returns:
            Whether it did; then this run has no folder any more.
        """
        if self._aside is None or "setup_s" in self.info:
            return False
        for name in _FIRST_FILES:
            (self.dir / name).unlink(missing_ok=True)
        self.dir.rmdir()
        self._aside.rename(self.dir)
        self.has_folder = False
        return True

    def close(self) -> None:
        """Let others have the folder; nothing is written any more."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def save(self) -> None:
        """Write `run.json`; a reader sees the old or the new one, never half of it."""
        write_info(self.dir, self.info)


def run_folder(config: TrainConfig) -> Path:
    """Return the folder of a run."""
    return Path(os.path.expanduser(config.run.output_dir)) / config.run.name


#: What a run writes before its first step, and all that one leaves which fails before it.
_FIRST_FILES = ("config.yaml", "run.json", "report.html")


def make_folder(folder: Path, lock: RunLock) -> Path | None:
    """Make an empty run folder; one with an earlier run in it is renamed to ``NAME.1``, ``NAME.2``, … first.

    An earlier run that failed before its first step is not kept.

    Args:
        folder: The folder to make.
        lock: Its lock, which is taken before anything is looked at.

    Returns:
        Where the earlier run is now; None where there was none.

    Raises:
        ConfigError: Another process trains in the folder, it holds something that is no run, or cannot be made.
    """
    try:
        aside = None
        folder.parent.mkdir(parents=True, exist_ok=True)
        killed = lock.dead_holder()
        lock.acquire()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            if not (folder / "run.json").is_file():
                raise ConfigError(
                    f"run.output_dir: {folder} exists and is no run folder; name another run.name or run.output_dir"
                )
            if never_began(folder):
                for file in folder.iterdir():
                    file.unlink()
            else:
                if killed:
                    mark_failed(folder, killed_reason(killed))
                aside = _free_name(folder)
                folder.rename(aside)
        folder.mkdir(exist_ok=True)
        return aside
    except OSError as error:
        raise ConfigError(
            f"run.output_dir: cannot make {folder}: {error.strerror or error}; name another folder"
        ) from error


def _free_name(folder: Path) -> Path:
    """Return the first of ``NAME.1``, ``NAME.2``, … that is not there."""
    number = 1
    while folder.with_name(f"{folder.name}.{number}").exists():
        number += 1
    return folder.with_name(f"{folder.name}.{number}")


def never_began(folder: Path) -> bool:
    """Return whether a run folder holds nothing but the word that the run failed before its first step."""
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    only_first = all(file.name in _FIRST_FILES and file.is_file() for file in folder.iterdir())
    return only_first and isinstance(info, dict) and info.get("status") == "failed" and "setup_s" not in info


def write_info(folder: Path, info: dict[str, Any]) -> None:
    """Write ``info`` as `run.json` in one step."""
    temporary = folder / f".run.json.{os.getpid()}"
    try:
        temporary.write_text(json.dumps(info, indent=1), encoding="utf-8")
        temporary.replace(folder / "run.json")
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def mark_failed(folder: Path, reason: str, *, since: str = "") -> bool:
    """Turn a `run.json` that still says ``running`` into ``failed``: rank 0 was killed and could not do it itself.

    Args:
        folder: The run folder; it may be missing, or hold an earlier run, which is left alone.
        reason: What `run.json` is to say.
        since: When the job was started, as `now` gives it.

    Returns:
        Whether the job's run is there and failed.
    """
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(info, dict) or str(info.get("started", "")) < since:
        return False
    if info.get("status") == "running":
        info.update(status="failed", ended=now(), error={"message": reason})
        write_info(folder, info)
    return bool(info.get("status") == "failed")


def mark_killed(folder: Path) -> bool:
    """Turn ``running`` into ``failed`` where the process that ran it left its lock behind; return whether it did.

    For who comes later (`hp report`): a run that was killed together with its launcher has no one else to say so.
    """
    killed = RunLock(folder.resolve()).dead_holder()
    try:
        return killed is not None and mark_failed(folder, killed_reason(killed))
    except OSError:  # somebody else's folder, for one: whoever asks gets to know what they asked for all the same
        return False


def killed_reason(holder: Holder) -> str:
    """Return what `run.json` is to say of a run whose process is gone."""
    return f"the process of rank 0 ({holder}) ended without a word: it was killed, or its machine went down"


def disk_full_error(error: BaseException, folder: Path) -> TrainingError | None:
    """Return the one-line error for a disk that filled up while the run wrote its metrics; None for any other error."""
    if not isinstance(error, OSError) or error.errno not in DISK_FULL:
        return None
    place = error.filename or folder
    return TrainingError(f"cannot write to {place}: {error.strerror}; free some space or set run.output_dir")


def describe(error: BaseException, rank: int) -> dict[str, Any]:
    """Return what `run.json` and the report say of a failure: ``message``, ``rank``, ``type``, ``traceback``.

    An interruption has a message only; an error for users, whose message says all, has no traceback.
    """
    if isinstance(error, KeyboardInterrupt):
        return {"message": "interrupted"}
    entry = {"message": first_line(error), "rank": rank, "type": type(error).__name__}
    if not isinstance(error, HPError):
        entry["traceback"] = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    return entry


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class's name where there is none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def one_line(error: BaseException) -> str:
    """Return an exception's message with its lines joined, cut where it is long; its class's name where it is empty."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else f"{text[:400]}…"


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
