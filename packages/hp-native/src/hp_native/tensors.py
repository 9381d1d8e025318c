# SPDX-License-Identifier: Apache-2.0
"""What the channel needs of a framework's tensors: where they are, and new ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from hp_core.comm.types import Tensor
from hp_core.errors import CommError


class Tensors(Protocol):
    """A framework's tensors in CPU memory."""

    def pointer(self, tensor: Tensor) -> int:
        """Return the address of the first element."""

    def contiguous(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` where its elements lie in order without gaps, else a copy of it for which that holds."""

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return a new contiguous tensor of the dtype of ``like``."""

    def assign(self, tensor: Tensor, values: Tensor) -> Tensor:
        """Overwrite ``tensor``, whatever its strides, and return it."""

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


def tensors_of(framework: str) -> Any:
    """Return the tensors of ``framework``, a platform's name."""
    known = {"torch": TorchTensors}
    return known[framework]()
