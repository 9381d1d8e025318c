# SPDX-License-Identifier: Apache-2.0
"""Arguments that cannot be communicated: the caller gets an error before anything is sent, and nobody else does."""

from __future__ import annotations

import re

import pytest
import torch

from hp_core.comm.tensors import _may_overlap
from hp_core.testing import ranks


def _refusals() -> list[tuple[str, str, str]]:
    """Make each wrong call on rank 0 alone, and a right one on all ranks after it."""
    import numpy as np
    import torch

    import hp_core.comm as comm
    from hp_core.errors import HPError

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    x, other = torch.ones(4), 1 - comm.rank()
    row = torch.zeros(1).expand(4)
    conjugate = torch.full((4,), 1j).conj()
    quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    grad = torch.ones(8, requires_grad=True)
    nan, inf = float("nan"), float("inf")

    def recv(tensor, tag=0, peer=other):
        return comm.batch_p2p([comm.P2P("recv", tensor, peer, tag)])

    calls = {
        "expanded": (lambda: comm.all_reduce(row), r"strides \(0,\)\) share memory, and it is written to; pass"),
        "unfolded": (
            lambda: comm.broadcast(torch.ones(8).unfold(0, 4, 2)),
            r"shape \(3, 4\), strides \(2, 1\)\) share",
        ),
        "expanded, received": (
            lambda: recv(row),
            "batch_p2p recv on group world: elements of the tensor .* share memory",
        ),
        "conjugate": (lambda: comm.all_gather(conjugate), r"conjugates when read; pass tensor.resolve_conj\(\)"),
        "negative": (lambda: comm.all_reduce(conjugate.imag), r"negates when read; pass tensor.resolve_neg\(\)"),
        "quantized": (lambda: comm.all_gather(quantized), r"is quantized \(qint8\); pass tensor.int_repr\(\)"),
        "quantized, in place": (lambda: comm.broadcast(quantized), r"is quantized \(qint8\)"),
        "sparse": (lambda: comm.all_reduce(torch.eye(3).to_sparse()), r"sparse_coo, not strided; pass tensor.to_dense"),
        "sparse rows": (lambda: comm.broadcast(torch.eye(3).to_sparse_csr()), "sparse_csr, not strided"),
        "nested": (lambda: comm.broadcast(torch.nested.nested_tensor([x, x])), "the tensor is nested; pass its values"),
        "wrapper": (lambda: comm.all_reduce(Wrapper(x)), "a Wrapper has no memory of its own; pass the tensor that it"),
        "freed": (lambda: comm.all_reduce(freed), r"the memory of the tensor \(shape \(4,\)\) was freed"),
        "meta": (lambda: comm.all_reduce(x.to("meta")), "a tensor on meta cannot be communicated"),
        "meta, received": (lambda: recv(x.to("meta")), "a tensor on meta cannot be communicated"),
        "array": (lambda: comm.all_reduce(np.ones(4)), r"not numpy.ndarray; pass torch.from_numpy\(array\)"),
        "list": (lambda: comm.broadcast([1.0]), "expected a tensor, not list; pass a tensor; objects go through"),
        "None": (lambda: comm.all_reduce(None), "rank 0: all_reduce on group world: expected a tensor, not None"),
        "None, broadcast": (lambda: comm.broadcast(None), "expected a tensor, not None"),
        "None, received": (lambda: recv(None), "batch_p2p recv on group world: expected a tensor, not None"),
        "out of grad": (lambda: comm.all_gather(x, out=grad), r"all_gather\(out=…\).* requires grad"),
        "out of grad, rs": (lambda: comm.reduce_scatter(x, out=grad[:2]), r"reduce_scatter\(out=…\).* requires grad"),
        "out a list": (lambda: comm.all_gather(x, out=[1]), r"all_gather\(out=…\) on group world: expected a tensor"),
        "out quantized": (lambda: comm.all_to_all(x, out=quantized), "is quantized"),
        "no P2P": (lambda: comm.batch_p2p([("send", x, 1)]), "is not a P2P"),
        "one P2P": (lambda: comm.batch_p2p(comm.P2P("send", x, 1)), "expected a list of P2P, not P2P"),
        "tag": (lambda: recv(x, "a"), "tag 'a' is not a whole number"),
        "peer": (lambda: recv(x, 0, 0.5), "peer 0.5 is not a whole number"),
        "source": (lambda: comm.broadcast(x, 0.5), "broadcast on group world: src 0.5 is not a whole number"),
        "sizes": (
            lambda: comm.all_gather(x, sizes=[4, 4.5]),
            r"sizes on group world = \[4, 4.5\]: expected a list of whole",
        ),
        "sizes, one": (
            lambda: comm.all_gather(x, sizes=8),
            "sizes on group world = 8: expected a list of whole numbers",
        ),
        "operation": (lambda: comm.all_reduce(x, ["sum"]), r"unknown reduce operation \['sum'\]"),
        "group": (lambda: comm.all_reduce(x, group="tp"), "group='tp' is a str, not a comm Group; pass what new_group"),
        "ranks": (lambda: comm.new_group("ab"), "expected a list of whole numbers"),
        "no ranks": (lambda: comm.new_group(None), "expected a list of whole numbers"),
        **{
            f"timeout {limit}": (
                lambda limit=limit: comm.all_reduce(x, timeout_s=limit),
                "timeout_s must be positive, not",
            )
            for limit in (0, -1, nan, inf, "5")
        },
        "timeout of objects": (lambda: comm.all_gather_object(1, timeout_s=inf), "must be positive, not inf"),
        "timeout of messages": (lambda: comm.batch_p2p([], timeout_s=nan), "must be positive, not nan"),
    }
    found = []
    for name, (call, pattern) in calls.items():
        text = ""
        before = (comm.world().seq, comm.world().p2p_seq)
        if comm.rank() == 0:
            try:
                text = f"returned {call()}"
            except HPError as error:
                text = f"{type(error).__name__}: {error}"
        if (comm.world().seq, comm.world().p2p_seq) != before:
            text += " | it was counted"
        if comm.all_reduce(torch.ones(2)).tolist() != [2, 2]:
            text += " | communication is not usable"
        found.append((name, pattern, text))
    work = comm.all_reduce(torch.ones(2), async_op=True)
    for limit in (0, nan, inf):
        try:
            work.wait(timeout_s=limit)
        except HPError as error:
            found.append((f"wait {limit}", "timeout_s must be positive", f"{type(error).__name__}: {error}"))
    assert work.wait().tolist() == [2, 2]
    return found


def test_what_cannot_be_communicated_is_refused_on_the_caller_and_communication_goes_on():
    first, second = ranks(2).run(_refusals)
    assert len(first) > 40
    wrong = [
        (name, text)
        for name, pattern, text in first
        if not re.search(f"^CommError: .*{pattern}", text) or "|" in text or "\n" in text
    ]
    assert not wrong
    assert not [text for name, _, text in second if text and not name.startswith("wait ")]


def _allowed() -> None:
    import torch

    import hp_core.comm as comm

    rank, size = comm.rank(), comm.world_size()
    total = float(size)
    row = torch.full((1, 3), 1.0).expand(size, 3)  # read only: as good as any
    assert comm.all_gather(row).tolist() == [[1.0] * 3] * (size * size)
    assert comm.reduce_scatter(row).tolist() == [[total] * 3]
    assert comm.all_to_all(row).tolist() == [[1.0] * 3] * size
    assert comm.all_reduce(torch.ones(1).expand(1)).tolist() == [total]
    assert comm.all_reduce(torch.ones(6, 4).T[1::2, ::3]).tolist() == [[total] * 2] * 2
    assert comm.all_reduce(torch.ones(3, 3).diagonal()).tolist() == [total] * 3
    assert comm.all_gather(torch.full((1,), 1j).conj().resolve_conj()).tolist() == [-1j] * size
    with torch.inference_mode():
        inferred = torch.ones(8, dtype=torch.bfloat16)
    assert comm.all_reduce(inferred[::2]).tolist() == [total] * 4
    # Into parameters: the library's threads record gradients even where the caller does not.
    with torch.no_grad():
        parameter = torch.nn.Parameter(torch.ones(4))
        assert comm.all_reduce(parameter) is parameter
        assert parameter.tolist() == [total] * 4
        assert comm.broadcast(parameter) is parameter
        whole = torch.nn.Parameter(torch.zeros(size))
        assert comm.all_gather(torch.tensor([rank + 1.0]), out=whole) is whole
        pieces = torch.nn.Parameter(torch.zeros(size))
        assert comm.all_to_all(torch.arange(1.0, size + 1), out=pieces) is pieces
        piece = torch.nn.Parameter(torch.zeros(1))
        work = comm.reduce_scatter(torch.ones(size), out=piece, async_op=True)
        uneven = torch.nn.Parameter(torch.zeros(2 * size - 1))
        sizes = [1] + [2] * (size - 1)
        other = comm.all_gather(torch.ones(sizes[rank]), sizes=sizes, out=uneven, async_op=True)
    assert work.wait() is piece
    assert other.wait() is uneven
    assert (piece.tolist(), uneven.tolist()) == ([total], [1.0] * (2 * size - 1))
    assert whole.tolist() == [1.0 + i for i in range(size)]
    assert pieces.tolist() == [rank + 1.0] * size


def test_what_only_looks_like_it_works():
    ranks(2).run(_allowed)


@pytest.mark.parametrize(
    ("tensor", "overlaps"),
    [
        (torch.ones(3, 4), False),
        (torch.ones(3, 4, 5).permute(2, 0, 1)[:, 1:, ::3], False),
        (torch.ones(4, 5, 4).diagonal(dim1=0, dim2=2), False),
        (torch.ones(1).expand(1), False),
        (torch.ones(3, 1).expand(3, 0), False),
        (torch.ones(()), False),
        (torch.ones(3, 1).expand(3, 2), True),
        (torch.ones(9).unfold(0, 3, 3), False),
        (torch.ones(9).unfold(0, 3, 2), True),
        (torch.ones(9).as_strided((2, 2), (1, 1)), True),
    ],
)
def test_elements_share_memory_where_strides_do_not_reach_over_the_smaller_dims(tensor, overlaps):
    assert _may_overlap(tensor.shape, tensor.stride()) is overlaps
