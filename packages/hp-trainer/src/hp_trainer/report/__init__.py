# SPDX-License-Identifier: Apache-2.0
"""The report page of a run: one HTML file made from the files in the run folder, readable offline.

``data`` reads the folder, ``series`` and ``format`` are numbers in and numbers or text out, ``charts`` makes
Plotly figures as plain dictionaries, ``page`` puts everything through the template, ``write`` puts it on disk.
"""

from __future__ import annotations

from hp_trainer.report.write import ReportError, write_report

__all__ = ["ReportError", "write_report"]
