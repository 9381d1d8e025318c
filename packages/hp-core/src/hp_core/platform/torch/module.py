# SPDX-License-Identifier: Apache-2.0
"""Parameters and hooks of ``nn.Module``. Contracts are in `hp_core.platform.protocols.ModuleOps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from hp_core.errors import PlatformError, did_you_mean
from hp_core.platform.protocols import HookKind, Removable


class TorchModule:
    """`ModuleOps` on torch."""

    def named_parameters(self, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every dotted name with its parameter; a tied one under each of its names."""
        return module.named_parameters(remove_duplicate=False)

    def set_parameter(self, module: nn.Module, name: str, value: torch.Tensor) -> nn.Parameter:
        """Register ``value`` under an existing parameter's name."""
        parameters = dict(self.named_parameters(module))
        if name not in parameters:
            raise PlatformError(
                f"{type(module).__name__} has no parameter {name!r}{did_you_mean(name, parameters)}: give a name of "
                "named_parameters()"
            )
        owner_name, _, own_name = name.rpartition(".")
        if not isinstance(value, nn.Parameter):
            value = nn.Parameter(value.detach(), requires_grad=parameters[name].requires_grad)
        module.get_submodule(owner_name).register_parameter(own_name, value)
        return value

    def add_hook(self, module: nn.Module, kind: HookKind, function: Callable[..., Any]) -> Removable:
        """Call ``function`` around the module's forward or backward."""
        kinds: dict[str, Callable[[], Removable]] = {
            "forward_pre": lambda: module.register_forward_pre_hook(function, with_kwargs=True),
            "forward": lambda: module.register_forward_hook(function, with_kwargs=True),
            "backward_pre": lambda: module.register_full_backward_pre_hook(function),
            "backward": lambda: module.register_full_backward_hook(function),
        }
        if kind not in kinds:
            raise PlatformError(f"unknown hook kind {kind!r}{did_you_mean(kind, kinds)}: one of {', '.join(kinds)}")
        return kinds[kind]()
