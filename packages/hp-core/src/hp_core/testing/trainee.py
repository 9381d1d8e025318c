# SPDX-License-Identifier: Apache-2.0
"""What a parallel feature shows of itself, so that it can be compared with one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LossFunction = Callable[[Any, Any], Any]


class Trainee:
    """A model in training, by itself on one process; a feature overrides what it does differently.

    Every rank makes its own, and all ranks call each method in the same order, so a method may communicate.

    Attributes:
        model: the model, as the feature left it.
        loss_fn: ``loss_fn(model, batch)`` gives the mean loss of ``batch``, a 0-d tensor.
        has_every_name: whether ``gradients``, ``weights`` and the loss are complete on every rank. A pipeline says
            ``False``: then each rank gives what it has (a loss of ``None`` too), and the union over the ranks must
            be complete.
    """

    has_every_name: bool = True

    def __init__(self, model: torch.nn.Module, loss_fn: LossFunction) -> None:
        self.model = model
        self.loss_fn = loss_fn

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return what the optimizer of this rank updates."""
        return self.model.parameters()

    def forward_backward(self, batch: Any) -> torch.Tensor | None:
        """Run forward and backward of one step and leave the final gradients, ready for the optimizer.

        Args:
            batch: the WHOLE batch of the step, equal on all ranks; taking this rank's part of it is the feature's
                business, and so is accumulation over pieces.

        Returns:
            The loss of the whole batch, a 0-d tensor, not this rank's part of it.
        """
        loss: torch.Tensor = self.loss_fn(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def gradients(self) -> Mapping[str, torch.Tensor | None]:
        """Return the full gradient of each parameter, by the name it has in the single-process model.

        ``None`` is a parameter without gradient, which is not the same as a gradient of zeros. The kit copies.
        """
        return {name: parameter.grad for name, parameter in self.model.named_parameters()}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return each full parameter, by the name it has in the single-process model. The kit copies."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}


def model_loss(model: Any, batch: Any) -> Any:
    """Call ``model`` on ``batch`` (a mapping: keywords, a tuple or list: positions) and return its loss.

    The loss is the output's ``.loss``, where it has one, else the output itself.
    """
    if isinstance(batch, Mapping):
        output = model(**batch)
    elif isinstance(batch, tuple | list):
        output = model(*batch)
    else:
        output = model(batch)
    return getattr(output, "loss", output)
