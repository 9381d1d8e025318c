# SPDX-License-Identifier: Apache-2.0
"""The functions of ``native/include/hp_native.h`` with their types, and its errors as exceptions."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import c_char_p, c_double, c_int, c_int32, c_ssize_t, c_uint64, c_void_p
from typing import Any, NoReturn

from hp_core.errors import CommError
from hp_native.library import load

#: What the C ABI calls dtypes and reduce operations.
DTYPES = {
    name: number
    for number, name in enumerate(
        ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")
    )
}
OPS = {name: number for number, name in enumerate(("sum", "avg", "min", "max", "product", "band", "bor", "bxor"))}

_NO_MEMORY = -5
_PEER = (-3, -4)


class GroupLayout(ctypes.Structure):
    """``hpn_group_layout``."""

    _fields_ = [
        ("total_bytes", c_uint64),
        ("control_bytes", c_uint64),
        ("staging_offset", c_uint64),
        ("staging_bytes", c_uint64),
    ]


class SymmetricLayout(ctypes.Structure):
    """``hpn_symmetric_layout``."""

    _fields_ = [
        ("total_bytes", c_uint64),
        ("signal_bytes", c_uint64),
        ("part_offset", c_uint64),
        ("part_bytes", c_uint64),
    ]


class Message(ctypes.Structure):
    """``hpn_message``."""

    _fields_ = [("send", c_int32), ("peer", c_int32), ("tag", c_uint64), ("data", c_void_p), ("size", c_uint64)]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "hpn_error": (c_char_p, []),
    "hpn_error_code": (c_int, []),
    "hpn_allocate": (c_int, [c_int, c_uint64, c_uint64]),
    "hpn_available_memory": (c_uint64, []),
    "hpn_domain_bytes": (c_uint64, [c_int]),
    "hpn_has_ended": (c_int, [c_int, c_int]),
    "hpn_domain_open": (c_void_p, [c_void_p, c_int, c_int, c_void_p, c_void_p, c_int]),
    "hpn_domain_abort": (None, [c_void_p]),
    "hpn_domain_close": (None, [c_void_p]),
    "hpn_group_plan": (GroupLayout, [c_int, c_int, c_uint64]),
    "hpn_group_open": (c_void_p, [c_void_p, c_void_p, c_int, c_int, c_int, c_void_p, c_uint64]),
    "hpn_group_close": (None, [c_void_p]),
    "hpn_group_fail": (None, [c_void_p, c_char_p]),
    "hpn_all_reduce": (c_ssize_t, [c_void_p, c_void_p, c_uint64, c_int, c_int]),
    "hpn_all_gather": (c_ssize_t, [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p]),
    "hpn_reduce_scatter": (c_ssize_t, [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_int, c_int]),
    "hpn_all_to_all": (c_ssize_t, [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_void_p]),
    "hpn_wire_all_reduce": (c_ssize_t, [c_void_p, c_void_p, c_uint64, c_int, c_int]),
    "hpn_wire_reduce_scatter": (c_ssize_t, [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_int, c_int]),
    "hpn_wire_all_gather": (c_ssize_t, [c_void_p, c_void_p, c_void_p, c_uint64, c_void_p, c_int]),
    "hpn_broadcast": (c_ssize_t, [c_void_p, c_void_p, c_uint64, c_int]),
    "hpn_barrier": (c_ssize_t, [c_void_p]),
    "hpn_batch": (c_ssize_t, [c_void_p, c_void_p, c_int]),
    "hpn_wait": (c_int, [c_ssize_t, c_double]),
    "hpn_test": (c_int, [c_ssize_t]),
    "hpn_leave": (None, [c_ssize_t]),
    "hpn_drop": (None, [c_ssize_t]),
    "hpn_symmetric_plan": (SymmetricLayout, [c_int, c_int, c_uint64]),
    "hpn_symmetric_open": (c_void_p, [c_void_p, c_uint64, c_void_p, c_uint64]),
    "hpn_symmetric_close": (None, [c_void_p]),
    "hpn_put": (c_int, [c_void_p, c_int, c_uint64, c_void_p, c_uint64]),
    "hpn_get": (c_int, [c_void_p, c_int, c_uint64, c_void_p, c_uint64]),
    "hpn_signal": (c_int, [c_void_p, c_int, c_int, c_uint64, c_int]),
    "hpn_read_signal": (c_int, [c_void_p, c_int, c_void_p]),
    "hpn_signal_senders": (c_int, [c_void_p, c_int, c_void_p]),
    "hpn_wait_signal": (c_int, [c_void_p, c_int, c_uint64, c_double]),
}


@functools.cache
def native() -> Any:
    """Return the library with the types of its functions set.

    Raises:
        PluginError: the library is not there.
    """
    library = load()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


# A signal (Ctrl-C) is handled between two slices.
_SLICE_S = 0.2


def wait_in_slices(wait: Callable[..., int], arguments: tuple[Any, ...], timeout_s: float) -> int:
    """Return what ``wait(*arguments, seconds)`` returns, called again while that is 0 and there is time left."""
    while True:
        done = wait(*arguments, timeout_s if timeout_s < _SLICE_S else _SLICE_S)
        timeout_s -= _SLICE_S
        if done or timeout_s <= 0:
            return done


class NativeError(RuntimeError):
    """What the library reports; the layer above adds the call and the ranks."""


class PeerError(ConnectionError):
    """Another rank has ended or given up: what happens here is only the consequence."""


def raise_last() -> NoReturn:
    """Raise the calling thread's last failure.

    Raises:
        CommError: there is not enough memory.
        PeerError: another rank has ended or given up.
        NativeError: anything else.
    """
    library = native()
    text = library.hpn_error().decode()
    code = library.hpn_error_code()
    if code in _PEER:
        raise PeerError(text)
    if code == _NO_MEMORY:
        raise CommError(f"{text}; free memory, raise the limit of the memory cgroup, or use HP_COMM=c10d")
    raise NativeError(text)
