# SPDX-License-Identifier: Apache-2.0
"""Start the ranks of a job, watch them, and say what went wrong first: the engine of ``hp run``."""

from __future__ import annotations
