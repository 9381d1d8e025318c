# SPDX-License-Identifier: Apache-2.0
"""A mapped segment, and where it begins."""

from __future__ import annotations

import ctypes
import mmap
import os


class Mapping:
    """A whole segment of shared memory, mapped until the last use of it goes.

    Args:
        descriptor: Of the segment; stays the caller's.
    """

    def __init__(self, descriptor: int) -> None:
        #: The memory, as something that exports a buffer.
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        view = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(view)
        del view  # an export would keep the mapping from being closed
