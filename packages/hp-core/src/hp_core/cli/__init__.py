# SPDX-License-Identifier: Apache-2.0
"""The ``hp`` command. Importing this imports nothing; what a command needs is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``hp``.

    Args:
        argv: Arguments without the program's name; None takes those of the process.

    Raises:
        SystemExit: always, with 0, or 2 after an error of the user (one line on stderr), or what the command says.
        Exception: what is neither an `HPError` nor an error in the arguments is a bug and keeps its traceback.
    """
    import sys

    from hp_core.cli.app import run_app

    run_app(sys.argv[1:] if argv is None else list(argv))
