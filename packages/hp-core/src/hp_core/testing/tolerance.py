# SPDX-License-Identifier: Apache-2.0
"""When do numbers computed on many ranks equal those of one process?

[Note: Tolerance]
For one tensor (the loss, the gradient or the weight of one parameter) at one step let r be the float64 reference,
s what one process computes in the compute type, x what a rank has, |t| the largest absolute number in t, and eps the
distance from 1 to the next number of the compute type. The errors are |x - r| and |s - r|, and x passes when

    |x - r|  <=  2 · own · |r|  +  eps · |r|

where own is one process's own error, |s - r| / |r|: the largest over the steps, and over five runs of one process.
The first run is as it is; four start from trained weights that are nudged at random by up to half an eps, which is
less than the rounding of any operation. A single run is often right by luck in a tensor of few numbers, and would
demand that luck of the ranks: measured with a correct data parallelism and SGD, 12 of 120 comparisons fail against
one run, 1 of 240 against five.

Where one process itself is wrong by half of |r| or more, the tensor holds nothing but rounding: the gradient of an
attention's key bias, say, is zero in exact arithmetic. It is compared with the largest |r| of its kind, G:

    |x - r|  <=  2 · max over steps and runs |s - r|  +  eps · G
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

FACTOR = 2.0
NOISE = 0.5
NUM_NUDGED = 4  # runs from nudged weights


@dataclass(frozen=True)
class Quantity:
    """One tensor that is compared: ``kind`` is ``"loss"``, ``"gradient"`` or ``"weight"``; steps count from 0."""

    kind: str
    name: str
    step: int

    def __str__(self) -> str:
        what = "loss" if self.kind == "loss" else f"{self.kind} of {self.name}"
        return f"{what} {'after' if self.kind == 'weight' else 'at'} step {self.step}"


@dataclass(frozen=True)
class Reference:
    """The size of a reference tensor (its largest absolute number), and the largest error of one process against it."""

    size: float
    own_error: float


@dataclass(frozen=True)
class Deviation:
    """The error of one rank in one tensor, and what it may be; all absolute."""

    rank: int
    quantity: Quantity
    error: float
    own_error: float
    bound: float
    size: float

    @property
    def ratio(self) -> float:
        """Error over bound: above 1 fails."""
        if self.error == 0.0:
            return 0.0
        return self.error / self.bound if self.bound > 0.0 else math.inf

    def __str__(self) -> str:
        scale = self.size or 1.0
        return (
            f"rank {self.rank}: {self.quantity}: off by {self.error:.3g} ({self.error / scale:.2g} of its largest"
            f" number), one process itself by {self.own_error:.3g}, allowed {self.bound:.3g}"
        )


def bounds(references: Mapping[Quantity, Reference], eps: float) -> dict[Quantity, float]:
    """Return the largest error allowed for each tensor. See [Note: Tolerance].

    Args:
        references: what is known of every tensor.
        eps: of the compute type.
    """
    own: dict[tuple[str, str], float] = {}
    noise: dict[tuple[str, str], float] = {}
    largest: dict[str, float] = {}
    for quantity, reference in references.items():
        key = (quantity.kind, quantity.name)
        largest[quantity.kind] = max(largest.get(quantity.kind, 0.0), reference.size)
        noise[key] = max(noise.get(key, 0.0), reference.own_error)
        if not _is_noise(reference):
            own[key] = max(own.get(key, 0.0), reference.own_error / reference.size)
    result = {}
    for quantity, reference in references.items():
        key = (quantity.kind, quantity.name)
        if _is_noise(reference):
            result[quantity] = FACTOR * noise[key] + eps * largest[quantity.kind]
        else:
            result[quantity] = (FACTOR * own[key] + eps) * reference.size
    return result


def _is_noise(reference: Reference) -> bool:
    return reference.own_error >= NOISE * reference.size
