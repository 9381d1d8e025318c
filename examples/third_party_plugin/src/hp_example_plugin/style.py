# SPDX-License-Identifier: Apache-2.0
"""Whole parameters, each owned by one rank, spread so that the ranks own about equally much."""

from __future__ import annotations

import heapq
import math
from typing import Any


class WholeParameters:
    """Give every parameter of a module an owner among the ranks of a mesh; no parameter is cut.

    What an optimizer that needs whole matrices (Muon, Shampoo) wants: the owner updates, the others receive. The
    plan is the same on every rank, computed from names and shapes alone; nothing is communicated.

    Args:
        attribute: Name of the module's attribute that will hold the plan, a dict of parameter name to rank.
    """

    def __init__(self, attribute: str = "parameter_owners") -> None:
        self.attribute = attribute

    def apply(self, module: Any, mesh: Any) -> Any:
        """Attach the plan to ``module`` and return it.

        Args:
            module: Anything with ``named_parameters()`` whose parameters have a ``shape``.
            mesh: A one-dimensional `hp_core.mesh.DeviceMesh`.

        Raises:
            ValueError: for a mesh of several axes.
        """
        if len(mesh.shape) != 1:
            raise ValueError(f"the mesh has shape {tuple(mesh.shape)}, expected one axis: take one, as in mesh['dp']")
        sizes = {name: math.prod(parameter.shape) for name, parameter in module.named_parameters()}
        setattr(module, self.attribute, spread(sizes, list(mesh.rank_list)))
        return module


def spread(sizes: dict[str, int], ranks: list[int]) -> dict[str, int]:
    """Return an owner for each name: the largest first, each to the rank that owns least so far.

    The most that a rank owns is at most 4/3 of the best possible (Graham 1969). Ties go to the earlier rank and
    name, so that every process computes the same.
    """
    heap = [(0, index) for index in range(len(ranks))]
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owned, index = heapq.heappop(heap)
        owners[name] = ranks[index]
        heapq.heappush(heap, (owned + sizes[name], index))
    return owners
