# SPDX-License-Identifier: Apache-2.0
"""The store of a job without torch: one process, several connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hp_core.comm.backend import Launch
from hp_core.comm.tcp_server import TcpStoreServer
from hp_core.comm.tcp_store import TcpStore, open_store
from hp_core.errors import CommError


@pytest.fixture
def server() -> Iterator[TcpStoreServer]:
    made = TcpStoreServer("127.0.0.1", 0)
    yield made
    made.close()


def connect(server: TcpStoreServer, prefix: str = "job") -> TcpStore:
    return TcpStore("127.0.0.1", server.port, prefix, 5.0)


def test_values_are_seen_by_every_connection(server) -> None:
    one, two = connect(server), connect(server)
    other = connect(server, "next job")
    value = bytes(range(256)) * 5000
    one.set("key é", value)
    assert two.get("key é", 0.0) == value
    assert two.check("key é")
    assert not other.check("key é")
    one.set("key é", b"")
    assert two.get("key é", 0.0) == b""
    assert two.clone().check("key é")


def test_set_once_keeps_the_first_value_of_many_threads(server) -> None:
    found: list[bytes] = []
    stores = [connect(server) for _ in range(8)]
    threads = [
        threading.Thread(target=lambda n=n, s=s: found.append(s.set_once("fault", b"%d" % n)))
        for n, s in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {connect(server).get("fault", 0.0)}


def test_get_waits_for_the_value_and_no_longer_than_asked(server) -> None:
    one, two = connect(server), connect(server)
    began = time.monotonic()
    assert one.get("late", 0.2) is None
    assert time.monotonic() - began >= 0.2
    threading.Timer(0.1, lambda: two.set("late", b"here")).start()
    assert one.get("late", 5.0) == b"here"


def test_when_the_server_ends_a_question_fails_and_says_where(server) -> None:
    store = connect(server)
    server.close()
    with pytest.raises(ConnectionError, match=rf"job's store at 127\.0\.0\.1:{server.port} is lost"):
        store.check("key")


def test_a_peer_that_speaks_another_protocol_disturbs_nobody(server) -> None:
    store = connect(server)
    with socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(5.0)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    store.set("key", b"1")
    assert store.check("key")


def launch(rank: int, port: int, **more: object) -> Launch:
    return Launch(rank, 2, "cpu", 0.3, "127.0.0.1", port, **more)  # type: ignore[arg-type]


def test_what_is_wrong_at_the_start_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(CommError, match=r"rank 1: no answer from the job's store at .* \(missing: rank 0\)"):
            open_store(launch(1, port), 1)
        taken.listen()
        with pytest.raises(CommError, match=rf"rank 0: address already in use: .* at port {port}"):
            open_store(launch(0, port), 1)
    with pytest.raises(CommError, match="hosted by a launcher of torch"):
        open_store(launch(1, port, agent_store=True), 1)
    with pytest.raises(CommError, match="MASTER_ADDR is not set for a world of 2 ranks"):
        open_store(Launch(0, 2, "cpu", 1.0), 1)
