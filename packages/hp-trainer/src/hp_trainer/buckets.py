# SPDX-License-Identifier: Apache-2.0
"""Plan which gradients travel together. Pure Python on sizes: the same plan on every rank, tested without processes.

[Note: Buckets] A message has a fixed cost, so small gradients are joined into one flat buffer. A large gradient does
not notice that cost, but would notice the copy into the buffer (a read and a write of every byte); so it is reduced
where autograd left it. All messages are sent in one fixed order, that of the backward pass as far as it can be
known beforehand: last registered parameter first.

The joined bucket that is ready last also carries one flag a parameter, which says whether this rank had a gradient
for it: so ranks learn which parameters nobody used, with no message of its own. It is sent last of all, when the
flags are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """One message.

    Attributes:
        members: Indices of parameters, in order of registration, latest first.
        joined: Whether the gradients are copied into one flat buffer; else there is one member, reduced in place.
        flags: Whether the used-flags of all parameters follow the gradients.
    """

    members: tuple[int, ...]
    joined: bool
    flags: bool = False


def plan_buckets(sizes: Sequence[int], kinds: Sequence[str], *, bucket_bytes: int, alone_bytes: int) -> list[Bucket]:
    """Return the messages in the order in which they are sent; the last one carries the used-flags.

    Args:
        sizes: Bytes of each parameter's gradient, in order of registration.
        kinds: What must be equal within a buffer (dtype and device), one per parameter.
        bucket_bytes: A joined bucket is closed when it has this many bytes.
        alone_bytes: Gradients of this many bytes or more are reduced in place.
    """
    # (position of the member that is ready last, bucket); positions count in the order of the backward pass
    placed: list[tuple[int, tuple[int, ...], bool]] = []
    open_buckets: dict[str, tuple[list[int], int]] = {}
    order = range(len(sizes) - 1, -1, -1)
    position = {index: place for place, index in enumerate(order)}
    for index in order:
        if sizes[index] >= alone_bytes:
            placed.append((position[index], (index,), False))
            continue
        members, total = open_buckets.pop(kinds[index], ([], 0))
        members.append(index)
        total += sizes[index]
        if total >= bucket_bytes:
            placed.append((position[index], tuple(members), True))
        else:
            open_buckets[kinds[index]] = (members, total)
    placed.extend((position[members[-1]], tuple(members), True) for members, _ in open_buckets.values())
    placed.sort()
    buckets = [Bucket(members, joined) for _, members, joined in placed]
    last = next((bucket for bucket in reversed(buckets) if bucket.joined), None)
    if last is None:
        return [*buckets, Bucket((), joined=True, flags=True)]
    buckets.remove(last)
    return [*buckets, Bucket(last.members, joined=True, flags=True)]
