# SPDX-License-Identifier: Apache-2.0
"""``HP_CHECK=collectives``: before each collective the members compare what they are about to call.

It costs a small exchange before every call, so it is for debugging: a mismatch that would give wrong numbers, or a hang
until the timeout, becomes an error that names the ranks.
"""

from __future__ import annotations

import json
from typing import Any

from hp_core.comm.group import Group
from hp_core.comm.types import Call, dtype_name
from hp_core.errors import CommError


def check_agreement(call: Call) -> None:
    """Raise on every member unless all members make the same call.

    Raises:
        CommError: kind, operation, source, dtype or shapes differ between members.
    """
    group = call.group
    mine = json.dumps([call.kind, call.seq, call.detail, _tensor(call), call.sizes, str(call)])
    theirs = [json.loads(part) for part in group.channel.all_gather_bytes(mine.encode(), call.timeout_s)]
    for what, index in (("call", 0), ("number of calls before", 1), ("operation or root", 2), ("tensor", 3)):
        if any(one[index] != theirs[0][index] for one in theirs):
            raise CommError(f"members of group {group.name} disagree in the {what}: {_listing(group, theirs)}")
    if call.kind == "all_to_all":
        _check_pieces(group, theirs)
    elif any(one[4] != theirs[0][4] for one in theirs):
        sizes = "; ".join(f"rank {rank}: {one[4]}" for rank, one in zip(group.ranks, theirs, strict=True))
        raise CommError(f"members of group {group.name} disagree in the sizes of {call.kind} #{call.seq}: {sizes}")


def _tensor(call: Call) -> Any:
    if call.shape is None:
        return None
    shape = list(call.shape)
    uneven = call.kind == "all_to_all" or (call.kind == "all_gather" and call.sizes is not None)
    return [dtype_name(call.dtype), shape[1:] if uneven else shape]


def _check_pieces(group: Group, theirs: list[Any]) -> None:
    for i, sender in enumerate(theirs):
        for j, receiver in enumerate(theirs):
            sent, expected = sender[4][0][j], receiver[4][1][i]
            if sent != expected:
                raise CommError(
                    f"members of group {group.name} disagree in the sizes of {sender[5]}: rank {group.ranks[i]} sends "
                    f"{sent} rows to rank {group.ranks[j]} (input_sizes), which expects {expected} (output_sizes)"
                )


def _listing(group: Group, theirs: list[Any]) -> str:
    ranks_by_text: dict[str, list[str]] = {}
    for rank, one in zip(group.ranks, theirs, strict=True):
        ranks_by_text.setdefault(one[5], []).append(str(rank))
    return "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)}: {text}" for text, ranks in ranks_by_text.items()
    )
