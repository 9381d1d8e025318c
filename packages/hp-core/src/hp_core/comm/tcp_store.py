# SPDX-License-Identifier: Apache-2.0
"""The job's store where there is no torch: plain sockets to the process of rank 0, which hosts it."""

from __future__ import annotations

import errno
import socket
import threading
import time

from hp_core.comm.backend import Launch
from hp_core.comm.store_address import cannot_listen, no_answer, port_is_taken, store_address
from hp_core.comm.tcp_server import TcpStoreServer
from hp_core.comm.tcp_wire import (
    CHECK,
    FOUND,
    GET,
    HELLO,
    SET,
    SET_ONCE,
    Frame,
    receive_exactly,
    receive_frame,
    send_frame,
)
from hp_core.errors import CommError

#: How long an answer may take, beyond what was asked to be waited for.
_ANSWER_S = 30.0
_PAUSE_S = 0.05

# A server outlives shutdown(): a rank that comes up again must not meet the old one's end.
_servers: dict[tuple[str, int], TcpStoreServer] = {}


class TcpStore:
    """A connection to the store; one question at a time.

    Args:
        host: Where the server is.
        port: Of it.
        prefix: Goes before each key.
        timeout_s: How long connecting may take.

    Raises:
        TimeoutError: nobody answered in time; it says at which address.
        ConnectionError: another program answered.
    """

    def __init__(self, host: str, port: int, prefix: str, timeout_s: float) -> None:
        self._where = f"{host}:{port}"
        self._host, self._port, self._prefix, self._timeout_s = host, port, prefix, timeout_s
        self._lock = threading.Lock()
        self._connection = _connect(host, port, timeout_s)

    def set(self, key: str, value: bytes) -> None:
        """Set ``key``."""
        self._ask(Frame(SET, key, value))

    def set_once(self, key: str, value: bytes) -> bytes:
        """Set ``key`` unless it is set, atomically; return the value it has then."""
        return self._ask(Frame(SET_ONCE, key, value)).value

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Return the value of ``key``, or None when it is not set within ``timeout_s``."""
        answer = self._ask(Frame(GET, key, wait_s=max(timeout_s, 0.0)))
        return answer.value if answer.kind == FOUND else None

    def check(self, key: str) -> bool:
        """Return whether ``key`` is set."""
        return self._ask(Frame(CHECK, key)).kind == FOUND

    def clone(self) -> TcpStore:
        """Return a connection of its own."""
        return TcpStore(self._host, self._port, self._prefix, self._timeout_s)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, question: Frame) -> Frame:
        """Return the server's answer.

        Raises:
            TimeoutError: there is none; the connection is of no use any more.
            ConnectionError: the server has gone.
        """
        limit_s = question.wait_s + _ANSWER_S
        key = f"{self._prefix}/{question.key}"
        with self._lock:
            try:
                self._connection.settimeout(limit_s)
                send_frame(self._connection, question._replace(key=key))
                return receive_frame(self._connection)
            except TimeoutError:
                self._connection.close()  # a late answer must not be taken for that of the next question
                raise TimeoutError(
                    f"the job's store at {self._where} did not answer within {limit_s:g} s when asked for {key!r}"
                ) from None
            except OSError as exc:
                raise ConnectionError(f"the connection to the job's store at {self._where} is lost: {exc}") from exc


def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    end = time.monotonic() + timeout_s
    while True:
        left_s = end - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(min(left_s, _ANSWER_S), 0.001))
            break
        except OSError as exc:  # not yet there, or never
            if time.monotonic() + _PAUSE_S >= end:
                raise TimeoutError(f"nobody listens at {host}:{port} after {timeout_s:g} s ({exc})") from exc
            time.sleep(_PAUSE_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(max(end - time.monotonic(), 1.0))
        connection.sendall(HELLO)
        if receive_exactly(connection, len(HELLO)) != HELLO:
            raise ConnectionError(f"another program than the job's store answers at {host}:{port}")
    except BaseException:
        connection.close()
        raise
    return connection


def open_store(launch: Launch, generation: int) -> TcpStore:
    """Return this rank's connection to the job's store, which rank 0 hosts. Every rank calls it.

    Args:
        launch: This rank's place in the job.
        generation: How often this rank has come up; keeps the keys of one world apart from the last.

    Raises:
        CommError: the address is missing, the port is taken, or rank 0 does not answer in time.
    """
    host, port = store_address(launch)
    if launch.agent_store:
        raise CommError(
            f"rank {launch.rank}: the job's store at {host}:{port} is hosted by a launcher of torch, which speaks "
            "another protocol; start the ranks with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, without torchrun"
        )
    if launch.rank == 0 and (host, port) not in _servers:
        try:
            _servers[host, port] = TcpStoreServer(host, port)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise port_is_taken(launch) from exc
            raise cannot_listen(launch, str(exc)) from exc
    try:
        return TcpStore(host, port, f"hp/{launch.restart}/{generation}", launch.timeout_s)
    except TimeoutError as exc:
        raise no_answer(launch) from exc
    except OSError as exc:
        raise CommError(
            f"rank {launch.rank}: {exc}; check MASTER_ADDR and MASTER_PORT, or choose another port"
        ) from exc
