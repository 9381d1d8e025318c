# SPDX-License-Identifier: Apache-2.0
"""Low precision on the wire: within its bound, and equal on all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from hp_core.testing import RankError, ranks


def _inputs(size: int, count: int, block: int = 128) -> Any:
    import torch

    generator = torch.Generator().manual_seed(count)
    # Magnitudes differ from block to block by orders, within one by less.
    scales = 10.0 ** torch.randint(-6, 7, (count // block + 1,), generator=generator)
    return torch.randn(size, count, generator=generator) * scales.repeat_interleave(block)[:count]


def _error(values: Any, wire: str) -> Any:
    """The largest error of encoding each value that is not tiny within its block."""
    if wire == "bf16":
        return values.abs() * 2.0**-8
    return values.abs() * 2.0**-4


def _run(kind: str, wire: str, count: int, op: str) -> list[bytes]:
    import torch

    import hp_core.comm as comm
    from hp_native import low_precision

    size, rank = comm.world_size(), comm.rank()
    inputs = _inputs(size, count)
    cuts = [count // size + (count % size if r == size - 1 else 0) for r in range(size)]
    begins = [sum(cuts[:r]) for r in range(size)]
    mine = slice(begins[rank], begins[rank] + cuts[rank])
    # A step's blocks may be cut elsewhere than the magnitudes change: then the larger one counts.
    largest = (
        torch.nn.functional.max_pool1d(inputs.abs()[None], 257, stride=1, padding=128)[0] if count else inputs.abs()
    )
    floor = largest * 2.0**-10 / 448 if wire == "e4m3" else torch.zeros_like(inputs)
    each = torch.maximum(_error(inputs, wire), floor)
    rounding = inputs.abs().sum(0) * 2.0**-22
    if kind == "all_gather":
        result = low_precision.all_gather(inputs[rank, mine].clone(), wire=wire, sizes=cuts)
        exact = torch.cat([inputs[r, begins[r] : begins[r] + cuts[r]] for r in range(size)])
        bound = torch.cat([each[r, begins[r] : begins[r] + cuts[r]] for r in range(size)])
        assert ((result - exact).abs() <= bound * 1.0001).all()
        return [result.numpy().tobytes()]
    exact = inputs.double().sum(0)
    bound = each.sum(0) + rounding
    if op == "avg":
        exact, bound = exact / size, bound / size
    if kind == "reduce_scatter":
        result = low_precision.reduce_scatter(inputs[rank].clone(), op, wire=wire, sizes=cuts)
        assert ((result - exact[mine]).abs() <= bound[mine] * 1.0001).all()
        return []
    result = inputs[rank].clone()
    work = low_precision.all_reduce(result, op, wire=wire, async_op=True)
    assert work.wait() is result
    final = torch.maximum(_error(exact.abs() + bound, wire), floor.sum(0))
    assert ((result - exact).abs() <= (bound + final) * 1.0001).all()
    return [result.numpy().tobytes()]


@pytest.mark.parametrize("wire", ["bf16", "e4m3"])
@pytest.mark.parametrize("size", [2, 3])
def test_the_error_is_within_its_bound_and_all_ranks_have_the_same_bits(size: int, wire: str) -> None:
    pool = ranks(size, env={"HP_COMM": "shm"})
    for count in (0, 1, 127, 128, 129, 5000, 1_000_003):
        for kind, op in (
            ("all_reduce", "sum"),
            ("all_reduce", "avg"),
            ("reduce_scatter", "avg"),
            ("all_gather", "sum"),
        ):
            found = {bits for each in pool.run(_run, kind, wire, count, op) for bits in each}
            assert len(found) <= 1, (kind, op, count)


def test_zeros_infinities_and_nan_travel_as_they_should() -> None:
    def special() -> list[list[float]]:
        import torch

        from hp_native import low_precision

        values = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 448.0, 1.0])
        return [
            low_precision.all_gather(values.clone(), wire=wire)[:6].tolist()  # type: ignore[arg-type]
            for wire in ("bf16", "e4m3")
        ]

    for bf16, e4m3 in ranks(2, env={"HP_COMM": "shm"}).run(special):
        assert str(bf16) == "[0.0, -0.0, inf, nan, 448.0, 1.0]"
        assert str(e4m3) == "[0.0, -0.0, nan, nan, 448.0, 1.0]"


def test_what_does_not_fit_is_an_error_that_says_so() -> None:
    def wrong(which: str) -> None:
        import torch

        from hp_native import low_precision

        calls: dict[str, Any] = {
            "dtype": lambda: low_precision.all_reduce(torch.ones(3, dtype=torch.float64)),
            "op": lambda: low_precision.all_reduce(torch.ones(3), "max"),  # type: ignore[arg-type]
            "wire": lambda: low_precision.all_reduce(torch.ones(3), wire="fp8"),  # type: ignore[arg-type]
            "sizes": lambda: low_precision.reduce_scatter(torch.ones(3)),
        }
        calls[which]()

    texts = {
        "dtype": "float32 tensors, not float64",
        "op": "there are 'sum' and 'avg'",
        "wire": "'fp8' is not one of 'bf16', 'e4m3'",
        "sizes": "3 rows \\(shape \\(3,\\)\\) do not divide into 2 equal pieces",
    }
    for which, text in texts.items():
        with pytest.raises(RankError, match=text):
            ranks(2, env={"HP_COMM": "shm"}).run(wrong, which)
