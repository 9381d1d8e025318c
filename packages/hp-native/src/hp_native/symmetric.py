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
from hp_core.comm.arguments import as_group, check_rank, whole_number, whole_numbers
from hp_core.comm.group import Group
from hp_core.comm.timeouts import seconds
from hp_core.comm.types import Tensor
from hp_core.errors import CommError, CommTimeoutError
from hp_native.abi import native, raise_last, wait_in_slices
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
    group = comm.world() if group is None else as_group(group)
    channel = group.channel
    if not isinstance(channel, ShmChannel):
        raise CommError(
            f"symmetric memory needs a group of at least two CPU ranks on one host; {group.name} is served by "
            f"{group.backend}"
        )
    shape = tuple(whole_numbers("shape", (shape,) if isinstance(shape, int) else shape))
    if min(shape, default=0) < 0:
        raise CommError(f"symmetric memory of shape {shape} on group {group.name}: lengths are at least 0")
    framework = framework_of(dtype)
    item = item_bytes(framework, dtype)
    nbytes = prod(shape) * item
    arguments = comm.all_gather_object((shape, str(dtype)), group)
    if len(set(arguments)) > 1:
        raise CommError(f"symmetric memory of group {group.name}: the ranks ask for different ones: {arguments}")
    number = channel.num_allocations = channel.num_allocations + 1
    mapping = _make_segment(channel, group, max(nbytes, item), number)
    allocation = Allocation(channel, group, max(nbytes, item), number, mapping)
    part = allocation.part(group.rank)
    if nbytes == 0 and framework == "torch":
        return wrap(framework, part, dtype, (1,))[:0].view(shape)  # torch forgets where memory without bytes was
    return wrap(framework, part[:nbytes], dtype, shape)


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
    rank = check_rank("peer", "rank", rank, allocation.group)
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
    rank = check_rank("put", "rank", rank, allocation.group)
    _check_same(values, tensor)
    if signal_index is not None:
        read_signal(tensor, signal_index)  # one that is not there is refused before anything is written
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
    rank = check_rank("get", "rank", rank, allocation.group)
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
    rank = check_rank("signal", "rank", rank, allocation.group)
    if not 0 <= whole_number("signal: value", value) < 2**64:
        raise CommError(f"signal: value {value} is not in [0, 2**64): signals only grow")
    _check(native().hpn_signal(allocation.native, rank, whole_number("signal", index), value, 1))


def read_signal(tensor: Tensor, index: int = 0) -> int:
    """Return a signal of this rank as it is now; what was written before it was sent can be seen."""
    allocation, _ = _locate(tensor)
    value = ctypes.c_uint64()
    _check(native().hpn_read_signal(allocation.native, whole_number("signal", index), ctypes.addressof(value)))
    return value.value


def wait_signal(tensor: Tensor, value: int, index: int = 0, *, timeout_s: float | None = None) -> None:
    """Block until a signal of this rank is at least ``value``.

    Args:
        tensor: Anything in the allocation.
        value: Signals only grow: the n-th time, wait for n times what is added each time.
        index: Which signal.
        timeout_s: By default that of ``init_backend``.

    Raises:
        CommTimeoutError: it is not within that time; says which ranks have sent it how often, and which never.
        CommError: a rank of the group has ended, or the job gave up.
    """
    allocation, _ = _locate(tensor)
    limit_s = allocation.group.session.timeout_s if timeout_s is None else seconds(timeout_s)
    done = wait_in_slices(native().hpn_wait_signal, (allocation.native, whole_number("signal", index), value), limit_s)
    _check(done)
    if done == 0:
        raise CommTimeoutError(
            f"rank {allocation.group.rank} of group {allocation.group.name}: signal {index} was "
            f"{read_signal(tensor, index)} after {limit_s:g} s, waited for {value}; {_senders(allocation, index)}"
        )


def _senders(allocation: Allocation, index: int) -> str:
    """Say how often which rank of the group has sent a signal of this rank."""
    counts = (ctypes.c_uint32 * allocation.group.size)()
    _check(native().hpn_signal_senders(allocation.native, index, counts))
    said = [f"rank {rank} sent it {'once' if n == 1 else f'{n} times'}" for rank, n in enumerate(counts) if n]
    silent = [str(rank) for rank, n in enumerate(counts) if not n]
    if silent:
        said.append(f"rank{'s' if len(silent) > 1 else ''} {', '.join(silent)} never did")
    return ", ".join(said)


def barrier(tensor: Tensor) -> None:
    """Wait for all ranks of the allocation's group; afterwards each sees what any wrote before."""
    comm.barrier(_locate(tensor)[0].group)


def _check(result: int) -> None:
    if result < 0:
        raise CommError(native().hpn_error().decode())


def _check_same(values: Tensor, tensor: Tensor) -> None:
    if values.nbytes != tensor.nbytes or not _is_contiguous(values):
        raise CommError(
            f"a contiguous tensor of {tensor.nbytes} bytes is expected, not one of {values.nbytes} bytes and shape "
            f"{tuple(values.shape)}"
        )
