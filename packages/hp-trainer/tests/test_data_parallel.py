# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn

import hp_core.comm as comm
from hp_core.testing import RankError, Trainee, assert_same_as_single, ranks
from hp_trainer.data_parallel import DataParallel


class Net(nn.Module):
    """Tied weights, a frozen layer, a norm, a scalar, and a branch that only some batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(24, 16)
        self.frozen = nn.Linear(16, 16)
        self.frozen.requires_grad_(False)
        self.wide = nn.Linear(16, 64)
        self.back = nn.Linear(64, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.branch = nn.Linear(16, 16)
        self.never = nn.Linear(3, 3)
        self.head = nn.Linear(16, 24, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.randn(16))

    def forward(self, ids, use_branch):
        x = self.embed(ids) + self.shift.to(self.embed.weight.dtype)
        x = self.norm(x + self.back(torch.tanh(self.wide(self.frozen(x))))) * self.gain
        if use_branch:
            x = x + self.branch(x)
        return self.head(x)


def token_loss(model, batch):
    """Mean over the labels that count."""
    use_branch = bool(batch["branch"].any())
    logits = model(batch["ids"], use_branch) if use_branch else model(batch["ids"], False)
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def uneven_batch(step):
    """Rows whose counts of labels differ, so that ranks differ too."""
    generator = torch.Generator().manual_seed(100 + step)
    ids = torch.randint(0, 24, (8, 6), generator=generator)
    labels = torch.randint(0, 24, (8, 6), generator=generator)
    for row in range(8):
        labels[row, : (row * 7) % 6] = -100
    return {"ids": ids, "labels": labels, "branch": torch.zeros(8, dtype=torch.bool)}


class DataParallelTrainee(Trainee):
    """Takes this rank's rows, in ``accumulation`` micro-batches, weighted by tokens."""

    accumulation = 1
    alone_bytes = 1000
    bucket_bytes = 600

    def __init__(self, model, loss_fn):
        super().__init__(model, loss_fn)
        self.parallel = DataParallel(model, op="sum", alone_bytes=self.alone_bytes, bucket_bytes=self.bucket_bytes)

    def forward_backward(self, batch):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = None
        total = int((batch["labels"] != -100).sum())
        mine = {key: value.chunk(comm.world_size())[comm.rank()] for key, value in batch.items()}
        pieces = [
            {key: value.chunk(self.accumulation)[number] for key, value in mine.items()}
            for number in range(self.accumulation)
        ]
        summed = torch.zeros((), dtype=torch.float64)
        for number, piece in enumerate(pieces):
            weight = int((piece["labels"] != -100).sum()) / total
            loss = self.loss_fn(self.model, piece) * weight
            summed += loss.detach().double()
            if number < len(pieces) - 1:
                with self.parallel.no_sync():
                    loss.backward()
            else:
                loss.backward()
        self.parallel.reduce_gradients()
        return comm.all_reduce(summed, "sum")


def distribute(model, loss_fn):
    return DataParallelTrainee(model, loss_fn)


def distribute_accumulating(model, loss_fn):
    trainee = DataParallelTrainee(model, loss_fn)
    trainee.accumulation = 2
    return trainee


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_uneven_token_counts_equal_one_process(num_ranks):
    assert_same_as_single(Net, uneven_batch, distribute, num_ranks=num_ranks, loss_fn=token_loss)


def test_accumulation_equals_the_joined_batch():
    assert_same_as_single(Net, uneven_batch, distribute_accumulating, num_ranks=2, loss_fn=token_loss)


@pytest.mark.parametrize(("alone_bytes", "bucket_bytes"), [(1, 1), (1 << 40, 1 << 40), (1 << 40, 1)])
def test_the_plan_of_buckets_changes_nothing(alone_bytes, bucket_bytes):
    def with_plan(model, loss_fn):
        DataParallelTrainee.alone_bytes, DataParallelTrainee.bucket_bytes = alone_bytes, bucket_bytes
        return DataParallelTrainee(model, loss_fn)

    assert_same_as_single(Net, uneven_batch, with_plan, num_ranks=2, loss_fn=token_loss)


def branch_batch(step):
    """The branch is used by rank 1's rows only, from the second step on."""
    batch = uneven_batch(step)
    if step > 0:
        batch["branch"] = torch.tensor([False] * 4 + [True] * 4)
    return batch


def branch_loss(model, batch):
    """Each row passes the branch or not, so one process computes what the ranks do."""
    losses = []
    for flag in (False, True):
        rows = batch["branch"] == flag
        if rows.any():
            logits = model(batch["ids"][rows], flag)
            labels = batch["labels"][rows].flatten()
            losses.append(nn.functional.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100, reduction="sum"))
    return sum(losses) / (batch["labels"] != -100).sum()


def test_parameters_used_on_some_ranks_only_or_never_equal_one_process():
    assert_same_as_single(Net, branch_batch, distribute, num_ranks=2, loss_fn=branch_loss)


def _count_messages(accumulation):
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
    parallel = DataParallel(model, alone_bytes=1000, bucket_bytes=100)
    counted = []
    original = comm.all_reduce

    def counting(tensor, *args, **kwargs):
        counted.append(tensor.numel())
        return original(tensor, *args, **kwargs)

    import hp_trainer.data_parallel as module

    module.comm.all_reduce = counting
    try:
        before_last = []
        for number in range(accumulation):
            x = torch.full((2, 16), float(number))
            if number < accumulation - 1:
                with parallel.no_sync():
                    model(x).sum().backward()
            else:
                before_last.append(len(counted))
                model(x).sum().backward()
        during = len(counted)
        parallel.reduce_gradients()
    finally:
        module.comm.all_reduce = original
    return before_last[0], during, len(counted), len(parallel.plan)


def test_nothing_is_sent_before_the_last_micro_step_and_most_during_its_backward():
    for before_last, during, total, planned in ranks(2).run(_count_messages, 3):
        assert before_last == 0
        assert total == planned
        assert during == total - 1  # all but the one with the flags


def _average_and_views(set_to_none):
    torch.manual_seed(comm.rank())
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    parallel = DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pointers = []
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        x = torch.full((2, 4), float(comm.rank() + step))
        model(x).sum().backward()
        local_mean = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        parallel.reduce_gradients()
        for parameter, gradient in zip(model.parameters(), local_mean, strict=True):
            expected = comm.all_reduce(gradient.clone(), "avg")
            torch.testing.assert_close(parameter.grad, expected)
        pointers.append([parameter.grad.data_ptr() for parameter in model.parameters()])
        optimizer.step()
    return pointers[0] == pointers[1] == pointers[2], [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_small_gradients_stay_views_of_one_buffer_and_replicas_stay_equal(set_to_none):
    # Each rank was seeded differently: the weights of rank 0 were broadcast.
    (same_first, first), (same_second, second) = ranks(2).run(_average_and_views, set_to_none)
    assert same_first
    assert same_second
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _no_gradient_on_one_rank():
    model = nn.Linear(3, 2)
    parallel = DataParallel(model, op="sum")
    if comm.rank() == 0:
        model(torch.ones(1, 3)).sum().backward()
    parallel.reduce_gradients()
    return model.weight.grad


def test_a_rank_without_any_backward_counts_as_zero_and_does_not_hang():
    for gradient in ranks(2).run(_no_gradient_on_one_rank):
        assert torch.equal(gradient, torch.ones(2, 3))


def _used_in_the_first_micro_step_only():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    parallel = DataParallel(model, op="sum")
    x = torch.ones(1, 3)
    with parallel.no_sync():
        (model[0](x) + model[1](x)).sum().backward()
    model[0](x).sum().backward()
    parallel.reduce_gradients()
    return model[0].weight.grad, model[1].weight.grad


def test_a_parameter_left_out_by_the_last_micro_step_keeps_its_earlier_gradient():
    for first, second in ranks(2).run(_used_in_the_first_micro_step_only):
        assert torch.equal(first, torch.full((2, 3), 4.0))
        assert torch.equal(second, torch.full((2, 3), 2.0))


def _two_backwards():
    model = nn.Linear(3, 2)
    DataParallel(model)
    model(torch.ones(1, 3)).sum().backward()
    model(torch.ones(1, 3)).sum().backward()


def test_a_second_backward_outside_no_sync_is_refused():
    with pytest.raises(RankError, match=r"became ready twice before reduce_gradients\(\)"):
        ranks(2).run(_two_backwards)


def _unfrozen_later():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    parallel = DataParallel(model)
    model.bias.requires_grad_(True)
    model(torch.ones(1, 3)).sum().backward()
    parallel.reduce_gradients()


def test_a_parameter_unfrozen_later_is_refused_as_it_would_differ_between_ranks():
    with pytest.raises(RankError, match="'bias' has a gradient but was frozen"):
        ranks(2).run(_unfrozen_later)


def _sparse():
    model = nn.Embedding(5, 4, sparse=True)
    parallel = DataParallel(model)
    model(torch.tensor([1])).sum().backward()
    parallel.reduce_gradients()


def test_sparse_gradients_are_refused_by_name():
    with pytest.raises(
        RankError, match=r"the gradient of 'weight' is torch\.sparse_coo.*make the embedding with sparse=False"
    ):
        ranks(2).run(_sparse)


def _different_models():
    DataParallel(nn.Linear(3, 2 + comm.rank()))


def test_ranks_with_different_models_are_told_which_tensor_differs():
    with pytest.raises(
        RankError, match=r"the ranks' models differ: weight \(2, 3\) .* on rank 0, weight \(3, 3\) .* on rank 1"
    ):
        ranks(2).run(_different_models)


def _bfloat16():
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(torch.bfloat16)
    parallel = DataParallel(model)
    model(torch.full((1, 4), float(comm.rank()), dtype=torch.bfloat16)).sum().backward()
    parallel.reduce_gradients()
    return model.weight.grad


def test_bfloat16_gradients_are_averaged():
    for gradient in ranks(2).run(_bfloat16):
        assert torch.equal(gradient, torch.full((4, 4), 0.5, dtype=torch.bfloat16))
