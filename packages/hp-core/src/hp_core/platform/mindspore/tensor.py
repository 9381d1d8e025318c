# SPDX-License-Identifier: Apache-2.0
"""Tensors of MindSpore: allocate, alias, copy, free. Contracts are in `hp_core.platform.protocols.TensorOps`.

[Note: Queued operations] MindSpore returns from an operation when it is queued, on a CPU too. ``data_ptr()`` of
any tensor waits for all that is queued, so what has asked for an address may read and write that memory.

[Note: In place] Many of MindSpore's in-place operations do nothing or fail on a CPU, depending on strides and dtype.
Values are therefore written through NumPy on the tensor's own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import mint
from mindspore.ops.auto_generate.gen_ops_def import as_strided

from hp_core.errors import PlatformError, did_you_mean

# fmt: off
_NAMES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)
# fmt: on
_DTYPES = {name: getattr(mindspore, name) for name in _NAMES}
_NUMPY = {_DTYPES[name]: np.dtype(name).str for name in _NAMES if "bfloat" not in name and "float8" not in name}


class MindSporeTensor:
    """`TensorOps` on MindSpore."""

    def empty(self, shape: Sequence[int], dtype: str, device: str, *, pinned: bool = False) -> mindspore.Tensor:
        """Return a new tensor with undefined contents."""
        if dtype not in _DTYPES:
            raise PlatformError(
                f"unknown dtype {dtype!r}{did_you_mean(dtype, _DTYPES)}: give a name such as 'float32' or 'bfloat16'"
            )
        if pinned:
            raise PlatformError("pinned memory was asked for, but there is no accelerator: leave pinned=False")
        if device not in ("cpu", "meta"):
            raise PlatformError(f"device {device!r} was asked for, but MindSpore serves 'cpu' and 'meta' here")
        return mint.empty(tuple(shape), dtype=_DTYPES[dtype], device=device)

    def from_numpy(self, array: np.ndarray[Any, Any]) -> mindspore.Tensor:
        """Return a CPU tensor on the array's memory."""
        return mindspore.Tensor.from_numpy(array)

    def to_numpy(self, tensor: mindspore.Tensor) -> np.ndarray[Any, Any]:
        """Return the values, on the tensor's own memory whatever its strides."""
        return np.asarray(_Memory(tensor))

    def view(
        self, tensor: mindspore.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int
    ) -> mindspore.Tensor:
        """Return an alias of the tensor's storage."""
        return as_strided(tensor, tuple(shape), tuple(stride), offset)

    def copy_(self, target: mindspore.Tensor, source: mindspore.Tensor, *, non_blocking: bool = False) -> None:
        """Copy values in place, not recorded by autograd."""
        if source.dtype != target.dtype:
            with mindspore.common._no_grad():
                source = source.astype(target.dtype)
        self.to_numpy(target)[...] = self.to_numpy(source)

    def resize_storage(self, tensor: mindspore.Tensor, num_bytes: int) -> None:
        """Refuse: MindSpore forgets the size of foreign memory and goes on using it, and does not say whose it is."""
        raise PlatformError(
            f"the storage of a tensor of shape {tuple(tensor.shape)} cannot be resized: with MindSpore that is not "
            "safe for memory that may not be its own; drop the tensor and make another with empty()"
        )


class _Memory:
    """A tensor's memory as NumPy takes it; arrays on it keep it, and with it the tensor, alive."""

    def __init__(self, tensor: mindspore.Tensor) -> None:
        address, width = tensor.data_ptr(), tensor.itemsize
        if not address and tensor.numel():
            raise PlatformError(
                f"a tensor of shape {tuple(tensor.shape)} on {tensor.device} has no memory here: it was freed, or "
                "never allocated (init_data() does that for a tensor made with init=...)"
            )
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * width for step in tensor.stride()),
            "typestr": _NUMPY.get(tensor.dtype) or np.dtype(f"u{width}").str,
        }
