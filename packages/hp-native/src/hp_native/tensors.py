# SPDX-License-Identifier: Apache-2.0
"""What the channel needs of a framework's tensors: where they are, and new ones."""

from __future__ import annotations

from collections.abc import Sequence
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


def tensors_of(framework: str) -> Any:
    """Return the tensors of ``framework``, a platform's name."""
    known = {"torch": TorchTensors}
    return known[framework]()
