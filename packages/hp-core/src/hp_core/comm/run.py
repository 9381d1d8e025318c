# SPDX-License-Identifier: Apache-2.0
"""Starting a collective: for the functions of this package, and for those that a backend has beyond them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hp_core.comm.backend import Handle
from hp_core.comm.types import Call, Work
from hp_core.errors import CommError

_IN_PLACE = frozenset({"all_reduce", "broadcast"})


def run_call(call: Call, start: Callable[..., Handle], args: tuple[Any, ...], async_op: bool) -> Any:
    """Start ``call`` and return its result, or with ``async_op`` its Work.

    Args:
        call: From ``group.begin``; every rank of the group makes the same.
        start: Called with ``args`` and the call's timeout; returns the backend's handle.
        args: What it takes; of a call that works in place, first the tensor.
        async_op: Return a Work.

    Raises:
        CommError: it failed; the message names the call and the ranks.
        CommTimeoutError: it did not complete in time.
    """
    try:
        handle = start(*args, call.timeout_s)
    except CommError:
        call.group.refused(call)
        raise
    except Exception as exc:
        call.group.session.fail(call, exc)
    except BaseException:
        # Interrupted: what was started is in nobody's hands, and the tensors are about to go. Nothing may touch them.
        call.group.channel.abort()
        raise
    work = Work(call, handle)
    if not async_op:
        return work.wait()
    call.group.session.in_flight.start(call, handle, args[0] if call.kind in _IN_PLACE else None)
    handle.leave()
    return work
