# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch, MindSpore and NumPy over the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hp_core.comm.types import Tensor
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
    return int(np.dtype(dtype).itemsize if framework == "numpy" else dtype.itemsize)


def wrap(framework: Framework, memory: Any, dtype: Any, shape: Sequence[int]) -> Tensor:
    """Return a tensor over ``memory``, a NumPy array of bytes, which it keeps alive."""
    if framework == "numpy":
        return memory.view(dtype).reshape(shape)
    if framework == "torch":
        import torch

        return torch.from_numpy(memory).view(dtype).view(tuple(shape))
    import mindspore

    # NumPy lacks bfloat16 and its like: over plain numbers of that width, seen as the dtype.
    width = item_bytes(framework, dtype)
    numbers = memory.view("c16" if width == 16 else f"i{width}")
    return mindspore.Tensor.from_numpy(numbers).view(dtype).reshape(tuple(shape))


def pointer(tensor: Tensor) -> int:
    """Return the address of the first element."""
    address: int = tensor.ctypes.data if isinstance(tensor, np.ndarray) else tensor.data_ptr()
    if not address and hasattr(tensor, "untyped_storage"):
        # torch says 0 of a tensor without elements, wherever it lies; its offset may lie behind the end.
        address = tensor.untyped_storage().data_ptr()
    return address
