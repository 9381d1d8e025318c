# SPDX-License-Identifier: Apache-2.0
"""MindSpore in one process: its tensors, a world of one, what is refused. Run by ``nox -s mindspore``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hp_core.comm as comm
from hp_core.comm import fake
from hp_core.comm.backend import Member
from hp_core.errors import CommError, PlatformError
from hp_core.platform import get_platform
from hp_core.platform.protocols import Platform, TensorOps
from hp_core.testing.comm_programs import make_program
from hp_core.testing.comm_suite import Runner, run_program
from hp_core.testing.platform_suite import TensorAndDeviceChecks

pytestmark = pytest.mark.mindspore


class Checks(TensorAndDeviceChecks):
    """The checks of tensors; not collected by itself, as the platform has no devices yet."""

    platform_name = "mindspore"
    __test__ = False

    def linear(self, num_in: int, num_out: int) -> Any:
        from mindspore import mint

        return mint.nn.Linear(num_in, num_out)


@pytest.mark.parametrize(
    "check",
    [
        Checks.test_empty_has_the_shape_dtype_and_device_asked_for,
        Checks.test_pinned_memory_is_of_the_host_or_refused,
        Checks.test_values_go_to_numpy_and_back,
        Checks.test_a_view_aliases_the_storage_at_its_strides,
        Checks.test_copy_writes_through_every_kind_of_view,
    ],
    ids=lambda check: check.__name__,
)
def test_tensors_pass_the_platforms_suite(check) -> None:
    check(Checks())


def test_the_platform_is_chosen_and_says_what_it_lacks() -> None:
    platform = get_platform()
    assert platform.name == "mindspore"
    assert isinstance(platform, Platform)
    for name, member in vars(TensorOps).items():
        if inspect.isfunction(member) and name[0] != "_":
            asked = list(inspect.signature(member).parameters)[1:]
            assert list(inspect.signature(getattr(platform.tensor, name)).parameters) == asked
    for call in (
        lambda: platform.device("cpu"),
        lambda: platform.module.named_parameters(None),
        lambda: platform.autograd.no_grad(),
        lambda: platform.tensor.resize_storage(platform.tensor.empty((4,), "float32", "cpu"), 0),
        lambda: platform.tensor.empty((4,), "float32", "npu"),
    ):
        with pytest.raises(PlatformError, match="MindSpore"):
            call()


def test_values_are_read_when_what_was_started_before_is_done() -> None:
    from mindspore import mint

    ops = get_platform().tensor
    x = ops.from_numpy(np.full((1200, 1200), 1.0, np.float32))
    for _ in range(5):
        product = mint.matmul(x, x)  # takes some milliseconds; the call returns at once
        assert ops.to_numpy(product)[-1, -1] == 1200.0
        queued = mint.matmul(x, x)
        ops.copy_(x, ops.from_numpy(np.full((1, 1), 2.0, np.float32)))
        assert queued.asnumpy()[0, 0] == 1200.0, "what was queued read values that were written after it"
        ops.copy_(x, ops.from_numpy(np.full((1, 1), 1.0, np.float32)))


@pytest.fixture
def world() -> Iterator[comm.Group]:
    yield comm.init_backend("cpu")
    comm.shutdown()


def test_a_world_of_one_runs_every_program(world) -> None:
    assert world.backend == "mindspore"
    for seed in range(6):
        assert run_program(seed, 1, 60) == 60


@pytest.mark.parametrize("rank", range(3))
def test_fake_gives_the_shapes_of_every_program(rank: int) -> None:
    comm.init_backend("cpu", backend="fake", world_size=3, rank=rank)
    try:
        with fake.recorded() as calls:
            assert Runner(make_program(7, 3, 60), values=False).run() > 8
        assert {call.dtype for call in calls} >= {"bfloat16", "int8", "bool"}
    finally:
        comm.shutdown()


def test_what_gradients_go_through_is_refused_while_they_are_recorded(world) -> None:
    import mindspore

    x = mindspore.Tensor(np.ones(3, np.float32))
    parameter = mindspore.Parameter(x, name="weight")
    assert comm.all_reduce(parameter) is parameter  # nothing is recorded here

    def cut(value: Any) -> Any:
        comm.all_reduce(mindspore.ops.stop_gradient(value * 2))
        with mindspore.common._no_grad():
            comm.all_reduce(value * 2)
        return (value * 3).sum()

    assert mindspore.grad(cut)(x).asnumpy().tolist() == [3.0, 3.0, 3.0]

    errors = []

    def lost(value: Any) -> Any:
        doubled = value * parameter
        for call in (
            lambda: comm.all_reduce(doubled),
            lambda: comm.all_gather(parameter),
            lambda: comm.all_gather(mindspore.ops.stop_gradient(doubled), out=doubled),
            lambda: comm.batch_p2p([comm.P2P("send", doubled, 0), comm.P2P("recv", doubled + 0, 0)]),
        ):
            with pytest.raises(CommError, match="requires grad") as error:
                call()
            errors.append(str(error.value))
        return doubled.sum()

    mindspore.grad(lost)(x)
    assert len(errors) == 4
    assert "stop_gradient" in errors[0]


def test_what_cannot_be_communicated_is_refused(world) -> None:
    import mindspore
    from mindspore import mint
    from mindspore.common.initializer import One

    wrong = {
        r"not numpy.ndarray; pass mindspore.Tensor.from_numpy\(array\)": np.ones(3),
        r"shape \(3,\)\) was freed, or never allocated": mindspore.Tensor(
            shape=(3,), dtype=mindspore.float32, init=One()
        ),
        r"expected a tensor, not mindspore\..*COOTensor": mindspore.COOTensor(
            mindspore.Tensor([[0, 1]]), mindspore.Tensor([1.0]), (2, 2)
        ),
        r"shape \(2, 3\), strides \(0, 1\)\) share memory": mint.ones((1, 3)).broadcast_to((2, 3)),
        r"sum is not defined for complex64": mindspore.Tensor([1 + 2j], mindspore.complex64),
    }
    for text, tensor in wrong.items():
        with pytest.raises(CommError, match=text):
            comm.all_reduce(tensor)


@pytest.mark.parametrize("name", ["c10d", "gloo"])
def test_a_backend_of_torchs_is_refused(name: str) -> None:
    with pytest.raises(CommError, match=rf"backend '{name}' is torch's, and this process uses mindspore"):
        comm.init_backend("cpu", backend=name)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"backends": ("mindspore",)}, r"rank 1 is without it: pip install hp-native there .*leave HP_COMM"),
        ({"host": "b"}, r"rank 1 is on another host than rank 0: start all ranks on one"),
        ({"device_type": "npu"}, r"rank 1 is on npu: use init_backend\('cpu'\)"),
    ],
)
def test_a_group_that_cannot_communicate_is_told_why(change: dict[str, Any], text: str) -> None:
    from hp_core.comm.mindspore import MindSporeBackend

    common = {"host": "a", "device_type": "cpu", "pid": 1, "backends": ("shm", "mindspore")}
    backend = MindSporeBackend()
    backend.attach(None, [Member(0, **common), Member(1, **common | change)], 0)  # type: ignore[arg-type]
    with pytest.raises(CommError, match=r"rank 0: ranks \[0, 1\] cannot communicate: .* hp-native .*one host; " + text):
        backend.connect("key", [0, 1], 0, 1.0)


def test_the_doctor_finds_it_well_without_an_ascend_device() -> None:
    from hp_core.cli.probe import probe_mindspore

    found = probe_mindspore()
    assert found["version"].startswith("2.")
    assert found["devices"] == []
    assert found["notes"] == {"npu": "MindSpore sees no Ascend device"}
