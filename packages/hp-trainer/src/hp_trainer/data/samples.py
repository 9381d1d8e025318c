# SPDX-License-Identifier: Apache-2.0
"""Pack a stream of ids into samples of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

#: Label of a position that has no target; torch's cross entropy ignores it.
IGNORE = -100


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    Attributes:
        input_ids: int64, [samples, seq_len].
        labels: int64, the same shape: the token after each position, or -100.
        num_targets: How many labels count.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    num_targets: int

    def to(self, device: torch.device) -> Batch:
        """Return the batch on ``device``."""
        return Batch(self.input_ids.to(device), self.labels.to(device), self.num_targets)


class Samples:
    """The samples of a stream: windows of ``seq_len`` inputs, every token a target exactly once.

    Documents follow each other, parted by the end-of-text token. The last window is filled up with positions that do
    not count, so no text is dropped and token counts of ranks may differ.
    """

    def __init__(self, tokens: NDArray[Any], seq_len: int) -> None:
        self._tokens = tokens
        self.seq_len = seq_len

    def __len__(self) -> int:
        """Return the number of samples; at least one where there is a target at all."""
        return max(-(-(len(self._tokens) - 1) // self.seq_len), 0)

    @property
    def num_targets(self) -> int:
        """Return how many targets all samples have together."""
        return max(len(self._tokens) - 1, 0)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the samples ``indices`` as one batch, on the CPU."""
        import torch

        inputs = np.zeros((len(indices), self.seq_len), np.int64)
        labels = np.full((len(indices), self.seq_len), IGNORE, np.int64)
        count = 0
        for row, index in enumerate(indices):
            start = index * self.seq_len
            window = self._tokens[start : start + self.seq_len + 1]
            length = len(window) - 1
            inputs[row, :length] = window[:-1]
            labels[row, :length] = window[1:]
            count += length
        return Batch(torch.from_numpy(inputs), torch.from_numpy(labels), count)
