# SPDX-License-Identifier: Apache-2.0
"""Memory that processes of one host share without a name: one makes it, the others get its descriptor.

A memfd is in no file system: when the last process that holds it ends, however it ends, it is gone. The descriptor goes
over a Unix socket in the abstract namespace, to processes of the same user that know a secret from the job's store.

[Note: One verdict] All members get the memory, mapped, or all raise for the same reason. Whoever fails says why in the
store and closes its sockets; whoever waits for it looks there, and the first reason counts. Whoever succeeds tells the
one that made the memory and waits for it to say that all have: from then on nobody can fail any more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from hp_core.comm.backend import Store
from hp_core.errors import CommError, CommTimeoutError
from hp_native.memory import Mapping, explain

_LOOK_S = 0.1
#: What a member that closed its socket may take to be seen as ended, or to say why.
_SILENCE_S = 2.0
_GRACE_S = 1.0
_HELLO = struct.Struct("32si")  # the secret, and who it is
_DONE = b"done"


class _ToldError(Exception):
    """What a member said in the store: whether its time was over, and why it failed."""

    def __init__(self, late: bool, reason: str) -> None:
        super().__init__(reason)
        self.late = late


class _Meeting:
    """One member's view of the making of a segment.

    Args:
        store: The job's.
        key: Names the segment; not used before.
        ranks: The members' world ranks.
        index: This member's.
        alive: Raises when waiting is in vain.
        timeout_s: How long all may take.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        ranks: Sequence[int],
        index: int,
        alive: Callable[[], None],
        timeout_s: float,
    ) -> None:
        self._store = store
        self._key = key
        self._failed = f"{key}/failed"
        self._ranks = ranks
        self._me = ranks[index]
        self._alive = alive
        # The first is the one that knows who is missing: so its time is over before that of the others.
        self._end = time.monotonic() + timeout_s + (_GRACE_S if index > 0 else 0.0)

    def fail(self, reason: str, late: bool = False) -> CommError:
        """Tell the others why this member failed; return what all raise."""
        reason = f"rank {self._me}: {reason}"
        with contextlib.suppress(Exception):  # the store ended with its host, which the others see by themselves
            late, reason = json.loads(self._store.set_once(self._failed, json.dumps([late, reason]).encode()))
        return self.error(late, reason)

    def error(self, late: bool, reason: str) -> CommError:
        """Return the error for this rank."""
        return (CommTimeoutError if late else CommError)(f"rank {self._me}: no shared memory {self._key}: {reason}")

    def look(self, waits_for: str, ask: bool = True) -> None:
        """Raise where waiting is in vain; ``ask``: the store too."""
        self._alive()
        if ask and self._store.check(self._failed) and (verdict := self._store.get(self._failed, 1.0)):
            raise _ToldError(*json.loads(verdict))
        if time.monotonic() > self._end:
            raise TimeoutError(waits_for)

    def await_readable(self, which: socket.socket, waits_for: str, ask: bool = False) -> None:
        """Return when ``which`` has something to read, which a connection has when it is closed, too."""
        poll = select.poll()
        poll.register(which, select.POLLIN)
        while not poll.poll(_LOOK_S * 1000):
            self.look(waits_for, ask)

    @contextlib.contextmanager
    def connection_to(self, rank: int) -> Iterator[None]:
        """Turn an end of the connection into the reason for it."""
        try:
            yield
        except ConnectionError:
            end = time.monotonic() + _SILENCE_S
            while time.monotonic() < end:
                self.look(f"rank {rank} went away")
                time.sleep(0.01)
            raise CommError(f"rank {rank} went away and did not say why") from None

    def await_done(self, peer: socket.socket, rank: int, waits_for: str) -> None:
        """Wait until ``rank`` says that all is well."""
        with self.connection_to(rank):
            self.await_readable(peer, waits_for)
            if peer.recv(len(_DONE)) != _DONE:
                raise ConnectionResetError

    def give(self, total_bytes: int, prepare: Callable[[int], None]) -> tuple[int, Mapping]:
        """Make the segment and hand it out."""
        with contextlib.ExitStack() as stack:
            undo = stack.enter_context(contextlib.ExitStack())
            memory = os.memfd_create(f"hp-native {self._key}", os.MFD_CLOEXEC)
            undo.callback(os.close, memory)
            os.ftruncate(memory, total_bytes)
            secret = secrets.token_bytes(32)
            name = f"hp-native/{secrets.token_hex(16)}"
            listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            listener.bind("\0" + name)
            listener.listen(len(self._ranks))
            self._store.set(self._key, json.dumps([name, secret.hex()]).encode())
            prepare(memory)
            mapping = Mapping(memory)
            undo.callback(mapping.memory.close)
            peers: dict[int, socket.socket] = {}
            while missing := [rank for rank in self._ranks if rank != self._me and rank not in peers]:
                self.await_readable(listener, f"ranks {missing} did not come", ask=True)
                peer = stack.enter_context(listener.accept()[0])
                if _uid(peer) != os.geteuid():
                    continue
                self.await_readable(peer, f"one of ranks {missing} says nothing")
                hello = peer.recv(_HELLO.size)
                if len(hello) != _HELLO.size:
                    continue
                said, rank = _HELLO.unpack(hello)
                if secrets.compare_digest(said, secret):
                    with self.connection_to(rank):
                        socket.send_fds(peer, [_DONE], [memory])
                    peers[rank] = peer
            for rank, peer in peers.items():
                self.await_done(peer, rank, f"rank {rank} has not prepared its part")
            for peer in peers.values():
                with contextlib.suppress(OSError):  # it has ended: whoever needs it will see that
                    peer.send(_DONE)
            undo.pop_all()
            return memory, mapping

    def take(self, prepare: Callable[[int], None]) -> tuple[int, Mapping]:
        """Get the segment of the first member."""
        maker = self._ranks[0]
        while (found := self._store.get(self._key, _LOOK_S)) is None:
            self.look(f"rank {maker} has not made the memory")
        name, secret = json.loads(found)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer, contextlib.ExitStack() as undo:
            with self.connection_to(maker):
                peer.connect("\0" + name)
                peer.send(_HELLO.pack(bytes.fromhex(secret), self._me))
                self.await_readable(peer, f"the descriptor of rank {maker} does not come")
                said, descriptors, flags, _ = socket.recv_fds(peer, len(_DONE), 1, socket.MSG_CMSG_CLOEXEC)
                for descriptor in descriptors:
                    undo.callback(os.close, descriptor)
                if said != _DONE:
                    raise ConnectionResetError
            if not descriptors:
                # The kernel drops a descriptor that finds no place, and says only that something was cut off.
                number = errno.EMFILE if flags & socket.MSG_CTRUNC else errno.EBADF
                raise OSError(number, f"no descriptor came from rank {maker} ({os.strerror(number)})")
            prepare(descriptors[0])
            mapping = Mapping(descriptors[0])
            undo.callback(mapping.memory.close)
            with self.connection_to(maker):
                peer.send(_DONE)
            self.await_done(peer, maker, f"not all of ranks {list(self._ranks)} have prepared their part")
            undo.pop_all()
            return descriptors[0], mapping


def share_memory(
    store: Store,
    key: str,
    ranks: Sequence[int],
    index: int,
    total_bytes: int,
    prepare: Callable[[int], None],
    alive: Callable[[], None],
    timeout_s: float,
) -> tuple[int, Mapping]:
    """Return a descriptor of a new memory segment that all members share, and its mapping. Every member calls it.

    Args:
        store: The job's.
        key: Names the segment; not used before.
        ranks: The members' world ranks; the first makes the segment.
        index: This member's in ``ranks``.
        total_bytes: Length of the segment, in which nothing is allocated yet.
        prepare: Called with the descriptor; allocates this member's part. What it raises fails all members.
        alive: Called now and then while waiting; raises when it is in vain.
        timeout_s: How long the others may take.

    Raises:
        CommTimeoutError: a member did not come.
        CommError: the memory is not there, on this or another member; the reason is the same on all.
    """
    meeting = _Meeting(store, key, ranks, index, alive, timeout_s)
    try:
        return meeting.give(total_bytes, prepare) if index == 0 else meeting.take(prepare)
    except _ToldError as exc:
        raise meeting.error(exc.late, str(exc)) from None
    except TimeoutError as exc:
        raise meeting.fail(f"not all ranks came within {timeout_s:g} s ({exc})", late=True) from exc
    except OSError as exc:
        raise meeting.fail(f"{explain(exc)}; HP_COMM=c10d does without shared memory") from exc
    except BaseException as exc:
        error = meeting.fail(str(exc) or type(exc).__name__)
        if not isinstance(exc, Exception):
            raise
        raise error from exc


def _uid(peer: socket.socket) -> int:
    credentials = struct.calcsize("3i")
    uid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials))[1]
    return uid
