# SPDX-License-Identifier: Apache-2.0
"""Symmetric memory: tensors that every rank of a group has, and that every rank can reach.

One-sided operations move data without the other rank doing anything; signals tell it. The collectives of the group
recognise such tensors and work in them directly, without the copy through staging memory.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from bisect import bisect_right
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hp_core import comm
from hp_core.comm.group import Group
from hp_core.comm.types import Tensor
from hp_core.errors import CommError, CommTimeoutError
from hp_native.abi import native, raise_last
from hp_native.channel import ShmChannel
from hp_native.frameworks import framework_of, item_bytes, pointer, wrap
from hp_native.memory import Mapping


def _make_segment(channel: ShmChannel, group: Group, nbytes: int, number: int) -> Mapping:
    """Return the memory of allocation ``number``; every rank of the group calls it."""
    layout = native().hpn_symmetric_plan(group.size, group.rank, nbytes)
    descriptor, mapping = channel.host.share(
        f"{channel.key}/symmetric/{number}",
        group.ranks,
        group.rank,
        layout.total_bytes,
        layout.signal_bytes,
        (layout.part_offset, layout.part_bytes),
        group.session.timeout_s,
    )
    os.close(descriptor)
    return mapping


class Allocation:
    """One allocation of symmetric memory, on this rank.

    Tensors hold the memory, and the memory holds this: so it ends with the last of them.

    Args:
        channel: The group's.
        group: The group.
        nbytes: Of each rank.
        number: Counts the allocations of the group.
        mapping: The segment.
    """

    def __init__(self, channel: ShmChannel, group: Group, nbytes: int, number: int, mapping: Mapping) -> None:
        library = native()
        self.group = group
        self.nbytes = nbytes
        layout = library.hpn_symmetric_plan(group.size, group.rank, nbytes)
        self._part_bytes = layout.part_bytes
        self._first_part = layout.part_offset - layout.part_bytes * group.rank
        #: Address of this rank's part.
        self.address = mapping.address + layout.part_offset
        self.native = library.hpn_symmetric_open(channel.group, number, mapping.address, nbytes)
        if not self.native:
            raise_last()
        channel.allocations.add(self)
        _allocations[self.address] = self
        self._memory = weakref.ref(mapping.memory)
        weakref.finalize(mapping.memory, self.close)

    def part(self, rank: int) -> Any:
        """Return the bytes of ``rank`` as a NumPy array."""
        memory = self._memory()
        assert memory is not None, "a tensor of the allocation is at hand"
        return np.frombuffer(memory, np.uint8, self.nbytes, self._first_part + self._part_bytes * rank)

    def close(self) -> None:
        """Let collectives and one-sided operations know it no more."""
        if self.native:
            native().hpn_symmetric_close(self.native)
            self.native = None
            del _allocations[self.address]


_allocations: dict[int, Allocation] = {}


def empty(shape: int | Sequence[int], dtype: Any, group: Group | None = None) -> Tensor:
    """Return an uninitialised tensor in symmetric memory. Every rank of the group calls it, with the same arguments.

    The memory (``shape`` on each rank, rounded up to pages, mapped by all) is allocated at once and goes when the last
    tensor in it has gone on every rank. It cannot be resized.

    Args:
        shape: Of the tensor on each rank.
        dtype: A dtype of torch, MindSpore or NumPy, which also says what is returned.
        group: Of CPU ranks on one host; by default the world.

    Raises:
        CommError: the group is not served by shared memory, or there is not enough of it.
        CommTimeoutError: a rank did not call it.
    """
    group = comm.world() if group is None else group
    channel = group.channel
    if not isinstance(channel, ShmChannel):
        raise CommError(
            f"symmetric memory needs a group of at least two CPU ranks on one host; {group.name} is served by "
            f"{group.backend}"
        )
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    framework = framework_of(dtype)
    nbytes = prod(shape) * item_bytes(framework, dtype)
    arguments = comm.all_gather_object((shape, str(dtype)), group)
    if len(set(arguments)) > 1:
        raise CommError(f"symmetric memory of group {group.name}: the ranks ask for different ones: {arguments}")
    number = channel.num_allocations = channel.num_allocations + 1
    mapping = _make_segment(channel, group, max(nbytes, 1), number)
    allocation = Allocation(channel, group, max(nbytes, 1), number, mapping)
    return wrap(framework, allocation.part(group.rank)[:nbytes], dtype, shape)


def _locate(tensor: Tensor) -> tuple[Allocation, int]:
    """Return the allocation that ``tensor`` lies in, and its offset there in bytes."""
    address = pointer(tensor)
    starts = sorted(_allocations)
    place = bisect_right(starts, address)
    if place:
        allocation = _allocations[starts[place - 1]]
        offset = address - allocation.address
        if offset + tensor.nbytes <= allocation.nbytes and _is_contiguous(tensor):
            return allocation, offset
    raise CommError(
        f"a tensor of shape {tuple(tensor.shape)} does not lie in symmetric memory (contiguously); make it with "
        "hp_native.empty, and again after communication was shut down"
    )


def _is_contiguous(tensor: Tensor) -> bool:
    if isinstance(tensor, np.ndarray):
        return bool(tensor.flags.c_contiguous)
    return bool(tensor.is_contiguous())


def peer(tensor: Tensor, rank: int) -> Tensor:
    """Return the tensor that ``rank`` has where this rank has ``tensor``: the same memory, not a copy.

    Nothing orders what the ranks do with it: use signals or a barrier.

    Args:
        tensor: In symmetric memory, contiguous.
        rank: Within the group.

    Raises:
        CommError: it does not lie in symmetric memory, or there is no such rank.
    """
    allocation, offset = _locate(tensor)
    _check_rank(allocation, rank)
    part = allocation.part(rank)[offset : offset + tensor.nbytes]
    return wrap(framework_of(tensor.dtype), part, tensor.dtype, tuple(tensor.shape))


def put(values: Tensor, tensor: Tensor, rank: int, *, signal_index: int | None = None) -> None:
    """Write ``values`` where ``rank`` has ``tensor``; that rank takes no part. Blocks while it copies.

    Args:
        values: Contiguous, of as many bytes as ``tensor``.
        tensor: In symmetric memory: names the place.
        rank: Within the group.
        signal_index: A signal of ``rank`` to add 1 to afterwards; who has waited for it sees the values.

    Raises:
        CommError: sizes differ, or it does not lie in symmetric memory.
    """
    allocation, offset = _locate(tensor)
    _check_same(values, tensor)
    _check(native().hpn_put(allocation.native, rank, offset, pointer(values), values.nbytes))
    if signal_index is not None:
        signal(tensor, rank, signal_index)


def get(tensor: Tensor, rank: int, out: Tensor) -> Tensor:
    """Read what ``rank`` has where this rank has ``tensor`` into ``out``, and return it. Blocks while it copies.

    Args:
        tensor: In symmetric memory: names the place.
        rank: Within the group.
        out: Contiguous, of as many bytes as ``tensor``.

    Raises:
        CommError: sizes differ, or it does not lie in symmetric memory.
    """
    allocation, offset = _locate(tensor)
    _check_same(out, tensor)
    _check(native().hpn_get(allocation.native, rank, offset, pointer(out), out.nbytes))
    return out


def signal(tensor: Tensor, rank: int, index: int = 0, value: int = 1) -> None:
    """Add ``value`` to a signal of ``rank``, after all that this rank has written before.

    Args:
        tensor: Anything in the allocation; each has 64 signals on each rank, 0 at first.
        rank: Within the group.
        index: Which signal.
        value: At least 0; 64 bits, wraps around.

    Raises:
        CommError: there is no such rank or signal.
    """
    allocation, _ = _locate(tensor)
    _check(native().hpn_signal(allocation.native, rank, index, value, 1))


def read_signal(tensor: Tensor, index: int = 0) -> int:
    """Return a signal of this rank as it is now; what was written before it was sent can be seen."""
    allocation, _ = _locate(tensor)
    value = ctypes.c_uint64()
    _check(native().hpn_read_signal(allocation.native, index, ctypes.addressof(value)))
    return value.value


def wait_signal(tensor: Tensor, value: int, index: int = 0, *, timeout_s: float | None = None) -> None:
    """Block until a signal of this rank is at least ``value``.

    Args:
        tensor: Anything in the allocation.
        value: Signals only grow: the n-th time, wait for n times what is added each time.
        index: Which signal.
        timeout_s: By default that of ``init_backend``.

    Raises:
        CommTimeoutError: it is not within that time.
        CommError: a rank of the group has ended, or the job gave up.
    """
    allocation, _ = _locate(tensor)
    limit_s = left_s = allocation.group.session.timeout_s if timeout_s is None else timeout_s
    while True:
        done = native().hpn_wait_signal(allocation.native, index, value, min(left_s, 0.2))  # Ctrl-C in between
        if done == 1:
            return
        _check(done)
        left_s -= 0.2
        if left_s <= 0:
            raise CommTimeoutError(
                f"rank {allocation.group.rank} of group {allocation.group.name}: signal {index} was "
                f"{read_signal(tensor, index)} after {limit_s:g} s, waited for {value}"
            )


def barrier(tensor: Tensor) -> None:
    """Wait for all ranks of the allocation's group; afterwards each sees what any wrote before."""
    comm.barrier(_locate(tensor)[0].group)


def _check(result: int) -> None:
    if result < 0:
        raise CommError(native().hpn_error().decode())


def _check_rank(allocation: Allocation, rank: int) -> None:
    if not 0 <= rank < allocation.group.size:
        raise CommError(f"rank {rank} is not in group {allocation.group.name} of {allocation.group.size} ranks")


def _check_same(values: Tensor, tensor: Tensor) -> None:
    if values.nbytes != tensor.nbytes or not _is_contiguous(values):
        raise CommError(
            f"a contiguous tensor of {tensor.nbytes} bytes is expected, not one of {values.nbytes} bytes and shape "
            f"{tuple(values.shape)}"
        )
