# SPDX-License-Identifier: Apache-2.0
"""The communication interface: arguments, groups, worlds of one, hooks, and coming up and down."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import hp_core.comm as comm
from hp_core import plugins
from hp_core.comm import fake
from hp_core.errors import CommError, PlatformError, PluginError
from hp_core.testing import ranks


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HP_COMM"):
        monkeypatch.delenv(name, raising=False)
    comm.shutdown()
    yield comm.init_backend("cpu")
    comm.shutdown()


@pytest.fixture
def simulated():
    """Rank 1 of a world of 4 that moves nothing."""
    comm.shutdown()
    yield comm.init_backend("cpu", backend="fake", world_size=4, rank=1)
    comm.shutdown()


def test_importing_it_imports_no_framework():
    code = "import sys, hp_core.comm; print([n for n in ('torch', 'mindspore', 'numpy') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_world_of_one_needs_no_launcher_no_port_and_no_framework_group(alone):
    assert (alone.size, alone.rank, alone.ranks) == (1, 0, (0,))
    assert not torch.distributed.is_initialized()
    value = torch.arange(4.0)
    assert comm.all_reduce(value, "avg") is value
    assert comm.all_gather(value).tolist() == [0, 1, 2, 3]
    assert comm.all_gather(torch.tensor(5)).tolist() == [5]
    assert comm.reduce_scatter(value, sizes=[4]).data_ptr() != value.data_ptr()
    out = torch.empty(4)
    assert comm.all_to_all(value, out=out) is out
    assert out.tolist() == [0, 1, 2, 3]
    assert comm.broadcast(value).tolist() == [0, 1, 2, 3]
    assert comm.all_gather_object("a") == ["a"]
    assert comm.broadcast_object("a") == "a"
    assert comm.all_reduce(value, async_op=True).wait() is value
    comm.barrier()
    got = torch.empty(4)
    comm.batch_p2p([comm.P2P("recv", got, 0, 1), comm.P2P("send", value, 0, 1)])
    assert got.tolist() == [0, 1, 2, 3]
    with pytest.raises(CommError, match="no send in the same batch"):
        comm.batch_p2p([comm.P2P("recv", got, 0, 1), comm.P2P("send", value, 0, 2)])


def test_init_backend_twice_gives_the_same_world_and_refuses_other_settings(alone):
    assert comm.init_backend("cpu") is alone
    assert comm.init_backend("cpu", backend="gloo") is alone
    for arguments, asked in (
        ({"device_type": "cuda"}, "cuda with 1"),
        ({"backend": "fake"}, "cpu with 1 over fake"),
        ({"world_size": 2}, "cpu with 2"),
    ):
        message = rf"already up for cpu with 1 ranks over .*c10d, asked again for {asked}; call comm.shutdown\(\) first"
        with pytest.raises(CommError, match=message):
            comm.init_backend(**arguments)


@pytest.mark.parametrize(
    ("device_type", "message"),
    [("npu", "device 'npu' was asked for, but "), ("cuba", "unknown device 'cuba'.*did you mean 'cuda'")],
)
def test_a_device_that_is_not_there_is_an_error(device_type, message):
    comm.shutdown()
    with pytest.raises(PlatformError, match=message):
        comm.init_backend(device_type)
    assert not comm.is_initialized()


@pytest.mark.parametrize(("local_rank", "used"), [("3", [3]), (None, [])])
def test_the_device_of_the_local_rank_becomes_current_where_there_is_one(monkeypatch, local_rank, used):
    calls = []
    device = SimpleNamespace(num_devices=4, use=calls.append)
    for module in ("hp_core.platform.local_device", "hp_core.comm.select"):
        monkeypatch.setattr(f"{module}.get_platform", lambda: SimpleNamespace(device=lambda kind: device))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert comm.init_backend("cuda").size == 1
    assert calls == used
    comm.shutdown()


def test_shutdown_makes_groups_unusable_and_is_idempotent(alone):
    comm.shutdown()
    comm.shutdown()
    assert not comm.is_initialized()
    with pytest.raises(CommError, match=r"cannot communicate any more: communication was shut down"):
        comm.all_reduce(torch.ones(1), group=alone)
    with pytest.raises(CommError, match=r"call hp_core.comm.init_backend\(\) first"):
        comm.all_reduce(torch.ones(1))
    assert comm.init_backend("cpu") is not alone


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ({"backend": "nccl"}, {}, "'nccl' serves cuda, not cpu"),
        ({"timeout_s": 0}, {}, "timeout_s must be positive, not 0"),
        ({}, {"RANK": "0"}, "WORLD_SIZE is not set, but RANK is; start the job with 'hp run'"),
        ({}, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' is not a whole number"),
        ({}, {"RANK": "2", "WORLD_SIZE": "2"}, r"RANK=2 is not in \[0, 2\): WORLD_SIZE is 2"),
        ({}, {"RANK": "0", "WORLD_SIZE": "0"}, r"WORLD_SIZE=0 is not in \[1, "),
        ({}, {"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set for a world of 2 ranks"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "MASTER_PORT is not set"),
        ({}, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "70000"}, r"MASTER_PORT=70000 is not in \[0, 65536\)"),
        ({"rank": 4, "world_size": 4}, {}, r"rank must be in \[0, 4\), not 4"),
        ({"world_size": 0, "rank": 0}, {}, "world_size must be at least 1, not 0"),
    ],
)
def test_a_wrong_start_is_one_line_with_the_fix(monkeypatch, arguments, environment, message):
    comm.shutdown()
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HP_COMM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CommError, match=message) as caught:
        comm.init_backend(**arguments)
    assert "\n" not in str(caught.value)
    assert not comm.is_initialized()


def test_an_unknown_backend_lists_what_there_is():
    comm.shutdown()
    with pytest.raises(PluginError, match=r"no comm is named 'c10x'; did you mean 'c10d'"):
        comm.init_backend("cpu", backend="c10x")


def test_arguments_that_do_not_fit_are_refused(simulated):
    x = torch.ones(6, 2)
    cases = [
        (lambda: comm.all_reduce(x, "summ"), "unknown reduce operation 'summ'; did you mean 'sum'"),
        (lambda: comm.all_reduce(x.long(), "avg"), "avg is not defined for int64 tensors; use sum, or convert"),
        (lambda: comm.all_reduce(x, "band"), "band is not defined for float32 tensors; it needs an integer or bool"),
        (lambda: comm.all_reduce(x.to(torch.complex64)), "sum is not defined for complex64 tensors"),
        (lambda: comm.all_gather(x, sizes=[6, 6, 6]), r"sizes = \[6, 6, 6\] on group world: expected 4 lengths"),
        (lambda: comm.all_gather(x, sizes=[6, 5, 6, 6]), r"sizes\[1\] is 5, but this rank's tensor has 6 rows"),
        (lambda: comm.all_gather(x, out=torch.ones(6, 2)), r"out has shape \(6, 2\) .* result has shape \(24, 2\)"),
        (lambda: comm.all_gather(x, out=torch.ones(24, 2).long()), "dtype torch.int64, but the result has"),
        (lambda: comm.all_gather(x, out=torch.ones(2, 24).T), "is not contiguous"),
        (lambda: comm.reduce_scatter(x), r"6 rows \(shape \(6, 2\)\) do not divide into 4 equal pieces; pass sizes"),
        (lambda: comm.reduce_scatter(x, sizes=[1, 1, 1, 1]), r"adds up to 4, but the tensor has 6 rows"),
        (lambda: comm.reduce_scatter(torch.tensor(1.0)), "the tensor is 0-d"),
        (lambda: comm.all_to_all(x), "do not divide into 4 equal pieces; pass input_sizes and output_sizes"),
        (lambda: comm.all_to_all(x, input_sizes=[1, 2, 2, 1]), "input_sizes is given without output_sizes"),
        (
            lambda: comm.all_to_all(x, input_sizes=[1, 2, 2, 1], output_sizes=[1, 1, 1, 1]),
            r"rank 1 sends itself 2 rows \(input_sizes\), but expects 1",
        ),
        (lambda: comm.broadcast(x, 4), r"src 4 is not a rank of the group \(0 to 3"),
        (lambda: comm.batch_p2p([comm.P2P("send", x, 7)]), "peer 7 is not a rank of the group"),
        (lambda: comm.batch_p2p([comm.P2P("give", x, 0)]), "'give' is neither 'send' nor 'recv'"),
        (lambda: comm.batch_p2p([comm.P2P("send", x, 0, 2**30)]), r"tag 1073741824 is not in \[0, 2\*\*30\)"),
        (lambda: comm.all_gather_object(lambda: 0), "an object of type function does not pickle"),
        (lambda: comm.new_group([0, 2]), r"rank 1 asked for a group of ranks \[0, 2\], which it is not a member of"),
        (lambda: comm.new_group([1, 1]), r"ranks \[1, 1\] are not some different ranks of a world of 4"),
        (lambda: comm.new_group([1, 4]), r"ranks \[1, 4\] are not some different ranks of a world of 4"),
        (lambda: comm.new_group([]), r"ranks \[\] are not"),
    ]
    for call, message in cases:
        with pytest.raises(CommError, match=message):
            call()


def test_groups_are_kept_by_their_ranks_in_order(simulated):
    group = comm.new_group([1, 0])
    assert comm.new_group((1, 0)) is group
    assert comm.new_group([0, 1]) is not group
    assert (group.rank, group.size, group.ranks, group.backend) == (0, 2, (1, 0), "fake")
    assert comm.new_group([1, 0], name="dp").name == "dp"
    assert comm.new_group(range(4)) is comm.world()


def test_fake_records_calls_and_works_on_meta_tensors(simulated):
    pair = comm.new_group([3, 1], "pair")
    with fake.recorded() as calls:
        x = torch.empty(6, 4, dtype=torch.bfloat16, device="meta")
        assert comm.all_reduce(x) is x
        assert comm.all_gather(x, pair).shape == (12, 4)
        assert comm.reduce_scatter(x, "max", pair, sizes=[5, 1]).shape == (1, 4)
        came = comm.all_to_all(x, pair, input_sizes=[3, 3], output_sizes=[7, 3], async_op=True).wait()
        assert (came.shape, came.device.type, came.dtype) == ((10, 4), "meta", torch.bfloat16)
        comm.batch_p2p([comm.P2P("send", x, 0), comm.P2P("recv", x, 0)], pair)
        comm.barrier(pair)
        assert comm.broadcast_object(None, 0) is None
        with fake.recorded() as inner:
            assert comm.all_gather_object("o", pair) == ["o", "o"]
    assert [(call.kind, call.ranks, call.shape, call.dtype, call.nbytes, call.op) for call in calls[:6]] == [
        ("all_reduce", (0, 1, 2, 3), (6, 4), "bfloat16", 48, "sum"),
        ("all_gather", (3, 1), (6, 4), "bfloat16", 48, ""),
        ("reduce_scatter", (3, 1), (6, 4), "bfloat16", 48, "max"),
        ("all_to_all", (3, 1), (6, 4), "bfloat16", 48, ""),
        ("send", (1, 3), (6, 4), "bfloat16", 48, ""),
        ("recv", (1, 3), (6, 4), "bfloat16", 48, ""),
    ]
    assert [call.kind for call in calls[6:]] == [
        "barrier",
        "all_gather_object",
        "all_gather_object",
    ]  # how an object is broadcast
    assert [call.kind for call in inner] == ["all_gather_object"]
    comm.barrier()
    assert len(calls) == 9


def test_fake_stands_for_a_world_of_any_size():
    comm.shutdown()
    world = comm.init_backend("cpu", backend="fake", world_size=100_000, rank=99_999)
    try:
        assert comm.all_gather(torch.empty(2, device="meta"), world).shape == (200_000,)
    finally:
        comm.shutdown()


def test_a_tensor_that_requires_grad_is_refused_where_gradients_are_recorded(alone):
    weight = torch.ones(3, requires_grad=True)
    for call in (
        lambda: comm.all_reduce(weight),
        lambda: comm.all_gather(weight * 2),
        lambda: comm.batch_p2p([comm.P2P("send", weight, 0), comm.P2P("recv", torch.ones(3), 0)]),
    ):
        with pytest.raises(CommError, match=r"requires grad, and collectives are not recorded .* no_grad"):
            call()
    with torch.no_grad():
        assert comm.all_reduce(weight) is weight


def test_hooks_see_every_collective_with_its_group_and_bytes(alone):
    seen = []

    class Listener:
        @plugins.hookimpl
        def hp_before_collective(self, kind, group, nbytes):
            seen.append(("before", kind, group.name, nbytes))

        @plugins.hookimpl
        def hp_after_collective(self, kind, group, nbytes):
            seen.append(("after", kind, group.name, nbytes))

    listener = Listener()
    plugins.manager().register(listener)
    try:
        comm.shutdown()
        comm.init_backend("cpu")
        work = comm.all_reduce(torch.ones(3, 2), async_op=True)
        assert seen == [("before", "all_reduce", "world", 24)]
        work.wait()
        work.wait()
        comm.barrier()
        comm.all_gather_object(1)
    finally:
        plugins.manager().unregister(listener)
    assert seen == [
        (when, kind, "world", nbytes)
        for kind, nbytes in (("all_reduce", 24), ("barrier", 0), ("all_gather_object", 0))
        for when in ("before", "after")
    ]


def test_nothing_is_looked_up_for_hooks_when_nobody_listens(alone):
    assert not alone.session.watched


def test_collectives_on_two_ranks():
    def check():
        import torch

        import hp_core.comm as comm

        rank, world = comm.rank(), comm.world()
        assert (comm.world_size(), world.rank, world.ranks, comm.is_initialized()) == (2, rank, (0, 1), True)
        # A reversed group counts ranks its own way.
        back = comm.new_group([1, 0])
        assert (back.rank, comm.new_group([1, 0]) is back) == (1 - rank, True)
        assert comm.all_gather(torch.tensor([rank]), back).tolist() == [1, 0]
        assert comm.broadcast(torch.tensor(rank), 0, back).item() == 1
        assert comm.all_to_all(torch.tensor([10 + rank, 20 + rank]), back).tolist() == (
            [21, 20] if rank == 0 else [11, 10]
        )
        # Writing through strides.
        square = torch.arange(9.0).view(3, 3)
        comm.all_reduce(square.T[1:])
        assert square.tolist() == [[0, 2, 4], [3, 8, 10], [6, 14, 16]]
        # Work: asked, waited for twice, kept.
        work = comm.all_reduce(torch.ones(1000), async_op=True)
        while not work.is_done():
            pass
        assert work.wait() is work.wait()
        assert "done" in repr(work)
        got = torch.zeros(3)
        work = comm.batch_p2p(
            [comm.P2P("recv", got, 1 - rank, 5), comm.P2P("send", torch.full((3,), rank + 1.0), 1 - rank, 5)],
            async_op=True,
        )
        while not work.is_done():
            pass
        assert work.wait() is None
        assert got.tolist() == [2.0 - rank] * 3
        # Message by message, not in the order in which they were sent.
        first, second = torch.zeros(2), torch.zeros(2)
        if rank == 0:
            works = [
                comm.batch_p2p([comm.P2P("send", torch.full((2,), t), 1, int(t))], async_op=True) for t in (1.0, 2.0)
            ]
            for work in works:
                work.wait()
        else:
            comm.batch_p2p([comm.P2P("recv", second, 0, 2)])
            comm.batch_p2p([comm.P2P("recv", first, 0, 1)])
            assert (first.tolist(), second.tolist()) == ([1, 1], [2, 2])
        for dtype in (torch.float8_e4m3fn, torch.complex64):
            assert comm.all_gather(torch.ones(2).to(dtype)).dtype is dtype
        try:
            comm.all_reduce(torch.ones(1, device="meta"))
        except comm.CommError as exc:
            return str(exc)
        return ""

    for text in ranks(2, env={"HP_COMM": "c10d"}).run(check):
        assert "a tensor on meta cannot be communicated: the backend was initialised for cpu" in text


def test_uneven_gathers_do_not_depend_on_how_uneven_they_are():
    def check():
        import torch

        import hp_core.comm as comm

        for sizes in ([5, 5], [5, 4], [1, 40], [0, 3], [0, 0]):
            mine = torch.full((sizes[comm.rank()], 2), float(comm.rank()), dtype=torch.float16)
            whole = comm.all_gather(mine, sizes=sizes)
            assert whole[:, 0].tolist() == [0.0] * sizes[0] + [1.0] * sizes[1], sizes

    ranks(2, env={"HP_COMM": "c10d"}).run(check)


def test_a_single_element_with_another_stride_travels_as_bytes_too():
    def check():
        import torch

        import hp_core.comm as comm

        rank = comm.rank()
        mine = torch.tensor([rank + 1, -1], dtype=torch.int16)[::2]
        got = torch.zeros(2, dtype=torch.int16)[::2]
        assert mine.stride() == got.stride() == (2,)
        comm.batch_p2p([comm.P2P("send", mine, 1 - rank), comm.P2P("recv", got, 1 - rank)])
        assert got.tolist() == [2 - rank]
        assert comm.all_gather(mine).tolist() == [1, 2]
        assert comm.broadcast(mine, src=1).tolist() == [2]

    ranks(2, env={"HP_COMM": "c10d"}).run(check)


def test_communication_comes_up_again_and_again():
    def check():
        import torch

        import hp_core.comm as comm

        for _ in range(3):
            comm.shutdown()
            comm.init_backend("cpu")
            group = comm.new_group([1, 0])
            assert comm.all_reduce(torch.ones(1), group=group).item() == 2

    ranks(2, env={"HP_COMM": "c10d"}).run(check)


def test_torch_distributed_is_there_for_who_needs_it():
    def check():
        import torch.distributed as dist

        return dist.get_rank(), dist.get_world_size(), dist.get_backend()

    results = ranks(2, env={"HP_COMM": "c10d"}).run(check)
    assert [result[:2] for result in results] == [(0, 2), (1, 2)]
