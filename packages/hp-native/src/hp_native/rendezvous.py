# SPDX-License-Identifier: Apache-2.0
"""Memory that processes of one host share without a name: one makes it, the others get its descriptor.

A memfd is in no file system: when the last process that holds it ends, however it ends, it is gone. The descriptor goes
over a Unix socket in the abstract namespace, to processes of the same user that know a secret from the job's store.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence

from hp_core.comm.backend import Store
from hp_core.errors import CommError, CommTimeoutError

_LOOK_S = 0.25
_SECRET_BYTES = 32
_ANSWER_BYTES = 65536


def share_memory(
    store: Store,
    key: str,
    index: int,
    num_members: int,
    total_bytes: int,
    prepare: Callable[[int], None],
    alive: Callable[[], None],
    timeout_s: float,
) -> int:
    """Return a descriptor of a new memory segment that all members share. Every member calls it.

    Args:
        store: The job's.
        key: Names the segment; not used before.
        index: This member's, 0 to ``num_members`` - 1; member 0 makes the segment.
        num_members: How many share it.
        total_bytes: Length of the segment, in which nothing is allocated yet.
        prepare: Called with the descriptor; allocates this member's part. What it raises fails all members.
        alive: Called now and then while waiting; raises when it is in vain.
        timeout_s: How long the others may take.

    Raises:
        CommTimeoutError: a member did not come.
        CommError: the memory is not there, on this or another member.
    """
    end = time.monotonic() + timeout_s
    try:
        if index == 0:
            return _give(store, key, num_members, total_bytes, prepare, alive, end)
        return _take(store, key, index, prepare, alive, end)
    except TimeoutError as exc:
        raise CommTimeoutError(f"shared memory {key}: not all members came within {timeout_s:g} s ({exc})") from exc
    except OSError as exc:
        raise CommError(f"shared memory {key}: {exc}; HP_COMM=c10d does without it") from exc


def _give(
    store: Store,
    key: str,
    num_members: int,
    total_bytes: int,
    prepare: Callable[[int], None],
    alive: Callable[[], None],
    end: float,
) -> int:
    memory = os.memfd_create(f"hp-native {key}", os.MFD_CLOEXEC)
    with contextlib.ExitStack() as stack:
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(os.close, memory)
        os.ftruncate(memory, total_bytes)
        secret = secrets.token_bytes(_SECRET_BYTES)
        name = f"hp-native/{secrets.token_hex(16)}"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind("\0" + name)
        listener.listen(num_members)
        store.set(key, json.dumps([name, secret.hex()]).encode())
        problems = _attempt(prepare, memory)
        members: list[socket.socket] = []
        while len(members) < num_members - 1:
            _readable(listener, alive, end, f"{len(members) + 1} of {num_members} are there")
            peer = stack.enter_context(listener.accept()[0])
            if _uid(peer) != os.geteuid():
                continue
            _readable(peer, alive, end, "a member says nothing")
            if not secrets.compare_digest(peer.recv(_SECRET_BYTES), secret):
                continue
            socket.send_fds(peer, [b"memory"], [memory])
            members.append(peer)
        for peer in members:
            problems += _answer(peer, alive, end)
        verdict = json.dumps(problems).encode()[:_ANSWER_BYTES]
        for peer in members:
            with contextlib.suppress(OSError):  # it has ended: whoever needs it will see that
                peer.send(verdict)
        _raise(key, problems)
        undo.pop_all()
        return memory


def _take(
    store: Store, key: str, index: int, prepare: Callable[[int], None], alive: Callable[[], None], end: float
) -> int:
    found = None
    while found is None:
        if time.monotonic() > end:
            raise TimeoutError("the one that makes it has not begun")
        alive()
        found = store.get(key, _LOOK_S)
    name, secret = json.loads(found)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect("\0" + name)
        peer.send(bytes.fromhex(secret))
        _readable(peer, alive, end, "the descriptor does not come")
        _, descriptors, _, _ = socket.recv_fds(peer, 64, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            raise CommError(f"shared memory {key}: the member that made it has ended")
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptors[0])
            peer.send(json.dumps(_attempt(prepare, descriptors[0], index)).encode()[:_ANSWER_BYTES])
            _raise(key, _answer(peer, alive, end))
            undo.pop_all()
        return descriptors[0]


def _attempt(prepare: Callable[[int], None], memory: int, index: int = 0) -> list[str]:
    try:
        prepare(memory)
    except (CommError, OSError) as exc:
        return [f"member {index}: {exc}"]
    return []


def _answer(peer: socket.socket, alive: Callable[[], None], end: float) -> list[str]:
    _readable(peer, alive, end, "a member does not answer")
    data = peer.recv(_ANSWER_BYTES)
    if not data:
        return ["a member has ended"]
    problems: list[str] = json.loads(data)
    return problems


def _raise(key: str, problems: Sequence[str]) -> None:
    if problems:
        raise CommError(f"shared memory {key}: {problems[0]}")


def _readable(which: socket.socket, alive: Callable[[], None], end: float, what: str) -> None:
    """Wait until ``which`` has something to read."""
    while not select.select([which], [], [], _LOOK_S)[0]:
        alive()
        if time.monotonic() > end:
            raise TimeoutError(what)


def _uid(peer: socket.socket) -> int:
    credentials = struct.calcsize("3i")
    uid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials))[1]
    return uid
