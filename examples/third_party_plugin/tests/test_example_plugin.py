# SPDX-License-Identifier: Apache-2.0
"""The example's tests: what is the same for every plugin comes from PluginSuite."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hp_core.errors import HPError
from hp_core.registry import resolve
from hp_core.testing.plugin_suite import PluginSuite
from hyper_parallel import init_device_mesh


class TestExample(PluginSuite):
    plugin = "hp_example_plugin"


def run_in_order(schedule: list[list[tuple[str, int, int]]]) -> list[int]:
    """Run a schedule: an action waits for the neighbour's. Return the most micro-batches in flight on each rank."""
    done: set[tuple[str, int, int]] = set()
    position, in_flight, most = [[0] * len(schedule) for _ in range(3)]
    while any(position[rank] < len(actions) for rank, actions in enumerate(schedule)):
        moved = False
        for rank, actions in enumerate(schedule):
            if position[rank] == len(actions):
                continue
            op, stage, micro_batch = action = actions[position[rank]]
            last = stage == len(schedule) - 1
            if op == "F":
                ready = stage == 0 or ("F", stage - 1, micro_batch) in done
            else:
                ready = ("F", stage, micro_batch) in done and (last or ("B", stage + 1, micro_batch) in done)
            if ready:
                done.add(action)
                position[rank] += 1
                in_flight[rank] += 1 if op == "F" else -1
                most[rank] = max(most[rank], in_flight[rank])
                moved = True
        assert moved, f"deadlock at {position}"
    return most


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize(("num_micro_batches", "limit"), [(1, None), (8, None), (8, 3), (5, 5), (3, 100), (4, 1)])
def test_schedule_completes_within_its_limit(num_stages: int, num_micro_batches: int, limit: int | None) -> None:
    generate: Any = resolve("schedule", "limited-gpipe")
    schedule = generate(num_stages, num_micro_batches, limit)
    expected = sorted((op, micro_batch) for op in "FB" for micro_batch in range(num_micro_batches))
    for stage, actions in enumerate(schedule):
        assert sorted((op, micro_batch) for op, _, micro_batch in actions) == expected
        assert {at for _, at, _ in actions} == {stage}
    assert run_in_order(schedule) == [min(limit or num_micro_batches, num_micro_batches)] * num_stages


def test_schedule_refuses_nonsense() -> None:
    generate: Any = resolve("schedule", "limited-gpipe")
    with pytest.raises(ValueError, match="max_in_flight is 0, expected 1 or more"):
        generate(2, 4, 0)


class Parameter:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Model:
    def named_parameters(self) -> list[tuple[str, Parameter]]:
        return [
            ("a", Parameter(10, 10)),
            ("b", Parameter(60)),
            ("c", Parameter(50)),
            ("d", Parameter(10)),
            ("e", Parameter(0)),
        ]


def test_style_balances_whole_parameters_over_the_mesh() -> None:
    style: Any = resolve("parallel_style", "whole-parameters")
    mesh = init_device_mesh("cpu", (2,), rank_list=(3, 1), init_backend=False)
    model: Any = style().apply(Model(), mesh)
    assert model.parameter_owners == {"a": 3, "b": 1, "c": 1, "d": 3, "e": 3}
    assert style("plan").apply(Model(), mesh).plan == model.parameter_owners


def test_style_refuses_a_mesh_of_several_axes() -> None:
    style: Any = resolve("parallel_style", "whole-parameters")
    with pytest.raises(ValueError, match=r"shape \(2, 2\), expected one axis"):
        style().apply(Model(), init_device_mesh("cpu", (2, 2), init_backend=False))


def test_storage_reads_what_was_written(tmp_path: Path) -> None:
    storage: Any = resolve("storage", "sqlite")
    first = storage(tmp_path / "checkpoint.sqlite")
    first.write("step-1/a", bytes(range(256)))
    first.write("step-1/b", b"")
    first.write("step-2/a", b"other")
    second = storage(str(tmp_path / "checkpoint.sqlite"))
    assert second.read("step-1/a") == bytes(range(256))
    assert second.read("step-1/a", 250) == bytes(range(250, 256))
    assert second.read("step-1/a", 10, 3) == b"\x0a\x0b\x0c"
    assert second.read("step-1/a", 10, 0) == b""
    assert second.read("step-1/b") == b""
    assert second.list("step-1/") == ["step-1/a", "step-1/b"]
    second.write("step-1/a", b"new")
    assert first.read("step-1/a") == b"new"
    first.delete("step-1/a")
    assert second.list() == ["step-1/b", "step-2/a"]


@pytest.mark.parametrize("operation", ["read", "delete"])
def test_storage_says_what_is_not_there(tmp_path: Path, operation: str) -> None:
    storage: Any = resolve("storage", "sqlite")
    with pytest.raises(FileNotFoundError, match=r"'step-1/a' is not in .*checkpoint.sqlite"):
        getattr(storage(tmp_path / "checkpoint.sqlite"), operation)("step-1/a")


def test_storage_takes_writers_at_the_same_time(tmp_path: Path) -> None:
    factory: Any = resolve("storage", "sqlite")
    storage = factory(tmp_path / "checkpoint.sqlite")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: storage.write(f"{index:02}", bytes([index]) * 1000), range(20)))
    assert [storage.read(name)[0] for name in storage.list()] == list(range(20))


def test_command_and_report_line() -> None:
    command = [sys.executable, "-c", "from hp_core.cli import main; main()"]
    done = subprocess.run([*command, "timeline", "2", "3", "--max-in-flight", "2"], capture_output=True, text=True)
    assert done.stdout == "rank 0: F0 F1 B0 B1 F2 B2\nrank 1: F0 F1 B0 B1 F2 B2\n", done.stderr
    assert "timeline" in subprocess.run([*command, "--help"], capture_output=True, text=True).stdout


def test_unknown_names_are_errors_of_the_user() -> None:
    with pytest.raises(HPError, match="did you mean 'limited-gpipe'"):
        resolve("schedule", "limited-gpip")
