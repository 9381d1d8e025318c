# SPDX-License-Identifier: Apache-2.0
"""Which text files a run reads, in an order that does not depend on the file system, and which of them are held out."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hp_core.errors import HPError
from hp_trainer.config.schema import DataConfig

#: Folders of the standard library that are not it, or are test data in odd encodings.
_NOT_STDLIB = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})


class DataError(HPError, ValueError):
    """The text to train on cannot be found or read."""


@dataclass(frozen=True)
class TextFile:
    """One file: where it is, its name below the source (which decides its place), size in bytes and change time."""

    path: Path
    name: str
    num_bytes: int
    mtime_ns: int

    @property
    def order(self) -> bytes:
        """A hash of the name: files are taken in this order, so a capped or held-out part is a fair sample."""
        return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).digest()


def find_files(config: DataConfig) -> list[TextFile]:
    """Return the run's non-empty files in hash order, at most ``data.max_bytes`` of them (but one at least).

    Raises:
        DataError: The path does not exist or cannot be read, the pattern is none, or no non-empty file matches.
    """
    try:
        source, paths = _candidates(config)
        files, unreadable = _stat(paths)
    except OSError as error:
        raise DataError(f"data.path: {config.path} cannot be read: {error.strerror or error}; name another") from error
    if not files:
        why = f" ({len(unreadable)} cannot be read, first {unreadable[0]})" if unreadable else ""
        raise DataError(
            f"data.path: {source} has no non-empty file{why}; put text files there or name another folder or glob"
        )
    files.sort(key=lambda file: file.order)
    if config.max_bytes is None:
        return files
    total, kept = 0, []
    for file in files:
        if total + file.num_bytes <= config.max_bytes:
            kept.append(file)
            total += file.num_bytes
    if not kept:
        smallest = min(file.num_bytes for file in files)
        raise DataError(
            f"data.max_bytes: {config.max_bytes} is less than the smallest of {len(files)} files ({smallest} bytes); "
            "raise it, or null for all"
        )
    return kept


def source_name(config: DataConfig) -> str:
    """Return where the text comes from, for reports."""
    return config.path if config.path is not None else "Python standard library"


def split_heldout(files: list[TextFile], fraction: float) -> tuple[list[TextFile], list[TextFile]]:
    """Split by file: return (training files, held-out files).

    The held-out ones are the last of the hash order, about ``fraction`` of the count, at least one of two or more.
    A single file cannot be split by file: it is returned as training file, and its last part is held out instead
    (see `hp_trainer.data.tokens`).
    """
    if len(files) == 1:
        return files, []
    count = min(max(round(len(files) * fraction), 1), len(files) - 1)
    return files[:-count], files[-count:]


def _candidates(config: DataConfig) -> tuple[str, Iterable[tuple[Path, str]]]:
    if config.path is None:
        root = Path(sysconfig.get_paths()["stdlib"])
        paths = (path for path in root.rglob("*.py") if not _NOT_STDLIB.intersection(path.relative_to(root).parts))
        return f"the standard library in {root}", _named(root, paths)
    root = Path(os.path.expanduser(config.path))
    if root.is_dir():
        paths = (path for path in _glob(root, config.pattern) if not _hidden(path.relative_to(root)))
        return f"folder {config.path} (pattern {config.pattern!r})", _named(root, paths)
    if root.is_file():
        return f"file {config.path}", [(root, root.name)]
    if glob.has_magic(config.path):
        # Not by `glob.glob`, whose ** follows links to folders: around and around in a loop of them.
        first = next(number for number, part in enumerate(root.parts) if glob.has_magic(part))
        base, pattern = Path(*root.parts[:first]), root.parts[first:]
        found = _glob(base, "/".join([*pattern, "*"] if pattern[-1] == "**" else pattern))
        if not any(part.startswith(".") for part in pattern):
            found = (path for path in found if not _hidden(path.relative_to(base)))
        return f"glob {config.path!r}", [(path, path.as_posix()) for path in found]
    raise DataError(
        f"data.path: {config.path} does not exist; give a folder, a file or a glob such as 'texts/**/*.txt'"
    )


def _glob(root: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from root.glob(pattern)
    except (ValueError, NotImplementedError, IndexError) as error:
        raise DataError(
            f"data.pattern or data.path: {pattern!r} is no pattern below a folder: {error}; give one such as '**/*.txt'"
        ) from None


def _stat(paths: Iterable[tuple[Path, str]]) -> tuple[list[TextFile], list[Path]]:
    """Return the non-empty files, and what could not be looked at."""
    files, unreadable = [], []
    for path, name in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue  # a link to nothing, or gone since
        except OSError:  # in a folder that is closed to us, or a link to itself
            unreadable.append(path)
            continue
        if stat.S_ISREG(found.st_mode) and found.st_size:
            files.append(TextFile(path, name, found.st_size, found.st_mtime_ns))
    return files, unreadable


def _named(root: Path, paths: Iterable[Path]) -> list[tuple[Path, str]]:
    return [(path, path.relative_to(root).as_posix()) for path in paths]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
