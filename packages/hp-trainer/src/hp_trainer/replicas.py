# SPDX-License-Identifier: Apache-2.0
"""Make sure that all ranks of a group start from the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hp_core.comm as comm
from hp_core.errors import CommError

if TYPE_CHECKING:
    import torch
    from torch import nn


def check_same_structure(module: nn.Module, group: comm.Group) -> None:
    """Raise where a rank's parameters or buffers differ from rank 0's in name, shape, dtype or being trainable.

    Every rank of the group calls it; gathers a short description.

    Raises:
        CommError: On all ranks, naming the first rank and tensor that differ.
    """
    if group.size == 1:
        return
    mine = [
        *(
            (name, str(tuple(p.shape)), str(p.dtype), "trainable" if p.requires_grad else "frozen")
            for name, p in module.named_parameters()
        ),
        *((name, str(tuple(b.shape)), str(b.dtype), "buffer") for name, b in module.named_buffers()),
    ]
    everyone = comm.all_gather_object(mine, group)
    for index, other in enumerate(everyone[1:], start=1):
        if other == everyone[0]:
            continue
        first = next((pair for pair in zip(everyone[0], other, strict=False) if pair[0] != pair[1]), None)
        if first is None:
            what = f"{len(everyone[0])} tensors on rank {group.ranks[0]}, {len(other)} on rank {group.ranks[index]}"
        else:
            what = f"{' '.join(first[0])} on rank {group.ranks[0]}, {' '.join(first[1])} on rank {group.ranks[index]}"
        raise CommError(f"the ranks' models differ: {what}; build the same model on every rank")


def make_replicas_equal(module: nn.Module, group: comm.Group) -> None:
    """Overwrite parameters and buffers with those of the group's rank 0.

    Every rank of the group calls it; broadcasts each tensor once.
    """
    if group.size == 1:
        return
    tensors: list[torch.Tensor] = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    works = [comm.broadcast(tensor, 0, group, async_op=True) for tensor in tensors if tensor.numel()]
    for work in works:
        work.wait()
