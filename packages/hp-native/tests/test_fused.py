# SPDX-License-Identifier: Apache-2.0
"""Fused products have the values and gradients of the plain ones on one process."""

from __future__ import annotations

from typing import Any

import pytest

from hp_core.testing import RankError, ranks


def _compare(kind: str, cuts: list[int], rest: tuple[int, ...], dtype: str, num_calls: int) -> None:
    import torch

    import hp_core.comm as comm
    from hp_native import fused

    rank, size = comm.rank(), comm.world_size()
    generator = torch.Generator().manual_seed(sum(cuts) + size)
    kind_of = getattr(torch, dtype)
    loose = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 3e-2}[dtype]
    for _ in range(num_calls):
        k, n, rows = 5, 7, sum(cuts)
        weights = [torch.randn(k, n, generator=generator).to(kind_of) for _ in range(size)]
        if kind == "all_gather_matmul":
            whole = torch.randn(rows, *rest, k, generator=generator).to(kind_of)
            factors = [torch.randn(rows, *rest, n, generator=generator).to(kind_of) for _ in range(size)]
            own = whole.split(cuts)[rank].clone().requires_grad_()
            weight = weights[rank].clone().requires_grad_()
            (fused.all_gather_matmul(own, weight, sizes=cuts) * factors[rank]).sum().backward()
            single = whole.double().requires_grad_()
            singles = [w.double().requires_grad_() for w in weights]
            sum(((single @ w) * f.double()).sum() for w, f in zip(singles, factors, strict=True)).backward()
            expected = single.grad.split(cuts)[rank]
        else:
            inputs = [torch.randn(rows, *rest, k, generator=generator).to(kind_of) for _ in range(size)]
            factor = torch.randn(rows, *rest, n, generator=generator).to(kind_of)
            own, weight = inputs[rank].clone().requires_grad_(), weights[rank].clone().requires_grad_()
            result = fused.matmul_reduce_scatter(own, weight, sizes=cuts)
            (result * factor.split(cuts)[rank]).sum().backward()
            alone = [x.double().requires_grad_() for x in inputs]
            singles = [w.double().requires_grad_() for w in weights]
            total = sum(x @ w for x, w in zip(alone, singles, strict=True))
            (total * factor.double()).sum().backward()
            torch.testing.assert_close(result.double(), total.split(cuts)[rank], rtol=loose, atol=loose * 10)
            expected = alone[rank].grad
        torch.testing.assert_close(own.grad.double(), expected, rtol=loose, atol=loose * 10)
        torch.testing.assert_close(weight.grad.double(), singles[rank].grad, rtol=loose, atol=loose * 30)


@pytest.mark.parametrize("kind", ["all_gather_matmul", "matmul_reduce_scatter"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_values_and_gradients_are_those_of_one_process(size: int, kind: str) -> None:
    pool = ranks(size, env={"HP_COMM": "shm"})
    for cuts in ([4] * size, [3, 0, 5][:size], [1, 9, 2][:size]):
        for rest in ((), (2, 3)):
            pool.run(_compare, kind, cuts, rest, "float64", 4)
    for dtype in ("float32", "bfloat16"):
        pool.run(_compare, kind, [3, 2, 1][:size], (), dtype, 5)


def test_what_does_not_fit_is_an_error_that_says_so() -> None:
    def wrong(which: str) -> Any:
        import torch

        from hp_native import fused

        calls: dict[str, Any] = {
            "shape": lambda: fused.all_gather_matmul(torch.ones(3, 4), torch.ones(5, 2)),
            "dtype": lambda: fused.all_gather_matmul(torch.ones(3, 4), torch.ones(4, 2).double()),
            "rows": lambda: fused.matmul_reduce_scatter(torch.ones(3, 4), torch.ones(4, 2)),
            "sizes": lambda: fused.all_gather_matmul(torch.ones(3, 4), torch.ones(4, 2), sizes=[1, 2]),
        }
        return calls[which]()

    texts = {
        "shape": r"not \(3, 4\) and \(5, 2\)",
        "dtype": "torch.float32 on cpu and torch.float64",
        "rows": r"has 3 rows, which are not the sum of sizes \[1, 1\]",
        "sizes": r"but this rank's tensor has 3 rows",
    }
    for which, text in texts.items():
        with pytest.raises(RankError, match=text):
            ranks(2, env={"HP_COMM": "shm"}).run(wrong, which)
