# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch: allocate, alias, copy, free. Contracts are in `hp_core.platform.protocols.TensorOps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hp_core.errors import PlatformError, did_you_mean

# Integers of the same size, for dtypes that numpy lacks.
_BITS = {1: torch.uint8, 2: torch.uint16}
_DTYPES = {
    name: dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and str(dtype) == f"torch.{name}"
}


class TorchTensor:
    """`TensorOps` on torch."""

    def empty(self, shape: Sequence[int], dtype: str, device: str, *, pinned: bool = False) -> torch.Tensor:
        """Return a new tensor with undefined contents."""
        if dtype not in _DTYPES:
            raise PlatformError(
                f"unknown dtype {dtype!r}{did_you_mean(dtype, _DTYPES)}: give a name such as 'float32' or 'bfloat16'"
            )
        if pinned:
            if not device.startswith("cpu"):
                raise PlatformError(
                    f"pinned memory was asked for on {device!r}: only host memory ('cpu') can be pinned"
                )
            if not torch.accelerator.is_available():
                raise PlatformError("pinned memory was asked for, but there is no accelerator: leave pinned=False")
        return torch.empty(tuple(shape), dtype=_DTYPES[dtype], device=device, pin_memory=pinned)

    def from_numpy(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return a CPU tensor on the array's memory."""
        return torch.from_numpy(array)

    def to_numpy(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        """Return the values, on the memory of a CPU tensor."""
        plain = tensor.detach().cpu()
        if plain.dtype == torch.bfloat16 or str(plain.dtype).startswith("torch.float8"):
            plain = plain.view(_BITS[plain.element_size()])
        array: np.ndarray[Any, Any] = plain.numpy()
        return array

    def view(self, tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
        """Return an alias of the tensor's storage."""
        return tensor.as_strided(tuple(shape), tuple(stride), offset)

    def copy_(self, target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool = False) -> None:
        """Copy values in place, not recorded by autograd."""
        with torch.no_grad():
            target.copy_(source, non_blocking=non_blocking)

    def resize_storage(self, tensor: torch.Tensor, num_bytes: int) -> None:
        """Free (0) or re-allocate the storage."""
        storage = tensor.untyped_storage()
        if storage.nbytes() == num_bytes:
            return
        if not storage.resizable():
            raise PlatformError(
                f"the storage of a tensor of shape {tuple(tensor.shape)} cannot be resized: its memory is not torch's "
                "own (from numpy, shared or foreign memory); copy it into a tensor made by empty()"
            )
        storage.resize_(num_bytes)
