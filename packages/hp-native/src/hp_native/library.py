# SPDX-License-Identifier: Apache-2.0
"""Loads ``libhp_native.so``, whose C ABI is ``native/include/hp_native.h``.

Importing this module loads nothing.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import hp_native
from hp_core.errors import PluginError
from hp_native import build_info

#: The part of the build that the library holds.
PART = "symmetric_memory"
#: The number that `hpn_abi_version` must return: ``HPN_ABI_VERSION`` of the header.
ABI_VERSION = 2
#: Builds and installs again. pip's cache may hold the wheel without the library, an index one of another machine.
REBUILD = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary hp-native hp-native"

_NAME = "libhp_native.so"


def path() -> Path:
    """Return where the library is.

    Raises:
        PluginError: it was left out of this installation, or is not there.
    """
    info = build_info.read()
    if PART not in info.parts:
        reason = info.left_out.get(PART, f"only {', '.join(info.parts) or 'nothing'} was asked for (HP_NATIVE_PARTS)")
        raise _error(f"hp-native was installed without its C++ library: {reason}", "when that is mended", REBUILD)
    found = build_info.find(_NAME)
    if found is None:
        folders = " or ".join(hp_native.__path__)
        raise _error(f"{_NAME} was built but is no longer in {folders}", "to get it back", REBUILD)
    return found


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library, loaded once in a process; its calls release the GIL.

    Takes about a millisecond at the first call. Nothing is communicated, and no thread is started.

    Raises:
        PluginError: the library was left out of this installation, cannot be loaded on this machine, or is of another
            version than these Python files. The message ends with the command that mends it, which is ``fix``, too.
    """
    file = path()
    try:
        library = ctypes.CDLL(str(file))
        library.hpn_abi_version.restype = ctypes.c_uint32
        library.hpn_build_info.restype = ctypes.c_char_p
    except (OSError, AttributeError) as exc:
        raise _error(f"{file} cannot be loaded ({exc})", "to build it on this machine", REBUILD) from exc
    library.hpn_abi_version.argtypes = library.hpn_build_info.argtypes = []
    found = library.hpn_abi_version()
    if found != ABI_VERSION:
        raise _error(
            f"{file} has ABI {found}, but the Python files of hp-native {hp_native.__version__} need ABI {ABI_VERSION}",
            "to have both from one version",
            REBUILD,
        )
    return library


def state() -> str:
    """Return in one line whether the library is there, for ``hp doctor``; never raises for what a user can mend."""
    try:
        library = load()
    except PluginError as exc:
        return str(exc).rpartition("; ")[0]  # without the fix
    text: bytes = library.hpn_build_info()
    return text.decode().partition(" ")[2]


def _error(problem: str, purpose: str, command: str) -> PluginError:
    error = PluginError(f"{problem}; {purpose}: {command}")
    error.fix = command
    return error
