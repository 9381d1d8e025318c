# SPDX-License-Identifier: Apache-2.0
"""Handing memory out, member by member (as threads): all get it, or all raise for one reason."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hp_core.errors import CommError, CommTimeoutError
from hp_native.rendezvous import share_memory

RANKS = (3, 5, 9)
PAGE = 4096


class Store:
    """A store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def set_once(self, key: str, value: bytes) -> bytes:
        with self._changed:
            return self.values.setdefault(key, value)

    def get(self, key: str, timeout_s: float) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self.values, timeout_s)
            return self.values.get(key)

    def check(self, key: str) -> bool:
        return key in self.values

    def clone(self) -> Store:
        return self


def _nothing(descriptor: int) -> None:
    os.posix_fallocate(descriptor, 0, PAGE)


def _members(*prepares: Callable[[int], None] | None, store: Store | None = None, timeout_s: float = 30.0) -> list[Any]:
    """Let a member for each of ``prepares`` share memory (None: it does not come); return what each got."""
    store = store or Store()

    def member(index: int, prepare: Callable[[int], None]) -> Any:
        try:
            return share_memory(store, "key", RANKS[: len(prepares)], index, 3 * PAGE, prepare, lambda: None, timeout_s)
        except BaseException as exc:
            return exc

    with ThreadPoolExecutor(len(prepares)) as pool:
        waiting = [pool.submit(member, i, prepare) for i, prepare in enumerate(prepares) if prepare is not None]
        return [each.result() for each in waiting]


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_all_get_the_same_memory_mapped() -> None:
    before = _open_descriptors()
    shares = _members(_nothing, _nothing, _nothing)
    for number, (_, mapping) in enumerate(shares):
        assert len(mapping.memory) == 3 * PAGE
        mapping.memory[number] = number + 1
    assert {bytes(mapping.memory[:3]) for _, mapping in shares} == {b"\1\2\3"}
    for descriptor, mapping in shares:
        os.close(descriptor)
        mapping.memory.close()
    assert _open_descriptors() == before


def test_a_process_with_thousands_of_descriptors_shares_memory() -> None:
    # select() takes numbers below 1024 only.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"a process may have {hard} descriptors here (ulimit -Hn), 1200 are needed to test this")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1050)]
    try:
        for descriptor, mapping in _members(_nothing, _nothing):
            assert descriptor > 1024
            os.close(descriptor)
            mapping.memory.close()
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("failure", [OSError(28, "no space"), CommError("no space"), ValueError("no space")])
def test_one_fails_and_all_raise_its_reason(victim: int, failure: Exception) -> None:
    def fail(descriptor: int) -> None:
        raise failure

    before = _open_descriptors()
    began = time.monotonic()
    found = _members(*(fail if index == victim else _nothing for index in range(3)))
    assert time.monotonic() - began < 10
    for rank, error in zip(RANKS, found, strict=True):
        assert type(error) is CommError
        assert str(error).startswith(f"rank {rank}: no shared memory key: rank {RANKS[victim]}: ")
        assert "no space" in str(error)
    assert _open_descriptors() == before


@pytest.mark.parametrize("victim", range(3))
def test_one_is_interrupted_and_the_others_are_told(victim: int) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    found = _members(*(interrupted if index == victim else _nothing for index in range(3)))
    assert type(found.pop(victim)) is KeyboardInterrupt
    for error in found:
        assert type(error) is CommError
        assert str(error).endswith(f"rank {RANKS[victim]}: KeyboardInterrupt")


@pytest.mark.parametrize("absent", range(3))
def test_one_does_not_come_and_the_others_name_it_in_time(absent: int) -> None:
    began = time.monotonic()
    found = _members(*(None if index == absent else _nothing for index in range(3)), timeout_s=0.5)
    assert time.monotonic() - began < 10
    for error in found:
        assert type(error) is CommTimeoutError
        assert f"rank {RANKS[absent]} " in str(error) or f"ranks [{RANKS[absent]}] did not come" in str(error)
        assert "not all ranks came within 0.5 s" in str(error)


def test_one_goes_away_without_a_word() -> None:
    store = Store()

    def leave() -> None:
        name, secret = json.loads(store.get("key", 10.0) or b"")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect("\0" + name)
            peer.send(bytes.fromhex(secret) + RANKS[2].to_bytes(4, "little"))

    thread = threading.Thread(target=leave)
    thread.start()
    found = _members(_nothing, _nothing, None, store=store)
    thread.join()
    for error in found:
        assert str(error).endswith("rank 9 went away and did not say why")


def test_a_stranger_gets_nothing() -> None:
    store = Store()
    said: list[Any] = []

    def intrude() -> None:
        name, _ = json.loads(store.get("key", 10.0) or b"")
        for hello in (b"\0" * 36, b"short", b""):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect("\0" + name)
                if hello:
                    peer.send(hello)
                    peer.settimeout(0.2)
                    try:
                        said.append(socket.recv_fds(peer, 64, 1))
                    except TimeoutError:
                        said.append(None)

    def wait_for_the_stranger(descriptor: int) -> None:
        thread.join()
        _nothing(descriptor)

    thread = threading.Thread(target=intrude)
    thread.start()
    shares = _members(_nothing, wait_for_the_stranger, _nothing, store=store)
    thread.join()
    assert said == [None, None]
    for descriptor, mapping in shares:
        os.close(descriptor)
        mapping.memory.close()
