# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, MindSpore and NumPy over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hp_core.comm.types import Tensor, dtype_name
from hp_core.errors import CommError

Framework = Literal["torch", "mindspore", "numpy"]


def framework_of(dtype: Any) -> Framework:
    """Return whose ``dtype`` it is.

    Raises:
        CommError: nobody's.
    """
    module = type(dtype).__module__.partition(".")[0]
    if module in ("torch", "mindspore"):
        return module  # type: ignore[return-value]
    try:
        np.dtype(dtype)
    except TypeError:
        raise CommError(f"{dtype!r} is not a dtype of torch, MindSpore or NumPy") from None
    return "numpy"


def item_bytes(framework: Framework, dtype: Any) -> int:
    """Return the size of one element."""
    if framework == "torch":
        return int(dtype.itemsize)
    if framework == "numpy":
        return int(np.dtype(dtype).itemsize)
    return _WIDTHS[dtype_name(dtype)]


_WIDTHS = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
}


def wrap(framework: Framework, memory: Any, dtype: Any, shape: Sequence[int]) -> Tensor:
    """Return a tensor over ``memory``, a NumPy array of bytes, which it keeps alive."""
    if framework == "numpy":
        return memory.view(dtype).reshape(shape)
    if framework == "torch":
        import torch

        return torch.from_numpy(memory).view(dtype).view(tuple(shape))
    import mindspore

    if dtype_name(dtype) == "bfloat16":
        raise CommError("MindSpore makes no bfloat16 tensors over foreign memory; use float16 or float32")
    return mindspore.Tensor.from_numpy(memory.view(dtype_name(dtype)).reshape(shape))


def pointer(tensor: Tensor) -> int:
    """Return the address of the first element."""
    address: int = tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()
    return address
