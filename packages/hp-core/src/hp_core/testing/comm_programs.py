# SPDX-License-Identifier: Apache-2.0
"""Random programs of collectives: what to call, what goes in, and what must come out. Pure; no communication.

A program is made from a seed alone, so every rank makes the same one and knows the inputs of all ranks.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
FLOATS = ("bfloat16", "float16", "float32", "float64")
DTYPES = (*INTEGERS, *FLOATS, "bool")
_ARITHMETIC = ("sum", "min", "max", "product")
_BITWISE = ("band", "bor", "bxor")
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "batch_p2p", "objects", "barrier")
_LENGTHS = (0, 1, 2, 3, 4, 7, 13, 31, 64, 257)
#: Longer inputs repeat after as many elements: a prime, so that no piece of a buffer looks like another.
_PERIOD = 4099
_LARGE_SHARE = 0.01
_ITEM_BYTES = {"uint8": 1, "int8": 1, "bool": 1, "int16": 2, "bfloat16": 2, "float16": 2, "int32": 4, "float32": 4}


def operations(dtype: str) -> tuple[str, ...]:
    """Return the reduce operations that are defined for ``dtype``."""
    return (*_ARITHMETIC, "avg") if dtype in FLOATS else (*_ARITHMETIC, *_BITWISE)


@dataclass(frozen=True)
class Message:
    """One message of a batch; ``src`` and ``dst`` are ranks within the group."""

    src: int
    dst: int
    tag: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """One collective of a program; ``sizes[i][j]`` is what rank ``i`` of the group has for rank ``j``."""

    index: int
    kind: str
    group: tuple[int, ...]
    dtype: str
    op: str = "sum"
    shape: tuple[int, ...] = ()
    sizes: tuple[tuple[int, ...], ...] | None = None
    src: int = 0
    messages: tuple[Message, ...] = ()
    asynchronous: bool = False
    strided: bool = False
    into: bool = False


@dataclass
class Program:
    """A sequence of collectives over some groups of ``num_ranks`` ranks."""

    seed: int
    num_ranks: int
    groups: list[tuple[int, ...]]
    steps: list[Step] = field(default_factory=list)


def make_program(seed: int, num_ranks: int, num_steps: int, max_bytes: int = 0) -> Program:
    """Return the program of ``seed``; equal wherever it is made. No communication.

    Args:
        seed: Says what the program is, with the other arguments.
        num_ranks: Of the world.
        num_steps: How many collectives.
        max_bytes: Let one step in a hundred be large, up to as many bytes in the whole tensor; 0 makes small ones only.
    """
    rng = random.Random(f"{seed}/{num_ranks}")
    world = tuple(range(num_ranks))
    groups = [world, world[::-1]]
    for _ in range(3):
        groups.append(tuple(rng.sample(world, rng.randint(1, num_ranks))))
    program = Program(seed, num_ranks, list(dict.fromkeys(groups)))
    program.steps = [_make_step(rng, index, rng.choice(program.groups), max_bytes) for index in range(num_steps)]
    return program


def _make_step(rng: random.Random, index: int, group: tuple[int, ...], max_bytes: int) -> Step:
    kind = rng.choices(KINDS, weights=(5, 4, 4, 4, 2, 4, 1, 1))[0]
    dtype = rng.choice(DTYPES)
    size = len(group)
    rest = tuple(rng.choice((1, 2, 5)) for _ in range(rng.choice((0, 0, 1, 2))))
    step: dict[str, Any] = {"asynchronous": rng.random() < 0.5, "strided": rng.random() < 0.3}
    lengths: tuple[int, ...] = _LENGTHS
    if max_bytes and rng.random() < _LARGE_SHARE:
        # Any order of magnitude is as likely as another; what has a piece for each rank has smaller ones.
        row_bytes = prod(rest) * _ITEM_BYTES.get(dtype, 8) * (1 if kind in ("all_reduce", "broadcast") else size)
        longest = int(max_bytes * 2.0 ** -rng.uniform(0, 8)) // row_bytes
        lengths = (longest, longest, longest - 1, longest // 3, 0)
    rows = rng.choice(lengths)
    sizes: Any = None
    if kind in ("all_reduce", "broadcast", "all_gather") and rng.random() < 0.15:
        shape: tuple[int, ...] = ()
    elif kind == "all_gather":
        shape = (rows, *rest)
        if rng.random() < 0.5:
            sizes = tuple((rng.choice(lengths),) for _ in group)
    elif kind == "reduce_scatter":
        cuts = tuple(rng.choice(lengths) for _ in group) if rng.random() < 0.5 else (rows,) * size
        shape = (sum(cuts), *rest)
        sizes = (cuts,) if len(set(cuts)) > 1 else None
    elif kind == "all_to_all":
        shape = (rows * size, *rest)
        if rng.random() < 0.6:
            sizes = tuple(tuple(rng.choice(lengths) for _ in group) for _ in group)
    else:
        shape = (rows, *rest)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        step["into"] = rng.random() < 0.3
    if kind == "batch_p2p":
        step["messages"] = tuple(
            Message(
                rng.randrange(size), rng.randrange(size), rng.choice((0, 0, 1, 7, 2**29)), _message_shape(rng, lengths)
            )
            for _ in range(rng.randint(1, 3 * size))
        )
    return Step(index, kind, group, dtype, rng.choice(operations(dtype)), shape, sizes, src=rng.randrange(size), **step)


def _message_shape(rng: random.Random, lengths: Sequence[int]) -> tuple[int, ...]:
    num_dims = rng.choice((0, 1, 1, 2))
    if num_dims == 2 and lengths is not _LENGTHS:
        return rng.choice(lengths), 1
    return tuple(rng.choice(lengths) for _ in range(num_dims))


def make_input(program: Program, step: Step, rank: int, shape: tuple[int, ...], salt: int = 0) -> Array:
    """Return what ``rank`` of the step's group puts in: small whole numbers where they are reduced, else anything."""
    rng = np.random.default_rng([program.seed, step.index, rank, salt])
    count = prod(shape)
    return np.resize(_draw(rng, step, min(count, _PERIOD)), shape)


def _draw(rng: np.random.Generator, step: Step, count: int) -> Array:
    reduces = step.kind in ("all_reduce", "reduce_scatter")
    size = len(step.group)
    if step.dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if reduces and step.op == "product" and size > 4:
        # Powers of two: eight of them multiply to 256 at most, which every floating-point dtype holds.
        return rng.choice([1, 2] if step.dtype == "uint8" else [-2, -1, 1, 2], count).astype(
            step.dtype if step.dtype in INTEGERS else np.float64
        )
    if step.dtype in INTEGERS:
        info = np.iinfo(step.dtype)
        # Products of four ranks stay within int8.
        low, high = (max(info.min, -3), 3) if reduces else (info.min, info.max)
        return rng.integers(low, high, count, dtype=step.dtype, endpoint=True)
    # Whole numbers: every dtype holds them and their sums exactly. An average is of multiples of the number of ranks.
    scale = size if step.op == "avg" else 1
    return (rng.integers(-3, 4, count) * scale).astype(np.float64)


def reduce_arrays(arrays: Sequence[Array], op: str) -> Array:
    """Return the reduction of equal-shaped arrays, in their dtype."""
    if op == "avg":
        return functools.reduce(np.add, arrays) / len(arrays)
    as_bool = {"sum": np.logical_or, "product": np.logical_and, "band": np.logical_and, "bor": np.logical_or}
    numeric: dict[str, Callable[[Array, Array], Array]] = {
        "sum": np.add,
        "product": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    combine = as_bool.get(op, numeric[op]) if arrays[0].dtype == bool else numeric[op]
    return functools.reduce(combine, arrays).astype(arrays[0].dtype)


def expected_result(program: Program, step: Step, rank: int) -> tuple[Array, Array]:
    """Return (what ``rank`` of the step's group puts in, what must come out there)."""
    size = len(step.group)
    shapes = [step.shape] * size
    if step.sizes is not None and step.kind in ("all_gather", "all_to_all"):
        shapes = [(sum(step.sizes[i]), *step.shape[1:]) for i in range(size)]
    inputs = [make_input(program, step, i, shapes[i]) for i in range(size)]
    if step.kind == "all_reduce":
        result = reduce_arrays(inputs, step.op)
    elif step.kind == "broadcast":
        result = inputs[step.src]
    elif step.kind == "all_gather":
        result = np.concatenate([np.atleast_1d(one) for one in inputs])
    elif step.kind == "reduce_scatter":
        cuts = step.sizes[0] if step.sizes is not None else [step.shape[0] // size] * size
        start = sum(cuts[:rank])
        result = reduce_arrays(inputs, step.op)[start : start + cuts[rank]]
    else:
        sizes = step.sizes if step.sizes is not None else [[step.shape[0] // size] * size] * size
        result = np.concatenate([inputs[i][sum(sizes[i][:rank]) : sum(sizes[i][: rank + 1])] for i in range(size)])
    return inputs[rank], result
