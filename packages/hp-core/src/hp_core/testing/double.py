# SPDX-License-Identifier: Apache-2.0
"""Run a torch model in float64, also where its code says ``float32``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_NARROW = (torch.float32, torch.float16, torch.bfloat16)


class _Double(TorchFunctionMode):
    """Reads every floating dtype in a call as float64.

    Models compute norms, softmax and rotary tables "in float32 at least": ``x.to(torch.float32)``. In a float64
    reference that would be a step down, and the reference no better than what it is to judge.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            func = torch.Tensor.double
        args = tuple(_widened(value) for value in args)
        return func(*args, **{name: _widened(value) for name, value in (kwargs or {}).items()})


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


@contextlib.contextmanager
def float64_everywhere() -> Iterator[None]:
    """Within it, new tensors are float64 and casts to a narrower floating type give float64. This rank only."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Double():
            yield
    finally:
        torch.set_default_dtype(before)
