# SPDX-License-Identifier: Apache-2.0
"""What the channel needs of a framework's tensors: where they are, and new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from hp_core.comm.types import Tensor, dtype_name
from hp_core.errors import CommError
from hp_core.platform import get_platform


class Tensors(Protocol):
    """A framework's tensors in CPU memory."""

    def pointer(self, tensor: Tensor) -> int:
        """Return the address of the first element, when nothing that was started before uses the memory any more."""

    def contiguous(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` where its elements lie in order without gaps, else a copy of it for which that holds."""

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a new contiguous tensor of the dtype of ``like``."""

    def assign(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Overwrite ``tensor``, whatever its strides, and return it."""


class StagedTensors(Tensors, Protocol):
    """What ``hier`` needs beyond that."""

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the elements of ``contiguous(tensor)`` as one dimension, in the same memory."""

    def octets(self, flat: Tensor) -> Tensor:
        """Return the memory of a flat tensor as ``uint8``."""

    def float32(self, flat: Tensor) -> Tensor:
        """Return a copy in ``float32``."""

    def mode(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return what makes another thread treat tensors as the calling one does now."""


class TorchTensors:
    """torch's."""

    def pointer(self, tensor: Tensor) -> int:
        """Return the address of the first element.

        Raises:
            CommError: the tensor is on another device.
        """
        if not tensor.is_cpu:
            raise CommError(
                f"a tensor on {tensor.device} cannot be communicated through shared memory; move it to a CPU"
            )
        address: int = tensor.data_ptr()
        return address

    def contiguous(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` or a contiguous copy."""
        return tensor.detach().contiguous()

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a new contiguous tensor of the dtype of ``like``."""
        return like.new_empty(shape)

    def assign(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Overwrite ``tensor`` and return it."""
        tensor.detach().copy_(values)
        return tensor

    def flat(self, tensor: Tensor) -> Tensor:
        """Return the elements as one dimension."""
        # A single element is contiguous with any stride, but only with stride 1 can it be seen as bytes.
        return self.contiguous(tensor).as_strided((tensor.numel(),), (1,))

    def octets(self, flat: Tensor) -> Tensor:
        """Return the memory as ``uint8``."""
        import torch

        return flat.view(torch.uint8)

    def float32(self, flat: Tensor) -> Tensor:
        """Return a copy in ``float32``."""
        return flat.float()

    def mode(self) -> Callable[[], AbstractContextManager[Any]]:
        """Return whether the thread is in inference mode, as something to enter."""
        import torch

        return partial(torch.inference_mode, torch.is_inference_mode_enabled())


class MindSporeTensors:
    """MindSpore's. Its operations are queued on a CPU, too; asking for an address waits for all of them."""

    def pointer(self, tensor: Tensor) -> int:
        """Return the address of the first element.

        Raises:
            CommError: the tensor is on another device.
        """
        if tensor.device != "CPU":
            raise CommError(
                f"a tensor on {tensor.device} cannot be communicated through shared memory; move it to a CPU"
            )
        address: int = tensor.data_ptr()
        return address

    def contiguous(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` or a contiguous copy."""
        return tensor if tensor.is_contiguous() else self.assign(self.empty(tensor, tuple(tensor.shape)), tensor)

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a new contiguous tensor of the dtype of ``like``."""
        return get_platform().tensor.empty(shape, dtype_name(like.dtype), "cpu")

    def assign(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Overwrite ``tensor`` and return it."""
        get_platform().tensor.copy_(tensor, values)
        return tensor


def tensors_of(framework: str) -> Tensors:
    """Return the tensors of ``framework``, a platform's name.

    Raises:
        CommError: its tensors are not known here.
    """
    known: dict[str, type[Tensors]] = {"torch": TorchTensors, "mindspore": MindSporeTensors}
    if framework not in known:
        raise CommError(
            f"shm moves tensors of {' and '.join(known)}, not of {framework}; use HP_COMM for another backend"
        )
    return known[framework]()
