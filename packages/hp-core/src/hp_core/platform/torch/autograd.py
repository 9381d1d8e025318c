# SPDX-License-Identifier: Apache-2.0
"""Autograd of torch. Contracts are in `hp_core.platform.protocols.AutogradOps`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from hp_core.platform.protocols import Removable


class TorchAutograd:
    """`AutogradOps` on torch."""

    def no_grad(self) -> AbstractContextManager[Any]:
        """Return a context in which nothing is recorded."""
        return torch.no_grad()

    def function(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``forward`` with ``backward`` as its derivative."""
        name = getattr(forward, "__name__", "forward").strip("_") or "forward"
        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        made: Any = type(name, (torch.autograd.Function,), methods)
        apply: Callable[..., Any] = made.apply
        return apply

    def saved_tensors_hooks(
        self, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which saved tensors go through ``pack`` and ``unpack``."""
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def backward(self, tensors: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None] | None = None) -> None:
        """Add the derivatives of ``tensors`` to the gradients of the leaves."""
        torch.autograd.backward(list(tensors), None if grads is None else list(grads))

    def grad(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient of a leaf, or None."""
        return parameter.grad

    def set_grad(self, parameter: torch.Tensor, grad: torch.Tensor | None) -> None:
        """Set or clear the gradient of a leaf."""
        parameter.grad = grad

    def on_grad(self, parameter: torch.Tensor, function: Callable[[torch.Tensor], Any]) -> Removable:
        """Call ``function(parameter)`` each time a backward has added to the leaf's gradient."""

        def hook(leaf: torch.Tensor) -> None:
            function(leaf)

        handle: Removable = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        return handle
