# SPDX-License-Identifier: Apache-2.0
"""What a framework backend must offer: everything that HyperParallel needs and frameworks spell differently.

There is no mathematics here: a framework's own operations run on local tensors. Nor is there anything that torch and
MindSpore spell alike (``tensor.shape``, ``tensor.view``, ``parameter.data = …``, ``requires_grad_()``,
``tensor.register_hook``, ``handle.remove()``). With the backend Protocols of `hp_core.comm.backend` there are at
most 48 callables, and a test lists them by name: a new one has to displace an old one.

Each docstring says what MindSpore (2.10, PyNative) maps it to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np

Tensor = Any
Module = Any
Parameter = Any
Stream = AbstractContextManager[Any]
Event = Any
HookKind = Literal["forward_pre", "forward", "backward_pre", "backward"]


@dataclass(frozen=True)
class Memory:
    """Memory of a device as this process uses it, in bytes.

    Attributes:
        used_bytes: Now. On an accelerator what tensors occupy; on the CPU the resident set of the process.
        peak_bytes: The most there was since the last reset, or since the process started.
        total_bytes: Of the device; on the CPU of the machine, or of the control group where that has less.
    """

    used_bytes: int
    peak_bytes: int
    total_bytes: int


class Removable(Protocol):
    """What hooks are taken off with; both frameworks' handles are such."""

    def remove(self) -> None:
        """Take the hook off; a second call does nothing."""


class TensorOps(Protocol):
    """Allocate, alias, copy, free."""

    def empty(self, shape: Sequence[int], dtype: str, device: str, *, pinned: bool = False) -> Tensor:
        """Return a new tensor with undefined contents.

        MindSpore: ``mint.empty(shape, dtype=…, device=…)``; ``pin_memory()`` for pinned.

        Args:
            shape: Its shape; may have zeros.
            dtype: Name of the dtype, such as ``"bfloat16"``.
            device: ``"cpu"``, ``"cuda"``, ``"npu"``, with ``:index`` for another than the current one, or ``"meta"``.
            pinned: Page-locked host memory, for asynchronous copies; CPU only, needs an accelerator.

        Raises:
            PlatformError: If the dtype is unknown, or pinned memory was asked for where there is none.
        """

    def from_numpy(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return a CPU tensor on the array's memory. MindSpore: ``Tensor.from_numpy``."""

    def to_numpy(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return the values: on a CPU tensor's own memory, else a copy. Waits for the device.

        bfloat16 and float8, which numpy does not have, come as unsigned integers with the same bits.
        MindSpore: ``asnumpy()``.
        """

    def view(self, tensor: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
        """Return an alias of the tensor's storage: strides and offset in elements, the offset from its beginning.

        Autograd sees an ordinary view. MindSpore: ``mint``'s ``as_strided``.
        """

    def copy_(self, target: Tensor, source: Tensor, *, non_blocking: bool = False) -> None:
        """Copy values in place, between devices and dtypes, through views of any strides; not recorded by autograd.

        The one way to write in place: MindSpore's ``copy_`` into a slice or a transpose, and its ``add_`` and the
        like, do nothing on the CPU. MindSpore: ``target[...] = source`` under ``_no_grad``.
        """

    def resize_storage(self, tensor: Tensor, num_bytes: int) -> None:
        """Free (0) or re-allocate the storage; shape, strides and aliases stay. Contents are lost.

        MindSpore: ``tensor.storage.resize_(num_bytes)``.

        Raises:
            PlatformError: If the storage is not the framework's own (shared or foreign memory).
        """


class DeviceOps(Protocol):
    """One kind of device, seen from this process; what ``platform.device("cuda")`` returns.

    On the CPU everything runs at once: streams and events change nothing and are there so that callers need no second
    path. So they are in MindSpore on a CPU.
    """

    type: str
    """``"cpu"``, ``"cuda"`` or ``"npu"``."""
    num_devices: int
    """Devices of the kind that this process can use."""

    def use(self, index: int) -> None:
        """Make device ``index`` the current one of this thread. MindSpore: ``ms.set_device(type, index)``, once.

        Raises:
            PlatformError: If there is no such device.
        """

    def synchronize(self, event: Event | None = None) -> None:
        """Block until ``event``, or everything on the current device, is done. MindSpore: ``runtime.synchronize``."""

    def stream(self) -> Stream:
        """Return a new stream; work inside ``with stream:`` is queued on it. MindSpore: ``StreamCtx(Stream())``."""

    def record(self) -> Event:
        """Return an event at the end of the current stream's queue. MindSpore: ``Event(enable_timing=True)``."""

    def wait(self, event: Event) -> None:
        """Make the current stream wait for ``event``; returns at once. MindSpore: ``current_stream().wait_event``."""

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Return seconds between two events; waits for the second. MindSpore: ``start.elapsed_time(end) / 1000``."""

    def memory(self, *, reset_peak: bool = False) -> Memory:
        """Return this process' use of the current device; then, if asked, start a new peak.

        MindSpore: ``runtime.memory_allocated``, ``max_memory_allocated``, ``reset_peak_memory_stats``; the resident
        set on the CPU, where those are 0.
        """

    def seed(self, seed: int) -> None:
        """Seed the generators of all devices of the kind. MindSpore: ``ms.set_seed`` (not ``manual_seed``)."""

    def rng_state(self) -> bytes:
        """Return the state of the current device's generator; does not start a device that was not used.

        MindSpore: ``ms.get_rng_state``.
        """

    def set_rng_state(self, state: bytes) -> None:
        """Restore what ``rng_state`` returned. MindSpore: ``ms.set_rng_state``.

        Raises:
            PlatformError: If it is no such state.
        """

    def set_deterministic(self, enabled: bool, *, warn_only: bool = False) -> None:
        """Use only kernels that give the same bits every time, for the whole process. MindSpore: ``set_deterministic``.

        Args:
            enabled: On or off.
            warn_only: Where an operation has no such kernel, warn instead of raising.
        """


class ModuleOps(Protocol):
    """Parameters and hooks of ``nn.Module``, or ``Cell``."""

    def named_parameters(self, module: Module) -> Iterator[tuple[str, Parameter]]:
        """Yield every dotted name with its parameter; a tied one comes under each of its names.

        MindSpore: ``_params`` of ``cells_and_names()`` (``parameters_and_names`` drops the second name).
        """

    def set_parameter(self, module: Module, name: str, value: Tensor) -> Parameter:
        """Register ``value`` under an existing parameter's dotted name and return what is registered.

        A parameter is registered as it is; any other tensor is made one, sharing its memory, trainable as the old one
        was. MindSpore: ``cell._params[name] = Parameter(value)``.

        Raises:
            PlatformError: If the module has no parameter of that name.
        """

    def add_hook(self, module: Module, kind: HookKind, function: Callable[..., Any]) -> Removable:
        """Call ``function`` around the module's forward or backward, after hooks that were there before.

        * ``"forward_pre"``: ``function(module, args, kwargs)`` returns None, or new ``(args, kwargs)``.
        * ``"forward"``: ``function(module, args, kwargs, output)`` returns None, or a new output.
        * ``"backward_pre"``: ``function(module, grad_outputs)`` returns None, or new ones.
        * ``"backward"``: ``function(module, grad_inputs, grad_outputs)`` returns None, or new grad_inputs.

        MindSpore: ``register_forward_pre_hook``, ``register_forward_hook`` (``with_kwargs=True``),
        ``register_backward_pre_hook``, ``register_backward_hook``.

        Raises:
            PlatformError: If the kind is unknown.
        """


class AutogradOps(Protocol):
    """Recording, custom derivatives, gradients of leaves."""

    def no_grad(self) -> AbstractContextManager[Any]:
        """Return a context in which nothing is recorded. MindSpore: ``mindspore.common._no_grad``."""

    def function(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``forward`` with ``backward`` as its derivative.

        ``forward(ctx, *inputs)`` returns a tensor or a tuple; ``backward(ctx, *grads)`` one gradient, or None, for each
        input. Both frameworks' ``ctx`` has ``save_for_backward`` and ``saved_tensors``. MindSpore: ``_Function``.
        """

    def saved_tensors_hooks(
        self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which what autograd saves goes through ``pack``, and ``unpack`` when needed.

        MindSpore: ``saved_tensors_hooks``.
        """

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None] | None = None) -> None:
        """Add the derivatives of ``tensors`` to the gradients of the leaves.

        ``grads`` are the derivatives by the tensors, ones for a single number. MindSpore: ``run_backward``.
        """

    def grad(self, parameter: Parameter) -> Tensor | None:
        """Return the gradient of a leaf, or None. MindSpore: ``_grad``."""

    def set_grad(self, parameter: Parameter, grad: Tensor | None) -> None:
        """Set or clear the gradient of a leaf; it has the leaf's shape. MindSpore: ``_grad = …``."""

    def on_grad(self, parameter: Parameter, function: Callable[[Parameter], Any]) -> Removable:
        """Call ``function(parameter)`` each time a backward has added to the leaf's gradient.

        MindSpore: a hook on ``_grad_node`` that returns ``g.contiguous()`` (else accumulated gradients of linear
        weights come out transposed).
        """


@runtime_checkable
class Platform(Protocol):
    """A framework: what `hp_core.platform.get_platform` returns. Made without arguments."""

    name: str
    """``"torch"`` or ``"mindspore"``."""
    tensor: TensorOps
    module: ModuleOps
    autograd: AutogradOps

    def device(self, device_type: str) -> DeviceOps:
        """Return the handle of a kind of device; the same object each time.

        Raises:
            PlatformError: If it is unknown or not there; the message says what to install.
        """


#: Every Protocol of a platform; with those of comm, what the frozen list counts.
PROTOCOLS: tuple[type, ...] = (Platform, TensorOps, DeviceOps, ModuleOps, AutogradOps)
