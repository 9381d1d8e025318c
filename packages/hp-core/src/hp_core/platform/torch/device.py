# SPDX-License-Identifier: Apache-2.0
"""Devices of torch: cpu, cuda and npu through one handle.

``torch.cuda`` and ``torch.npu`` (which torch_npu adds) are alike, so the handle is the module of that name and little
else. The CPU lacks events, memory and generators of its own there. Contracts are in
`hp_core.platform.protocols.DeviceOps`.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from types import TracebackType
from typing import Any

import torch

from hp_core.errors import PlatformError
from hp_core.platform.device_types import check_device_type
from hp_core.platform.host_memory import host_memory
from hp_core.platform.protocols import Memory
from hp_core.platform.torch.kernels import set_deterministic_kernels

_UNUSED = b"unused device, seed "


def open_device(device_type: str) -> TorchDevice:
    """Return the handle of a kind of device.

    Raises:
        PlatformError: If it is unknown or not there; the message says what to install.
    """
    check_device_type(device_type)
    if device_type == "npu":
        _import_npu()
    if device_type == "cuda" and not (torch.version.cuda or torch.version.hip):
        raise PlatformError(
            f"device 'cuda' was asked for, but this torch build ({torch.__version__}) has no CUDA: "
            "pip install torch from the index for your CUDA version, or use device 'cpu'"
        )
    api = getattr(torch, device_type)
    if device_type != "cpu" and not api.is_available():
        fix = (
            "look at nvidia-smi and CUDA_VISIBLE_DEVICES"
            if device_type == "cuda"
            else ("look at npu-smi info and ASCEND_RT_VISIBLE_DEVICES, and source CANN's set_env.sh")
        )
        raise PlatformError(f"device {device_type!r} was asked for, but no driver or no device is there: {fix}")
    return TorchDevice(device_type, api)


def _import_npu() -> None:
    if importlib.util.find_spec("torch_npu") is None:
        raise PlatformError("device 'npu' was asked for, but torch_npu is not installed: pip install 'hp-core[npu]'")
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # whatever the vendor's start-up raises: the user needs to know that it did
        raise PlatformError(
            f"device 'npu' was asked for, but torch_npu cannot be imported ({type(error).__name__}: {error}): "
            "install the torch_npu made for this torch and source CANN's set_env.sh"
        ) from error


class TorchDevice:
    """`DeviceOps` on torch."""

    def __init__(self, device_type: str, api: Any) -> None:
        self.type = device_type
        self.num_devices: int = api.device_count()
        self._api = api
        self._is_host = device_type == "cpu"
        self._seed = b""

    def __repr__(self) -> str:
        return f"TorchDevice({self.type!r}, num_devices={self.num_devices})"

    def use(self, index: int) -> None:
        """Make device ``index`` the current one of this thread."""
        if not 0 <= index < self.num_devices:
            raise PlatformError(
                f"device {self.type}:{index} was asked for, but this process can use {self.num_devices}, from 0: "
                f"start at most {self.num_devices} ranks on this host"
            )
        self._api.set_device(index)

    def synchronize(self, event: Any = None) -> None:
        """Block until ``event``, or everything on the current device, is done."""
        if self._is_host:
            return
        if event is None:
            self._api.synchronize()
        else:
            event.synchronize()

    def stream(self) -> TorchStream:
        """Return a new stream."""
        return TorchStream(self._api)

    def record(self) -> Any:
        """Return an event at the end of the current stream's queue."""
        if self._is_host:
            return HostEvent()
        event = self._api.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, event: Any) -> None:
        """Make the current stream wait for ``event``."""
        if not self._is_host:
            self._api.current_stream().wait_event(event)

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Return seconds between two events."""
        if self._is_host:
            return float(end.time_s - start.time_s)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def memory(self, *, reset_peak: bool = False) -> Memory:
        """Return this process' use of the current device; then, if asked, start a new peak."""
        if self._is_host:
            return host_memory(reset_peak=reset_peak)
        index = self._api.current_device()
        total: int = self._api.get_device_properties(index).total_memory
        memory = Memory(self._api.memory_allocated(), self._api.max_memory_allocated(), total)
        if reset_peak:
            self._api.reset_peak_memory_stats()
        return memory

    def seed(self, seed: int) -> None:
        """Seed the generators of all devices of the kind."""
        if self._is_host:
            torch.default_generator.manual_seed(seed)
        else:
            self._api.manual_seed_all(seed)
            self._seed = str(seed).encode()

    def rng_state(self) -> bytes:
        """Return the state of the current device's generator."""
        if not self._is_host and not self._api.is_initialized():
            # Asking torch would start the device, in a process that may never use it: its state is still its seed.
            return _UNUSED + self._seed
        state: torch.Tensor = torch.get_rng_state() if self._is_host else self._api.get_rng_state()
        return state.cpu().numpy().tobytes()

    def set_rng_state(self, state: bytes) -> None:
        """Restore what ``rng_state`` returned."""
        if state.startswith(_UNUSED) and not self._is_host:
            seed = state.removeprefix(_UNUSED)
            if seed:
                self.seed(int(seed))
            return
        try:
            tensor = torch.frombuffer(bytearray(state), dtype=torch.uint8)
            if self._is_host:
                torch.set_rng_state(tensor)
            else:
                self._api.set_rng_state(tensor)
        except (RuntimeError, ValueError, TypeError) as error:
            raise PlatformError(
                f"this is no state of a {self.type} generator ({error}): "
                "give what rng_state() of the same kind of device returned"
            ) from error

    def set_deterministic(self, enabled: bool, *, warn_only: bool = False) -> None:
        """Use only kernels that give the same bits every time, for the whole process."""
        set_deterministic_kernels(enabled, warn_only=warn_only)


class TorchStream:
    """A queue of a device: work inside ``with stream:`` goes on it. On the CPU work runs at once, as everywhere.

    Attributes:
        native: torch's own stream.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self.native = api.Stream()
        self._entered: list[Any] = []

    def __enter__(self) -> TorchStream:
        context = self._api.stream(self.native)
        context.__enter__()
        self._entered.append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)


class HostEvent:
    """An event on the CPU, where work is done when the call returns: the time it was recorded."""

    def __init__(self) -> None:
        self.time_s = time.perf_counter()
