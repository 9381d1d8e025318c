# SPDX-License-Identifier: Apache-2.0
"""What an object must be like to be provided as a kind: one Protocol each, checked when a name is resolved."""

from __future__ import annotations


def check(kind: str, target: object) -> str:
    """Return what is wrong with ``target`` as a ``kind``, or an empty string."""
    return ""
