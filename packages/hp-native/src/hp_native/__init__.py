# SPDX-License-Identifier: Apache-2.0
"""Collectives through shared memory between the ranks of one host; see ``docs/native.md``."""

__version__ = "0.1.0"
