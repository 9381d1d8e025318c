# SPDX-License-Identifier: Apache-2.0
"""The ``hier`` backend passes what every comm backend must pass. Hosts are this one, split by ``HP_HOST``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hp_core.testing import CommSuite, Ranks, ranks


def placed(hosts: str, **env: str) -> Ranks:
    """Return ranks of which each is on the host of its letter."""
    return ranks(len(hosts), env=[{"HP_HOST": host, **env} for host in hosts])


class Placed(CommSuite):
    """The suite, on ranks of several hosts."""

    backend = "hier"
    hosts: ClassVar[str]

    def pool(self) -> Ranks:
        return placed(self.hosts, HP_COMM=self.backend)


class TestOnTwoAndTwo(Placed):
    hosts = "AABB"
    num_ranks = 4
    seeds = range(30, 34)


class TestOnTwoAndOne(Placed):
    hosts = "AAB"
    num_ranks = 3
    seeds = range(34, 38)


class TestOnInterleavedHosts(Placed):
    hosts = "ABAB"
    num_ranks = 4
    seeds = range(38, 42)


def test_asked_for_by_name_it_serves_the_groups_of_one_host_too() -> None:
    def chosen() -> list[str]:
        import torch

        import hp_core.comm as comm

        groups = [comm.new_group([0, 1] if comm.rank() < 2 else [2, 3])]
        groups += [comm.new_group([0, 2] if comm.rank() % 2 == 0 else [1, 3])]
        for group in groups:
            assert comm.all_reduce(torch.ones(3), group=group).tolist() == [2.0] * 3
        return [group.backend for group in groups]

    assert placed("AABB", HP_COMM="hier").run(chosen) == [["hier", "c10d"]] * 4


def test_torch_distributed_may_be_used_beside_it(tmp_path: Path) -> None:
    def both(path: str) -> bool:
        import torch
        import torch.distributed as dist

        import hp_core.comm as comm

        assert not dist.is_initialized()
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=comm.rank(), world_size=4)
        works = [comm.all_reduce(torch.ones(1000), async_op=True) for _ in range(5)]
        value = torch.ones(1000)
        dist.all_reduce(value)
        for work in works:
            assert work.wait().tolist() == value.tolist() == [4.0] * 1000
        dist.destroy_process_group()
        return True

    assert placed("ABAB", HP_COMM="hier").run(both, str(tmp_path / "store")) == [True] * 4


def test_tensors_of_inference_mode_go_through_every_stage() -> None:
    def infer() -> bool:
        import torch

        import hp_core.comm as comm

        with torch.inference_mode():
            for dtype in (torch.int16, torch.bfloat16, torch.float32, torch.bool):
                strided = torch.ones(4, 6).to(dtype)[:, ::2]
                for tensor in (torch.ones(7).to(dtype), strided):
                    work = comm.all_reduce(tensor, "max", async_op=True)
                    assert work.wait() is tensor
                    assert comm.broadcast(tensor, 2, async_op=True).wait().float().min() == 1.0
                assert comm.all_gather(strided, async_op=True).wait().shape == (12, 3)
                assert comm.reduce_scatter(torch.ones(6, 2).to(dtype), "max", async_op=True).wait().shape == (2, 2)
        return True

    assert placed("AAB", HP_COMM="hier").run(infer) == [True] * 3


def test_each_group_gets_what_suits_its_hosts() -> None:
    def chosen() -> dict[str, str]:
        import hp_core.comm as comm

        asked = ([0, 1], [2, 3], [0, 2], [1, 2, 0], [3, 0, 1], [3, 2, 1, 0])
        mine = [ranks for ranks in asked if comm.rank() in ranks]
        return {str(ranks): comm.new_group(ranks).backend for ranks in [[0, 1, 2, 3], *mine]}

    # Two ranks that are alone on their hosts have no host to share memory in.
    expected = {
        "[0, 1, 2, 3]": "hier",
        "[0, 1]": "shm",
        "[2, 3]": "shm",
        "[0, 2]": "c10d",
        "[1, 2, 0]": "hier",
        "[3, 0, 1]": "hier",
        "[3, 2, 1, 0]": "hier",
    }
    for rank, found in enumerate(placed("AABB").run(chosen)):
        assert found == {ranks: name for ranks, name in expected.items() if str(rank) in ranks}
