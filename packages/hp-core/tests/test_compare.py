# SPDX-License-Identifier: Apache-2.0
"""``assert_same_as_single`` passes what is right and names what is wrong; the right thing is data parallel by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

import hp_core.comm as comm
from hp_core.testing import Trainee, assert_same_as_single, ranks
from hp_core.testing.tolerance import Deviation, Quantity, Reference, bounds

EPS = 2.0**-23


class Network(nn.Module):
    """A tied weight, a frozen parameter, one that is never used, a key bias (no gradient in exact arithmetic)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        scores = torch.softmax((self.query(x) @ self.key(x).transpose(1, 2)).to(torch.float32), dim=-1).to(x.dtype)
        x = self.norm(x + self.scale * (scores @ x)) + self.frozen
        logits = x @ self.embed.weight.t()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch_for(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randint(11, (5, 7), generator=draw), torch.randint(11, (5, 7), generator=draw)


class DataParallel(Trainee):
    """Rank 0 has one row of five, rank 1 the other four."""

    def part(self, batch):
        first, last = [(0, 1), (1, 5)][comm.rank()]
        return tuple(tensor[first:last] for tensor in batch)

    def weighted(self, loss, batch, whole):
        return loss * (len(batch[0]) / len(whole[0]))

    def reduced(self, name, gradient):
        return comm.all_reduce(gradient)

    def forward_backward(self, whole):
        batch = self.part(whole)
        loss = self.weighted(self.loss_fn(self.model, batch), batch, whole)
        loss.backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                parameter.grad = self.reduced(name, parameter.grad)
        return comm.all_reduce(loss.detach().clone())


class MeanOfMeans(DataParallel):
    def weighted(self, loss, batch, whole):
        return loss / 2


class OneNotReduced(DataParallel):
    def reduced(self, name, gradient):
        return gradient if name == "norm.bias" else comm.all_reduce(gradient)


class OneNotReducedOnOneRank(DataParallel):
    def reduced(self, name, gradient):
        total = comm.all_reduce(gradient.clone())
        return gradient if name == "query.weight" and comm.rank() == 1 else total


class GradientsTwice(DataParallel):
    def reduced(self, name, gradient):
        return 2 * comm.all_reduce(gradient)


class SlightlyWrongLoss(DataParallel):
    def forward_backward(self, whole):
        return super().forward_backward(whole) * (1 + 1e-5)


class ZerosForNone(DataParallel):
    def gradients(self):
        return {name: torch.zeros(3) if value is None else value for name, value in super().gradients().items()}


class NoneForOne(DataParallel):
    def gradients(self):
        return {**super().gradients(), "scale": None}


class GradientOfAnotherDtype(DataParallel):
    def gradients(self):
        found = dict(super().gradients())
        return {**found, "scale": found["scale"].double()}


class NameMissing(DataParallel):
    def weights(self):
        return {name: value for name, value in super().weights().items() if name != "key.weight"}


class NameUnknown(DataParallel):
    def gradients(self):
        return {**super().gradients(), "module.scale": self.model.scale.grad}


class WrongShape(DataParallel):
    def weights(self):
        return {**super().weights(), "norm.weight": torch.ones(8)}


class NotFinite(DataParallel):
    def gradients(self):
        gradient = dict(super().gradients())
        gradient["embed.weight"][3, 2] = float("nan")
        return gradient


class OneWeightNotUpdated(DataParallel):
    def parameters(self):
        return [value for name, value in self.model.named_parameters() if name != "query.bias"]


class Stages(DataParallel):
    """Each rank shows half of the parameters, as a pipeline would, and only the last one the loss."""

    has_every_name = False

    def forward_backward(self, whole):
        loss = super().forward_backward(whole)
        return loss if comm.rank() == 1 else None

    def mine(self, tensors):
        return {name: value for name, value in tensors.items() if ("norm" in name) == (comm.rank() == 0)}

    def gradients(self):
        return self.mine(super().gradients())

    def weights(self):
        return self.mine(super().weights())


class StagesThatForgetOne(Stages):
    def mine(self, tensors):
        return {name: value for name, value in super().mine(tensors).items() if name != "scale"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_uneven_data_parallel_by_hand_is_the_same(dtype, seed):
    result = assert_same_as_single(Network, batch_for, DataParallel, dtype=dtype, seed=seed)
    assert 0.0 < result.worst.ratio <= 1.0
    # 10 parameters on 2 ranks; 8 of them with gradients, at 3 steps; 3 losses
    names = [name for name, _ in Network().named_parameters()]
    assert result.num_compared == 2 * (len(names) + 3 * (len(names) - 2) + 3)


def test_adam_and_a_wider_model_are_the_same():
    assert_same_as_single(partial(Network, 64), batch_for, DataParallel, optimizer=partial(torch.optim.AdamW, lr=1e-3))


def test_stages_that_are_complete_together_are_the_same():
    assert_same_as_single(Network, batch_for, Stages)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (MeanOfMeans, "gradient of"),
        (OneNotReduced, "rank 1: gradient of norm.bias at step "),
        (OneNotReducedOnOneRank, "rank 1: gradient of query.weight at step "),
        (GradientsTwice, "gradient of"),
        (SlightlyWrongLoss, "loss at step 2: off by"),
        (ZerosForNone, "gradient of unused at step 0: not None, as it is in one process"),
        (NoneForOne, "gradient of scale at step 0: None, where one process has one"),
        (GradientOfAnotherDtype, "gradient of scale at step 0: dtype float64, in one process float32"),
        (NameMissing, "weight of key.weight after step 2: missing"),
        (NameUnknown, "gradient of module.scale at step 0: one process has no such name"),
        (WrongShape, "weight of norm.weight after step 2: shape (8,), in one process (16,)"),
        (NotFinite, "gradient of embed.weight at step 0: 1 of 176 numbers are not finite"),
        (OneWeightNotUpdated, "weight of query.bias after step 2: off by"),
        (StagesThatForgetOne, "weight of scale after step 2: no rank has it"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_planted_fault_is_found_and_named(feature, message):
    with pytest.raises(AssertionError) as caught:
        assert_same_as_single(Network, batch_for, feature)
    assert message in str(caught.value)


def test_the_message_of_a_wrong_gradient_names_the_worst_first_with_both_errors():
    with pytest.raises(AssertionError) as caught:
        assert_same_as_single(Network, batch_for, OneNotReducedOnOneRank, num_steps=1)
    head, first, *_ = str(caught.value).splitlines()
    assert head.startswith("2 ranks are not the same as one process (")
    assert "one process itself by" in first
    assert "allowed" in first
    assert "query.weight" in first


def test_bitwise_accepts_the_same_bits_and_nothing_else():
    class Same(Trainee):
        pass

    class LastBit(Trainee):
        def gradients(self):
            found = dict(super().gradients())
            return {**found, "scale": torch.nextafter(found["scale"], torch.tensor(torch.inf))}

    assert assert_same_as_single(Network, batch_for, Same, bitwise=True).worst.ratio == 0.0
    assert_same_as_single(Network, batch_for, LastBit)  # within the tolerance
    with pytest.raises(AssertionError, match="differ in their bits from one process") as caught:
        assert_same_as_single(Network, batch_for, LastBit, bitwise=True)
    assert "gradient of scale" in str(caught.value)


def test_a_reference_that_is_not_finite_is_no_reference():
    def broken():
        model = Network()
        model.scale.data.fill_(torch.inf)
        return model

    with pytest.raises(Exception, match="one process itself has numbers that are not finite"):
        assert_same_as_single(broken, batch_for, DataParallel)


def test_the_float64_reference_stays_float64_where_the_model_says_float32():
    def widest():
        from hp_core.testing.double import float64_everywhere

        x = torch.ones(3, dtype=torch.float64) / 3
        with float64_everywhere():
            got = [x.float(), x.to(torch.float32), x.to(dtype=torch.bfloat16), torch.softmax(x, 0, dtype=torch.float32)]
            got += [torch.zeros(2), torch.arange(3).float()]
        return {tensor.dtype for tensor in got}, torch.zeros(1).dtype

    assert ranks(2).run(widest) == [({torch.float64}, torch.float32)] * 2


def test_bounds_are_twice_the_own_error_plus_eps():
    first, second = Quantity("gradient", "a", 0), Quantity("gradient", "a", 1)
    allowed = bounds({first: Reference(2.0, 2e-6), second: Reference(4.0, 1e-6)}, EPS)
    assert allowed[first] == pytest.approx((2 * 1e-6 + EPS) * 2.0)
    assert allowed[second] == pytest.approx((2 * 1e-6 + EPS) * 4.0)  # the step with the larger own error


def test_a_tensor_of_rounding_only_is_compared_with_the_largest_of_its_kind():
    noise, large = Quantity("gradient", "key.bias", 0), Quantity("gradient", "weight", 0)
    allowed = bounds({noise: Reference(1e-18, 1e-9), large: Reference(0.5, 1e-7)}, EPS)
    assert allowed[noise] == pytest.approx(2e-9 + EPS * 0.5)


def test_a_deviation_above_its_bound_fails_and_zero_never_does():
    quantity = Quantity("weight", "a", 2)
    assert Deviation(0, quantity, error=2.0, own_error=0.5, bound=1.0, size=1.0).ratio == 2.0
    assert Deviation(0, quantity, error=1e-9, own_error=0.0, bound=0.0, size=1.0).ratio == float("inf")
    assert Deviation(0, quantity, error=0.0, own_error=0.0, bound=0.0, size=0.0).ratio == 0.0
