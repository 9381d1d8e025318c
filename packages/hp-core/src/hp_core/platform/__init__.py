# SPDX-License-Identifier: Apache-2.0
"""The framework behind HyperParallel: ``get_platform()`` and its Protocols. Importing this imports no framework."""

from __future__ import annotations

from hp_core.platform.select import get_platform

__all__ = ["get_platform"]
