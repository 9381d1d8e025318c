# SPDX-License-Identifier: Apache-2.0
"""The process of rank 0 hosts the job's store: a dictionary behind a socket, one thread a connection."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref

from hp_core.comm.tcp_wire import (
    ABSENT,
    CHECK,
    FOUND,
    GET,
    HELLO,
    SET,
    Frame,
    receive_exactly,
    receive_frame,
    send_frame,
)

_HELLO_S = 10.0
_BACKLOG = 1024


class TcpStoreServer:
    """Serves until ``close()`` or the end of the process.

    Args:
        host: Address of this host to listen at.
        port: Of it; 0 for any.

    Raises:
        OSError: it cannot listen there.
    """

    def __init__(self, host: str, port: int) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._closed = False
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(_BACKLOG)
        except BaseException:
            self._listener.close()
            raise
        #: Where it listens.
        self.port: int = self._listener.getsockname()[1]
        _servers.add(self)
        threading.Thread(target=self._accept, name="hp-store", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._closed:
                    connection.close()
                    return
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="hp-store-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # OSError: the peer has gone, or is none of ours. ValueError: bytes that are no text.
        with connection, contextlib.suppress(OSError, ValueError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_HELLO_S)
            if receive_exactly(connection, len(HELLO)) == HELLO:
                connection.sendall(HELLO)
                connection.settimeout(None)
                while True:
                    send_frame(connection, self._answer(receive_frame(connection)))
        with self._changed:
            self._connections.discard(connection)

    def _answer(self, question: Frame) -> Frame:
        with self._changed:
            if question.kind == GET:
                end = time.monotonic() + question.wait_s
                while question.key not in self._values and not self._closed:
                    left_s = end - time.monotonic()
                    if left_s <= 0 or not self._changed.wait(left_s):
                        break
            elif question.kind != CHECK:
                if question.kind == SET or question.key not in self._values:
                    self._values[question.key] = question.value
                    self._changed.notify_all()
                if question.kind == SET:
                    return Frame(FOUND)
            value = self._values.get(question.key)
        if value is None:
            return Frame(ABSENT)
        return Frame(FOUND, value=b"" if question.kind == CHECK else value)

    def close(self) -> None:
        """Hang up on everybody; a second call does nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            connections = list(self._connections)
        for one in (self._listener, *connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that is blocked in it
        self._listener.close()

    def after_fork(self) -> None:
        """Let go of the parent's sockets: held here, they would outlive it, and nobody would see it end."""
        for one in (self._listener, *self._connections):
            one.close()


_servers: weakref.WeakSet[TcpStoreServer] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_servers):
        server.after_fork()


os.register_at_fork(after_in_child=_after_fork)
