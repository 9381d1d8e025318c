# SPDX-License-Identifier: Apache-2.0
"""The ``hier`` backend on two networks of their own, joined by a cable: as near to two hosts as one machine comes.

Each "host" is a network namespace (``unshare``), the cable a pair of virtual Ethernet devices (``ip``, Debian's
iproute2). Where this process may not make them, the same test runs on one network whose ranks ``HP_HOST`` splits, and
warns of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from hp_core.testing import ranks

DEVICE = "hp0"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
PORT = 29517
CLONE_NEWNET = 0x40000000
#: Which of the two hosts each rank is on.
HOSTS = (0, 1, 0, 1)


def command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")


def holder(stack: contextlib.ExitStack) -> int:
    """Return the process of a new network namespace, which lives until this process ends, however it ends."""
    process = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.stdin.close)
    ours, end = os.readlink("/proc/self/ns/net"), time.monotonic() + 10
    while os.readlink(f"/proc/{process.pid}/ns/net") == ours:
        if process.poll() is not None:
            raise OSError(f"unshare --net: {process.stderr.read().strip()}")
        if time.monotonic() > end:
            raise OSError("unshare --net: no namespace after 10 s")
        time.sleep(0.01)
    return process.pid


@pytest.fixture
def networks() -> Iterator[list[int]]:
    """Two processes, each of which holds a network, joined by a cable; none where that is not allowed."""
    with contextlib.ExitStack() as stack:
        held: list[int] = []
        try:
            made = [holder(stack) for _ in ADDRESSES]
            first = ("nsenter", "-t", str(made[0]), "-n")
            command(*first, "ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", str(made[1]))
            for pid, address in zip(made, ADDRESSES, strict=True):
                inside = ("nsenter", "-t", str(pid), "-n", "ip")
                command(*inside, "address", "add", f"{address}/24", "dev", DEVICE)
                command(*inside, "link", "set", DEVICE, "up")
                command(*inside, "link", "set", "lo", "up")
            held = made
        except OSError as exc:
            warnings.warn(f"no networks of their own here ({exc}): HP_HOST splits the ranks of one", stacklevel=1)
        yield held


def communicate(networks: list[int], hosts: tuple[int, ...]) -> dict[str, object]:
    """Enter this rank's host, bring communication up from there and check every element of some calls."""
    rank = int(os.environ["RANK"])
    size = len(hosts)
    if networks:
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = os.open(f"/proc/{networks[hosts[rank]]}/ns/net", os.O_RDONLY)
        assert libc.setns(descriptor, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(descriptor)
        os.environ.update(MASTER_ADDR=ADDRESSES[0], MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME=DEVICE)
    else:
        os.environ["HP_HOST"] = str(hosts[rank])
    import torch

    import hp_core.comm as comm

    def traffic() -> int:
        words = Path("/proc/thread-self/net/dev").read_text().split(f"{DEVICE}:")[1].split() if networks else ["0"]
        return int(words[0])

    world = comm.init_backend("cpu", timeout_s=60)
    everyone = torch.arange(size)
    for count in (1, 5, 1000, 300_001):
        inputs = [torch.arange(count, dtype=torch.float64) % 97 + 1000 * other for other in range(size)]
        total = comm.all_reduce(inputs[rank].clone())
        assert torch.equal(total, sum(inputs))
        assert torch.equal(comm.all_gather(inputs[rank]), torch.cat(inputs))
        uneven = [count + other for other in range(size)]
        whole = comm.all_gather(torch.full((uneven[rank],), rank), sizes=uneven, async_op=True).wait()
        assert torch.equal(whole, everyone.repeat_interleave(torch.tensor(uneven)))
        sent = torch.cat([inputs[rank] + 7 * other for other in range(size)])
        assert torch.equal(comm.all_to_all(sent), torch.cat([inputs[other] + 7 * rank for other in range(size)]))
        piece = comm.reduce_scatter(torch.cat(inputs) * (rank + 1))
        assert torch.equal(piece, inputs[rank] * 10)
        arrivals = [torch.zeros(count, dtype=torch.float64) for _ in range(size)]
        batch = [comm.P2P("recv", arrivals[peer], peer, tag=5) for peer in range(size)]
        batch += [comm.P2P("send", inputs[rank] + peer, peer, tag=5) for peer in range(size)]
        comm.batch_p2p(batch)
        assert all(torch.equal(arrivals[peer], inputs[peer] + rank) for peer in range(size))
    objects = comm.all_gather_object({"rank": rank, "text": "é" * (1 + 1000 * rank)})
    assert objects == [{"rank": other, "text": "é" * (1 + 1000 * other)} for other in range(size)]
    assert comm.broadcast_object(("from", rank), src=3) == ("from", 3)
    comm.barrier()
    # What a host receives of an all-reduce over two hosts is half of the tensor twice, not the tensor of each rank.
    large = torch.ones(2_000_000)
    before = traffic()
    comm.all_reduce(large)
    comm.barrier()
    came = traffic() - before
    names = {
        "world": world.backend,
        "host": comm.new_group([r for r in range(size) if hosts[r] == hosts[rank]]).backend,
    }
    comm.shutdown()
    return {**names, "received": came / large.nbytes, "net": os.readlink("/proc/thread-self/ns/net")}


def test_ranks_in_two_networks_communicate(networks: list[int]) -> None:
    pool = ranks(len(HOSTS), init_comm=False)
    try:
        found = pool.run(communicate, networks, HOSTS, timeout_s=120.0)
    finally:
        pool.close()  # its processes are on other networks than what comes after expects
    assert {(each["world"], each["host"]) for each in found} == {("hier", "shm")}
    if networks:
        assert len({each["net"] for each in found}) == 2
        assert found[0]["net"] == found[2]["net"] != os.readlink("/proc/self/ns/net")
        # As Ethernet counts it, with headers and answers; each rank for itself would be twice as much or more.
        assert all(0.9 < each["received"] < 1.3 for each in found), found
