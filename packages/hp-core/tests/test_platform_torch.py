# SPDX-License-Identifier: Apache-2.0
"""The torch platform passes the suite on the CPU, and what the suite cannot say of every framework."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from hp_core.errors import HPError, PlatformError
from hp_core.platform import get_platform
from hp_core.platform.torch import device as device_module
from hp_core.testing.platform_suite import PlatformSuite


class TestTorchOnCpu(PlatformSuite):
    platform_name = "torch"
    device_type = "cpu"


def test_the_suite_runs_without_pytest_and_reports_what_fails() -> None:
    class Broken(PlatformSuite):
        def randn(self, *shape: int):
            return torch.zeros(*shape)

    good, bad = PlatformSuite.run_all("cpu"), Broken.run_all("cpu")
    assert len(good) >= 20
    assert [result.error for result in good if not result.ok] == []
    assert [result.name for result in bad if not result.ok] == ["test_a_seed_and_a_state_give_the_same_numbers_again"]
    assert "AssertionError" in bad[[r.ok for r in bad].index(False)].error
    assert all(not result.ok for result in PlatformSuite.run_all("abacus") if "devices_are_counted" in result.name)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("tpu", r"unknown device 'tpu': it is one of cpu, cuda, npu; did you mean"),
        ("gpu", r"unknown device 'gpu'.*did you mean 'cuda'\?"),
        ("cuda:1", r"unknown device 'cuda:1'.*did you mean 'cuda'\?"),
        ("Ascend", r"did you mean 'npu'\?"),
        ("", r"unknown device ''"),
    ],
)
def test_an_unknown_device_names_the_known_ones(asked: str, message: str) -> None:
    with pytest.raises(PlatformError, match=message) as error:
        get_platform().device(asked)
    assert isinstance(error.value, HPError)
    assert "\n" not in str(error.value)


def test_npu_without_torch_npu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PlatformError, match=r"torch_npu is not installed: pip install 'hp-core\[npu\]'"):
        device_module.open_device("npu")


@pytest.fixture
def torch_npu(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs a torch_npu of the given source; it is gone afterwards, imported or not."""
    kept = sys.modules.pop("torch_npu", None)

    def install(source: str) -> None:
        (tmp_path / "torch_npu.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("torch_npu", None)
    if kept is not None:
        sys.modules["torch_npu"] = kept


def test_npu_whose_torch_npu_does_not_load_says_why(torch_npu) -> None:
    torch_npu("raise OSError('libhccl.so: cannot open shared object file')\n")
    with pytest.raises(PlatformError, match=r"cannot be imported \(OSError: libhccl.so.*set_env.sh"):
        device_module.open_device("npu")


def test_npu_without_a_device_says_where_to_look(torch_npu, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_npu("")
    monkeypatch.setattr(torch, "npu", types.SimpleNamespace(is_available=lambda: False), raising=False)
    with pytest.raises(PlatformError, match=r"device 'npu'.*no driver or no device is there: look at npu-smi"):
        device_module.open_device("npu")


def test_cuda_without_a_cuda_build_or_without_a_driver_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(PlatformError, match=r"this torch build \(.*\) has no CUDA: pip install torch"):
        device_module.open_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(PlatformError, match=r"device 'cuda'.*no driver or no device is there: look at nvidia-smi"):
        device_module.open_device("cuda")


def test_switching_deterministic_kernels_off_restores_what_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    device = get_platform().device("cpu")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    import os

    device.set_deterministic(True, warn_only=True)
    try:
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert not torch.backends.cudnn.benchmark
    finally:
        device.set_deterministic(False)
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert torch.backends.cudnn.benchmark


def test_a_workspace_setting_of_the_users_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    device = get_platform().device("cpu")
    device.set_deterministic(True)
    device.set_deterministic(False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
