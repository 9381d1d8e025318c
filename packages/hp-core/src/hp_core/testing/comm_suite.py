# SPDX-License-Identifier: Apache-2.0
"""What every comm backend must pass: random programs of collectives, each element of each result checked.

Subclass `CommSuite` in a test file. Tensors are those of the process' framework, whichever it is. What must come out
is computed with NumPy on the spot; a failure names seed and step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from hp_core.comm.types import dtype_name
from hp_core.platform import get_platform
from hp_core.testing.comm_programs import (
    DTYPES,
    Array,
    Program,
    Step,
    expected_result,
    make_input,
    make_program,
    operations,
)
from hp_core.testing.pool import Ranks, ranks


class Runner:
    """Runs a program on this rank and checks what comes out.

    Args:
        program: The program.
        values: Check values; False checks shapes and dtypes only (a backend that moves nothing).
        jitter: Let the ranks come at different times: each sleeps or computes for a moment before some calls.
    """

    def __init__(self, program: Program, values: bool = True, jitter: bool = False) -> None:
        import hp_core.comm as comm

        self._comm = comm
        self._program = program
        self._values = values
        self._jitter = jitter
        self._rank = comm.rank()
        self._pending: list[tuple[Step, Any, Callable[[Any], None]]] = []
        self._order = random.Random(f"{program.seed}/{self._rank}")
        self._groups = {ranks: comm.new_group(ranks) for ranks in program.groups if self._rank in ranks}

    def run(self) -> int:
        """Run all steps and return how many this rank took part in."""
        num_done = 0
        for step in self._program.steps:
            if self._rank not in step.group:
                continue
            if self._jitter:
                self._dawdle()
            self._start(step)
            num_done += 1
            while len(self._pending) > 6:
                self._finish(self._order.randrange(len(self._pending)))
        while self._pending:
            self._finish(self._order.randrange(len(self._pending)))
        return num_done

    def _dawdle(self) -> None:
        what = self._order.random()
        if what < 0.04:
            time.sleep(self._order.uniform(0, 1e-3))
        elif what < 0.1:
            end = time.perf_counter() + self._order.uniform(0, 2e-4)
            while time.perf_counter() < end:
                pass

    def _start(self, step: Step) -> None:
        group = self._groups[step.group]
        if step.kind == "barrier":
            self._comm.barrier(group)
            return
        if step.kind == "objects":
            self._objects(step, group)
            return
        call, check = self._batch(step, group) if step.kind == "batch_p2p" else self._collective(step, group)
        result = call()
        if step.asynchronous:
            self._pending.append((step, result, check))
        else:
            check(result)

    def _finish(self, index: int) -> None:
        _, work, check = self._pending.pop(index)
        if self._order.random() < 0.3:
            work.is_done()
        check(work.wait())

    def _collective(self, step: Step, group: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        inputs, expected = expected_result(self._program, step, group.rank)
        tensor = _to_tensor(inputs, step.dtype, step.strided)
        options: dict[str, Any] = {"async_op": step.asynchronous}
        if step.kind in ("all_reduce", "reduce_scatter"):
            options["op"] = step.op
        if step.kind == "broadcast":
            options["src"] = step.src
        if step.sizes is not None:
            if step.kind == "all_to_all":
                options["input_sizes"] = step.sizes[group.rank]
                options["output_sizes"] = [row[group.rank] for row in step.sizes]
            else:
                options["sizes"] = step.sizes[0] if step.kind == "reduce_scatter" else [row[0] for row in step.sizes]
        if step.into:
            options["out"] = _to_tensor(np.zeros(expected.shape, expected.dtype), step.dtype)
        untouched = step.kind not in ("all_reduce", "broadcast")

        def check(result: Any) -> None:
            where = tensor if step.kind in ("all_reduce", "broadcast") else options.get("out", result)
            assert result is where, f"{self._about(step)}: the result is not the tensor that was passed"
            self._compare(step, result, expected)
            if untouched and self._values:
                self._compare(step, tensor, inputs, "the input was changed: ")

        return lambda: getattr(self._comm, step.kind)(tensor, group=group, **options), check

    def _batch(self, step: Step, group: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        ops = []
        arrivals: list[tuple[Any, Array]] = []
        # Any order, but that of messages with equal ends and tag.
        order = list(range(len(step.messages)))
        self._order.shuffle(order)
        slots: dict[tuple[int, int, int], list[int]] = {}
        for number, message in enumerate(step.messages):
            slots.setdefault((message.src, message.dst, message.tag), []).append(number)
        for place in order:
            one = step.messages[place]
            number = slots[one.src, one.dst, one.tag].pop(0)
            message = step.messages[number]
            values = make_input(self._program, step, message.src, message.shape, number + 1)
            if message.src == group.rank:
                tensor = _to_tensor(values, step.dtype, step.strided)
                ops.append(self._comm.P2P("send", tensor, message.dst, message.tag))
            if message.dst == group.rank:
                tensor = _to_tensor(np.zeros(message.shape, values.dtype), step.dtype, step.strided)
                ops.append(self._comm.P2P("recv", tensor, message.src, message.tag))
                arrivals.append((tensor, values))

        def check(result: Any) -> None:
            assert result is None
            for tensor, values in arrivals:
                self._compare(step, tensor, values)

        return lambda: self._comm.batch_p2p(ops, group, async_op=step.asynchronous), check

    def _objects(self, step: Step, group: Any) -> None:
        def about(rank: int) -> Any:
            return {"rank": rank, "step": step.index, "text": "é" * (rank * 1000 + step.index % 1000)}

        everyone = self._comm.all_gather_object(about(group.rank), group)
        one = self._comm.broadcast_object(about(group.rank) if group.rank == step.src else None, step.src, group)
        if self._values:
            assert everyone == [about(rank) for rank in range(group.size)], self._about(step)
            assert one == about(step.src), self._about(step)

    def _compare(self, step: Step, tensor: Any, expected: Array, note: str = "") -> None:
        assert tuple(tensor.shape) == expected.shape, (
            f"{self._about(step)}: {note}shape {tuple(tensor.shape)}, expected {expected.shape}"
        )
        assert dtype_name(tensor.dtype) == step.dtype, f"{self._about(step)}: dtype {tensor.dtype}"
        if not self._values:
            return
        actual = _to_array(tensor)
        wrong = np.argwhere(actual != expected)
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            raise AssertionError(
                f"{self._about(step)}: {note}{len(wrong)} of {expected.size} elements are wrong; element {place} is "
                f"{actual[place]}, expected {expected[place]}"
            )

    def _about(self, step: Step) -> str:
        return f"seed {self._program.seed}, {self._program.num_ranks} ranks, rank {self._rank}, {step}"


def _to_tensor(values: Array, dtype: str, strided: bool = False) -> Any:
    """Return a tensor of the process' framework, with gaps between its elements where ``strided``."""
    ops = get_platform().tensor
    if strided and values.ndim:
        shape = (*values.shape[:-1], values.shape[-1] * 2)
        wide = ops.empty(shape, dtype, "cpu")
        ops.to_numpy(wide)[...] = 0
        tensor = wide[..., ::2]
    else:
        tensor = ops.empty(values.shape, dtype, "cpu")
    ops.to_numpy(tensor)[...] = _bfloat16_bits(values) if dtype == "bfloat16" else values
    return tensor


def _to_array(tensor: Any) -> Array:
    """Return the values of a tensor; those of bfloat16, which NumPy lacks, as float32."""
    array: Array = np.ascontiguousarray(get_platform().tensor.to_numpy(tensor))
    if dtype_name(tensor.dtype) == "bfloat16":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.reshape(tuple(tensor.shape))


def _bfloat16_bits(values: Array) -> Array:
    """Return the upper half of each value as float32, which is bfloat16; all values here have zeros below."""
    bits = np.array(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "a value of the program does not fit into bfloat16"
    return (bits >> 16).astype(np.uint16)


def run_program(seed: int, num_ranks: int, num_steps: int, max_bytes: int = 0, jitter: bool = False) -> int:
    """Run and check the program of ``seed`` on this rank; every rank calls it.

    Args:
        seed: As the three that follow: see `make_program`.
        num_ranks: Of the world.
        num_steps: How many collectives.
        max_bytes: How large a few of them are.
        jitter: Let the ranks come at different times.

    Returns:
        How many this rank took part in.
    """
    return Runner(make_program(seed, num_ranks, num_steps, max_bytes), jitter=jitter).run()


def _every_operation(num_ranks: int) -> int:
    """Check each reduce operation on each dtype, all-reduced and reduce-scattered."""
    program = Program(0, num_ranks, [tuple(range(num_ranks))])
    for dtype in DTYPES:
        for op in operations(dtype):
            for kind in ("all_reduce", "reduce_scatter"):
                shape = (num_ranks * 3, 2)
                program.steps.append(Step(len(program.steps), kind, program.groups[0], dtype, op, shape))
    return Runner(program).run()


def _accumulation() -> list[Any]:
    """Return sums that a 16-bit accumulator would get wrong: 256 + 1 + 1 + … in bfloat16, 2048 + 1 + … in float16."""
    import hp_core.comm as comm

    first, results = comm.rank() == 0, []
    for dtype, large in (("bfloat16", 256.0), ("float16", 2048.0)):
        for size in (1, 4096):
            value = _to_tensor(np.full(size * comm.world_size(), large if first else large / 256 / 2), dtype)
            results.append(float(_to_array(comm.reduce_scatter(value)).max()))
            results.append(float(_to_array(comm.all_reduce(value)).max()))
    return results


def _bits(num_rounds: int) -> list[bytes]:
    """Return the bits of sums of values of very different sizes."""
    import hp_core.comm as comm

    rng = np.random.default_rng(comm.rank())
    values = rng.standard_normal(10_007) * 10.0 ** rng.integers(-4, 5, 10_007)
    found = []
    for number in range(num_rounds):
        value = _to_tensor(values, "float32")
        time.sleep(0.002 * ((comm.rank() + number) % 3))
        found.append(_to_array(comm.all_reduce(value)).tobytes())
    return found


def _late(late: int) -> str:
    """Let rank ``late`` come too late, and bring communication up again; return the error of the others."""
    import hp_core.comm as comm

    error = ""
    try:
        if comm.rank() == late:
            time.sleep(2.5)
        comm.all_reduce(_to_tensor(np.ones((3, 5)), "float32"), timeout_s=1.0)
    except comm.CommError as exc:
        error = f"{type(exc).__name__}: {exc}"
    comm.shutdown()
    comm.init_backend("cpu")
    assert _to_array(comm.all_reduce(_to_tensor(np.ones(1), "float32"))) == comm.world_size()
    return error


def _chosen() -> str:
    import hp_core.comm as comm

    return comm.world().backend


class CommSuite:
    """Checks of one backend on one number of ranks; subclass it as ``class TestX(CommSuite)``.

    Attributes:
        backend: Name of the backend, set as ``HP_COMM`` in the workers.
        num_ranks: Number of processes, at least 2.
        seeds: Programs to run.
        num_steps: Length of each.
    """

    backend: ClassVar[str]
    num_ranks: ClassVar[int] = 2
    seeds: ClassVar[range] = range(8)
    num_steps: ClassVar[int] = 60

    def pool(self) -> Ranks:
        """Return the workers."""
        return ranks(self.num_ranks, env={"HP_COMM": self.backend})

    def test_the_backend_serves_the_world(self) -> None:
        """It is the one that ``HP_COMM`` names."""
        assert self.pool().run(_chosen) == [self.backend] * self.num_ranks

    def test_random_programs(self) -> None:
        """Collectives of every kind, dtype, operation and shape, over overlapping groups, in flight together."""
        for seed in self.seeds:
            num_done = self.pool().run(run_program, seed, self.num_ranks, self.num_steps, timeout_s=120.0)
            assert min(num_done) > self.num_steps // 8, "a program must not leave a rank out"

    def test_every_operation_on_every_dtype(self) -> None:
        """Each reduce operation, on each dtype that it is defined for."""
        self.pool().run(_every_operation, self.num_ranks)

    def test_16_bit_sums_accumulate_in_float32(self) -> None:
        """Adding halves of the last place in 16 bits would lose them all."""
        for values in self.pool().run(_accumulation):
            for number, value in enumerate(values):
                large = 256.0 if number < len(values) // 2 else 2048.0
                # Each other rank adds large / 512, which is half of bfloat16's last place (2 at 256) or less.
                exact = large + (self.num_ranks - 1) * large / 512
                spacing = 2.0
                assert abs(value - exact) <= spacing / 2, (value, exact)

    def test_all_ranks_and_rounds_get_the_same_bits(self) -> None:
        """Sums do not depend on who comes first."""
        found = {bits for each in self.pool().run(_bits, 5) for bits in each}
        assert len(found) == 1

    def test_a_rank_that_comes_too_late_is_named_and_communication_can_come_up_again(self) -> None:
        """The timeout says which call and which rank; after a shutdown everything works again."""
        late = self.num_ranks - 1
        for rank, error in enumerate(self.pool().run(_late, late)):
            if rank != late:
                assert error.startswith("CommTimeoutError"), error
                assert "all_reduce #" in error, error
                assert "shape (3, 5), float32, 60 bytes" in error, error
                assert f"rank {late} never came" in error, error
            else:
                assert error.startswith("Comm"), error
