# SPDX-License-Identifier: Apache-2.0
"""How many cores a process may use: by affinity, and by quotas of control groups of either version, nested or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hp_core.platform.host_cores import num_cores

AFFINITY = 16


@pytest.fixture(autouse=True)
def _sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(AFFINITY)), raising=False)


def _system(root: Path, groups: str, **files: str) -> Path:
    """Write /proc/self/cgroup, and files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


V1 = "4:memory:/job/a\n2:cpuacct,cpu:/job/a\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, AFFINITY),
        ("0::/\n", {"cpu.max": "max 100000\n"}, AFFINITY),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "350000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, AFFINITY),
        ("0::/\n", {"cpu.max": "nonsense\n"}, AFFINITY),
        # Its own group, and those above it: the smallest counts.
        ("0::/job/a\n", {"job/a/cpu.max": "800000 100000\n", "cpu.max": "max 100000\n"}, 8),
        ("0::/job/a\n", {"job/a/cpu.max": "800000 100000\n", "job/cpu.max": "500000 100000\n"}, 5),
        ("0::/job/a\n", {"job/a/cpu.max": "max 100000\n", "job/cpu.max": "500000 100000\n"}, 5),
        # In a container the path is the host's, and what is mounted is the container's.
        ("0::/docker/4711\n", {"cpu.max": "200000 100000\n"}, 2),
        # Version 1, under either name of the mount.
        (V1, {"cpu/job/a/cpu.cfs_quota_us": "250000\n", "cpu/job/a/cpu.cfs_period_us": "100000\n"}, 2),
        (V1, {"cpuacct,cpu/job/cpu.cfs_quota_us": "40000\n", "cpuacct,cpu/job/cpu.cfs_period_us": "10000\n"}, 4),
        (V1, {"cpu/job/a/cpu.cfs_quota_us": "-1\n", "cpu/job/a/cpu.cfs_period_us": "100000\n"}, AFFINITY),
        (V1, {"cpu/cpu.cfs_quota_us": "700000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 7),
        (V1, {"cpu/job/a/cpu.cfs_quota_us": "700000\n"}, AFFINITY),
        # Both are there: version 2 beside version 1.
        (V1, {"unified/cpu.max": "600000 100000\n"}, 6),
    ],
)
def test_the_smallest_of_affinity_and_quotas(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    assert num_cores(_system(tmp_path, groups, **files)) == expected


def test_affinity_alone_where_there_are_no_control_groups(tmp_path: Path) -> None:
    assert num_cores(tmp_path) == AFFINITY


def test_a_quota_of_this_machine_counts() -> None:
    """In a control group made for this: what the system itself writes."""
    line = next(
        (x for x in Path("/proc/self/cgroup").read_text().splitlines() if "cpu" in x.split(":")[1].split(",")), ""
    )
    if not line:
        pytest.skip("no control groups of version 1 for cpu here: a real quota cannot be tested")
    folder = Path("/sys/fs/cgroup/cpu") / line.split(":", 2)[2].lstrip("/") / f"hp-core-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as exc:
        pytest.skip(f"no control group can be made here ({exc}): a real quota cannot be tested")
    try:
        (folder / "cpu.cfs_quota_us").write_text("100000")
        (folder / "cpu.cfs_period_us").write_text("100000")
        source = (
            "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
            "from hp_core.platform.host_cores import num_cores; print(num_cores())"
        )
        command = [sys.executable, "-c", source, str(folder / "cgroup.procs")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "1\n", done.stderr
    finally:
        folder.rmdir()
