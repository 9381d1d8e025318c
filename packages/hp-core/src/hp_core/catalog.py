# SPDX-License-Identifier: Apache-2.0
"""Which package each public name lives in: strings, for messages and for telling first-party plugins apart.

The registry, not this table, decides what a name is; the table is read when a name is not there.
"""

from __future__ import annotations

#: Public names of each package (SPEC.md), including those that are not written yet.
PACKAGES: dict[str, tuple[str, ...]] = {
    "hp-core": ("DeviceMesh", "get_current_mesh", "get_platform", "init_device_mesh"),
}

#: The distributions of this project. Others are third-party, whatever their name begins with.
FIRST_PARTY: frozenset[str] = frozenset(PACKAGES)
