# SPDX-License-Identifier: Apache-2.0
"""Too little memory, or too few descriptors, on any rank: an error on all ranks that says what is missing, at once."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hp_core.testing import ranks

MIB = 1 << 20
SHM = {"HP_COMM": "shm"}
#: Of the ranks' own memory cgroup. Some of it is kept for the program.
LIMIT = 96 * MIB


def _own_memory_cgroup() -> tuple[Path, str]:
    """Return the folder of this process's memory cgroup, and what its limit's file is called."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
        if not controllers and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            return Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"
    pytest.skip("this system has no memory cgroups (/proc/self/cgroup): the limit of one cannot be tested")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A memory cgroup below this process's, with a limit and nothing in it; returns the limit's file."""
    parent, name = _own_memory_cgroup()
    folder = parent / f"hp-native-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as exc:
        pytest.skip(f"no memory cgroup can be made here ({exc}): a full one cannot be tested")
    try:
        if not (folder / name).exists():
            pytest.skip(f"{parent} passes no memory controller on: a full memory cgroup cannot be tested")
        (folder / name).write_text(str(LIMIT))
        yield folder / name
    finally:
        folder.rmdir()


def _ask_for(num_bytes: int) -> str:
    """Ask for symmetric memory that is too much; return what was said. Communication goes on afterwards."""
    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommError

    try:
        hp_native.empty(num_bytes, torch.uint8)
    except CommError as exc:
        text = str(exc)
    else:
        raise AssertionError(f"rank {comm.rank()} got {num_bytes} bytes")
    small = hp_native.empty(1000, torch.uint8).fill_(comm.rank() + 1)
    assert comm.all_reduce(small)[999] == sum(range(1, comm.world_size() + 1))
    return text


def _reason(text: str) -> str:
    """What follows the rank that says it and the name of the memory."""
    return text.split("/0: ", 1)[1]


@pytest.mark.parametrize(
    ("limited", "wanted"),
    [
        ([0], 128 * MIB),
        ([2], 90 * MIB),  # would fit, but for what is kept
        ([0, 1, 2], 60 * MIB),  # fits once: the first one takes it
        ([0, 1, 2], 36 * MIB),  # fits twice: the others find room for one at the same moment
    ],
)
def test_a_full_memory_cgroup_is_an_error_on_all_ranks(cgroup: Path, limited: list[int], wanted: int) -> None:
    pool = ranks(3, env={**SHM, "HP_TEST_CGROUP": "1"})
    pids = pool.run(os.getpid)
    try:
        for rank in limited:
            (cgroup.parent / "cgroup.procs").write_text(str(pids[rank]))
        texts = pool.run(_ask_for, wanted)
    finally:
        pool.close()  # its processes leave the cgroup
        _await_empty(cgroup.parent / "cgroup.procs")
    for rank, text in enumerate(texts):
        assert text.startswith(f"rank {rank}: no shared memory ")
        assert f"{wanted} bytes of shared memory are wanted" in text
        assert f"{cgroup.parent.name} has ({cgroup.name} {LIMIT})" in text
        assert "free memory, raise the limit of the memory cgroup, or use HP_COMM=c10d" in text
    assert len({_reason(text) for text in texts}) == 1, texts
    assert any(_reason(texts[0]).startswith(f"rank {rank}: ") for rank in limited)


def _await_empty(procs: Path) -> None:
    end = time.monotonic() + 30
    while procs.read_text():
        assert time.monotonic() < end, f"{procs} still has {procs.read_text().split()}"
        time.sleep(0.02)


def _at_the_limit(what: str, victim: int, spare: int, num_bytes: int) -> tuple[str, float]:
    """Ask for memory where ``victim`` may have only a little more of something; return what was said, and when."""
    import resource

    import torch

    import hp_core.comm as comm
    import hp_native
    from hp_core.errors import CommError

    hp_native.empty(1, torch.uint8)  # imports what takes descriptors
    comm.barrier()
    limit = getattr(resource, what)
    before = resource.getrlimit(limit)
    opened: list[int] = []
    began = time.monotonic()
    try:
        if comm.rank() == victim:
            if what == "RLIMIT_NOFILE":
                resource.setrlimit(limit, (max(map(int, os.listdir("/proc/self/fd"))) + 20, before[1]))
                with contextlib.suppress(OSError):
                    while True:
                        opened.append(os.open("/dev/null", os.O_RDONLY))
                for _ in range(spare):
                    os.close(opened.pop())
            elif what == "RLIMIT_AS":
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(limit, (pages * os.sysconf("SC_PAGE_SIZE") + spare, before[1]))
            else:
                resource.setrlimit(limit, (spare, before[1]))
        try:
            hp_native.empty(num_bytes, torch.uint8)
        except CommError as exc:
            return str(exc), time.monotonic() - began
        raise AssertionError(f"rank {comm.rank()} got memory at the limit {what} of rank {victim}")
    finally:
        resource.setrlimit(limit, before)
        for fd in opened:
            os.close(fd)
        again = hp_native.empty(8, torch.int64).fill_(comm.rank() + 1)
        assert comm.all_reduce(again)[0] == sum(range(1, comm.world_size() + 1))


def _check_told_soon(found: list[tuple[str, float]], victim: int, expected: str) -> None:
    for rank, (text, took_s) in enumerate(found):
        assert text.startswith(f"rank {rank}: no shared memory "), text
        assert expected in text, text
        assert took_s < 20, f"rank {rank} was told after {took_s} s"
    assert len({_reason(text) for text, _ in found}) == 1, found
    assert _reason(found[0][0]).startswith(f"rank {victim}: "), found


@pytest.mark.parametrize(("victim", "spare"), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)])
def test_no_descriptor_left_on_one_rank_is_an_error_on_all(victim: int, spare: int) -> None:
    # Each number of descriptors that are left fails at another place: the memory, the socket, what it hands over, …
    found = ranks(3, env=SHM).run(_at_the_limit, "RLIMIT_NOFILE", victim, spare, MIB)
    _check_told_soon(found, victim, "oo many open files")


def test_a_descriptor_that_finds_no_place_is_said_to_be_that() -> None:
    # The kernel drops it, and says only that something was cut off.
    found = ranks(3, env=SHM).run(_at_the_limit, "RLIMIT_NOFILE", 2, 1, MIB)
    _check_told_soon(
        found, 2, "no descriptor came from rank 0 (Too many open files): this process's limit of open files"
    )
    assert "(RLIMIT_NOFILE); raise it (ulimit -n); HP_COMM=c10d does without" in found[0][0]


@pytest.mark.parametrize("victim", [0, 2])
def test_no_address_space_left_on_one_rank_is_an_error_on_all(victim: int) -> None:
    found = ranks(3, env=SHM).run(_at_the_limit, "RLIMIT_AS", victim, 32 * MIB, 64 * MIB)
    _check_told_soon(found, victim, "Cannot allocate memory: this process's limit of address space is")
    assert "(RLIMIT_AS); raise it (ulimit -v)" in found[0][0]


def test_files_may_not_be_so_long_on_the_rank_that_makes_the_memory() -> None:
    found = ranks(3, env=SHM).run(_at_the_limit, "RLIMIT_FSIZE", 0, MIB, 64 * MIB)
    _check_told_soon(found, 0, f"File too large: this process's limit of the size of a file is {MIB} bytes")


def _group_at_the_limit() -> list[Any]:
    """The same for a group: nobody gets it, and afterwards it can be made."""
    import resource

    import torch

    import hp_core.comm as comm
    from hp_core.errors import CommError

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    everybody = list(range(comm.world_size()))[::-1]
    comm.barrier()
    try:
        if comm.rank() == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        with pytest.raises(CommError, match=r"rank 1: .*oo many open files"):
            comm.new_group(everybody)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    comm.barrier()
    return [comm.all_reduce(torch.ones(1), group=comm.new_group(everybody)).item(), comm.new_group(everybody).backend]


def test_a_group_that_could_not_be_made_can_be_made_later() -> None:
    assert ranks(3, env=SHM).run(_group_at_the_limit) == [[3.0, "shm"]] * 3
