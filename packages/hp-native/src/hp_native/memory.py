# SPDX-License-Identifier: Apache-2.0
"""A mapped segment, where it begins, and what the limits of a process keep from it."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource

#: By error number: the limit that it may be, what it limits, and what raises it.
_LIMITS = {
    errno.EMFILE: ("RLIMIT_NOFILE", "open files", "ulimit -n"),
    errno.ENOMEM: ("RLIMIT_AS", "address space", "ulimit -v"),
    errno.EFBIG: ("RLIMIT_FSIZE", "the size of a file", "ulimit -f"),
}


class Mapping:
    """A whole segment of shared memory, mapped until the last use of it goes.

    Args:
        descriptor: Of the segment; stays the caller's.

    Raises:
        OSError: this process may map no more.
    """

    def __init__(self, descriptor: int) -> None:
        #: The memory, as something that exports a buffer.
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        view = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(view)
        del view  # an export would keep the mapping from being closed


def explain(error: OSError) -> str:
    """Return what ``error`` says, and which limit of this process it may come from."""
    name, what, command = _LIMITS.get(error.errno or 0, ("", "", ""))
    if not name:
        return str(error)
    limit = resource.getrlimit(getattr(resource, name))[0]
    if limit == resource.RLIM_INFINITY:
        return str(error)
    unit = "" if error.errno == errno.EMFILE else " bytes"
    return f"{error}: this process's limit of {what} is {limit}{unit} ({name}); raise it ({command})"
