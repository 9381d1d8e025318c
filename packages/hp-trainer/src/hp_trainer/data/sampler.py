# SPDX-License-Identifier: Apache-2.0
"""Which samples a rank takes when. Pure integers: no framework, no communication.

The global order is one endless sequence, shuffled anew each epoch from (seed, epoch) and independent of the number of
ranks. A micro-step takes the next ``num_ranks * micro_batch_size`` samples of it, and rank r the r-th part of those. So
n ranks with micro-batches of m see, micro-step for micro-step, what one rank with micro-batches of n * m sees.
"""

from __future__ import annotations

import numpy as np


class Sampler:
    """The order of the training samples, as one rank sees it.

    Its whole state is the position in the global sequence, the same on all ranks.

    Args:
        num_samples: Samples in an epoch, at least 1.
        micro_batch_size: Samples a rank takes per micro-step.
        rank: This rank's index among the data-parallel ranks.
        num_ranks: How many those are.
        seed: Seed of the shuffling.
    """

    def __init__(self, num_samples: int, micro_batch_size: int, *, rank: int, num_ranks: int, seed: int) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}, expected at least 1")
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank {rank} is not among {num_ranks} ranks")
        self.num_samples = num_samples
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.num_ranks = num_ranks
        self.seed = seed
        self.position = 0
        self._epoch = -1
        self._permutation: np.ndarray[tuple[int], np.dtype[np.int64]] = np.empty(0, np.int64)

    def next_indices(self) -> list[int]:
        """Return the samples of this rank's next micro-batch and move on."""
        first = self.position + self.rank * self.micro_batch_size
        self.position += self.num_ranks * self.micro_batch_size
        return [self._at(place) for place in range(first, first + self.micro_batch_size)]

    def state_dict(self) -> dict[str, int]:
        """Return the position in the data, with which `load_state_dict` goes on from here on any number of ranks.

        This is what a checkpoint will keep of the data; no run writes checkpoints yet.
        """
        return {"position": self.position, "seed": self.seed, "num_samples": self.num_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where ``state`` was taken.

        Raises:
            ValueError: The state belongs to other data or another seed: the order would not be the same.
        """
        for key in ("seed", "num_samples"):
            if state[key] != getattr(self, key):
                raise ValueError(f"the state is of {key} {state[key]}, this sampler has {getattr(self, key)}")
        self.position = state["position"]

    def _at(self, place: int) -> int:
        epoch, offset = divmod(place, self.num_samples)
        if epoch != self._epoch:
            self._permutation = np.random.default_rng((self.seed, epoch)).permutation(self.num_samples)
            self._epoch = epoch
        return int(self._permutation[offset])
