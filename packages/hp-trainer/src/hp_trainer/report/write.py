# SPDX-License-Identifier: Apache-2.0
"""Writing ``report.html`` into a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from hp_core.errors import HPError


class ReportError(HPError, ValueError):
    """There is no run folder to report on, or the page cannot be written there."""


def write_report(run_dir: Path) -> Path:
    """Write ``run_dir/report.html`` from the files in ``run_dir`` and return its path.

    Takes any state of a run: done, failed at any step, still running, without evaluation. The page is one file of about
    5 MB (Plotly's script is most of it) that loads nothing else. Called by one rank; communicates nothing. The file is
    replaced at once: a reader sees the old page or the new one.

    Raises:
        ReportError: ``run_dir`` is not a run folder, or the disk is full or read-only.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir} is not a folder; give the folder of a run, such as runs/NAME, that hp train made")
    if not any((run_dir / name).is_file() for name in ("run.json", "metrics.jsonl")):
        raise ReportError(
            f"{run_dir} holds neither run.json nor metrics.jsonl; give the folder of a run, such as runs/NAME, "
            "that hp train made"
        )
    # Here, not above: jinja2 and the tables cost what `hp --help` must not.
    from hp_trainer.report.data import read_run
    from hp_trainer.report.page import render

    page = render(read_run(run_dir))
    target = run_dir / "report.html"
    draft = run_dir / f".report.{os.getpid()}.tmp"
    try:
        # A file's name may hold bytes that are no UTF-8; Python keeps them as halves of characters, which none has.
        draft.write_text(page, encoding="utf-8", errors="replace")
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ReportError(
            f"{target} cannot be written: {error.strerror or error}; free space or make the folder writable"
        ) from error
    return target
