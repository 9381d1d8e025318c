# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import PathLike, fspath


class SqliteStorage:
    """A storage whose files are rows of a SQLite database: one file to copy, every write a transaction.

    Several processes may use it at once; a reader sees a file as it was before a write or after it, never half.
    A file may have up to 1 GB (SQLite's limit on one value).

    Args:
        path: The database; made at the first write.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = fspath(path)

    def read(self, name: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Return ``nbytes`` (None: all) of a file from ``offset``.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self._connect() as db:
            # What substr makes of an empty file is NULL.
            query = "SELECT coalesce(substr(data, ?, ?), x'') FROM files WHERE name = ?"
            row = db.execute(query, (offset + 1, 2**31 - 1 if nbytes is None else nbytes, name)).fetchone()
        if row is None:
            raise FileNotFoundError(f"{name!r} is not in {self.path}")
        return bytes(row[0])

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole, in place of one of the same name."""
        with self._connect() as db:
            db.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (name, memoryview(data)))

    def list(self, prefix: str = "") -> list[str]:
        """Return the names that begin with ``prefix``, sorted."""
        with self._connect() as db:
            rows = db.execute(
                "SELECT name FROM files WHERE substr(name, 1, ?) = ? ORDER BY name", (len(prefix), prefix)
            )
            return [name for (name,) in rows]

    def delete(self, name: str) -> None:
        """Delete a file.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self._connect() as db:
            if db.execute("DELETE FROM files WHERE name = ?", (name,)).rowcount == 0:
                raise FileNotFoundError(f"{name!r} is not in {self.path}")

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60.0)) as db, db:
            db.execute("CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, data BLOB NOT NULL)")
            yield db
