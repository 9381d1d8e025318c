# SPDX-License-Identifier: Apache-2.0
"""Deterministic kernels of torch: switches that are global to the process."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

# Read by the libraries when they start: set before the first matrix product and the first collective.
_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may pick another algorithm per stream
    "HCCL_DETERMINISTIC": "true",  # collectives of Ascend reduce in a fixed order
}


@dataclass(frozen=True)
class _Switches:
    enabled: bool
    warn_only: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    set_here: tuple[str, ...]


_before: _Switches | None = None


def set_deterministic_kernels(enabled: bool, *, warn_only: bool = False) -> None:
    """Switch torch's deterministic kernels on, or back to what was before they were switched on."""
    global _before
    if enabled:
        if _before is None:
            missing = tuple(name for name in _ENVIRONMENT if name not in os.environ)
            _before = _Switches(
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                torch.backends.cudnn.deterministic,
                torch.backends.cudnn.benchmark,
                missing,
            )
            os.environ.update({name: _ENVIRONMENT[name] for name in missing})
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False  # it times kernels and takes the fastest of the moment
    elif _before is not None:
        torch.use_deterministic_algorithms(_before.enabled, warn_only=_before.warn_only)
        torch.backends.cudnn.deterministic = _before.cudnn_deterministic
        torch.backends.cudnn.benchmark = _before.cudnn_benchmark
        for name in _before.set_here:
            os.environ.pop(name, None)
        _before = None
    else:
        torch.use_deterministic_algorithms(False)
