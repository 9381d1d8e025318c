# SPDX-License-Identifier: Apache-2.0
"""Training twice gives the same bits; so does going on from a captured state."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
import torch

from hp_core import determinism
from hp_core.determinism import deterministic, enable_determinism, is_deterministic, rng_state, seed_all, set_rng_state
from hp_core.errors import ConfigError, PlatformError
from hp_core.testing import ranks


@pytest.fixture(autouse=True)
def _leave_no_trace():
    before = rng_state()
    yield
    determinism._set_deterministic(False, False)
    set_rng_state(before)


class TinyTransformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(64, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, num_steps: int, reduce=None) -> list[bytes]:
    """Train on tokens drawn by numpy and shuffled by python; return each loss' bits."""
    losses = []
    for _ in range(num_steps):
        rows = np.random.randint(0, 64, (4, 16))
        order = list(range(4))
        random.shuffle(order)
        tokens = torch.from_numpy(rows[order])
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if reduce is not None:
            for parameter in model.parameters():
                reduce(parameter.grad)
        optimizer.step()
        losses.append(loss.detach().numpy().tobytes())
    return losses


def weights(model: torch.nn.Module) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def train(seed: int, num_steps: int = 4) -> tuple[list[bytes], list[bytes]]:
    enable_determinism(seed)
    model = TinyTransformer()
    losses = steps(model, torch.optim.AdamW(model.parameters(), 1e-2), num_steps)
    return losses, weights(model)


def test_two_training_runs_are_bitwise_equal_and_another_seed_is_not() -> None:
    first, second, other = train(7), train(7), train(8)
    assert first == second
    assert first[0] != other[0]
    assert len(set(first[0])) == 4


def _train_on_ranks(seed: int) -> tuple[list[bytes], list[bytes]]:
    import hp_core.comm as comm

    with deterministic():  # a block: other tests use these processes, too
        seed_all(seed)
        model = TinyTransformer()  # the same on all ranks ...
        seed_all(seed, rank_offset=comm.rank())  # ... whose data and dropout then differ
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        return steps(model, optimizer, 3, lambda grad: comm.all_reduce(grad, "avg")), weights(model)


def test_two_training_runs_on_two_ranks_are_bitwise_equal() -> None:
    first, second = ranks(2).run(_train_on_ranks, 7), ranks(2).run(_train_on_ranks, 7)
    assert first == second
    (losses, kept), (other_losses, other_kept) = first
    assert kept == other_kept
    assert losses != other_losses


def test_training_goes_on_from_a_captured_state_with_the_same_bits() -> None:
    enable_determinism(3)
    model = TinyTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    steps(model, optimizer, 2)
    np.random.standard_normal()  # leaves a second normal number in numpy's cache
    saved = pickle.dumps((rng_state(), model.state_dict(), optimizer.state_dict()))
    expected = steps(model, optimizer, 3), weights(model), np.random.standard_normal()

    seed_all(99)
    again = TinyTransformer()
    other = torch.optim.AdamW(again.parameters(), 1e-2)
    steps(again, other, 1)
    state, model_state, optimizer_state = pickle.loads(saved)
    again.load_state_dict(model_state)
    other.load_state_dict(optimizer_state)
    set_rng_state(state)
    assert (steps(again, other, 3), weights(again), np.random.standard_normal()) == expected


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_reaches_python_numpy_and_the_framework() -> None:
    assert seed_all(5) == 5
    first = draw()
    seed_all(5)
    assert draw() == first
    seed_all(6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    # With no offset the framework's numbers are those of its own seeding.
    seed_all(5)
    ours = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(ours, torch.rand(3))


def test_ranks_with_an_offset_draw_other_numbers_than_any_neighbouring_seed() -> None:
    drawn = {}
    for seed in range(4):
        for rank in range(4):
            seed_all(seed, rank_offset=rank)
            drawn[seed, rank] = draw()
    assert len(set(drawn.values())) == 16
    assert len({value[2] for value in drawn.values()}) == 16


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "1", True, None])
def test_a_seed_out_of_range_raises(seed) -> None:
    with pytest.raises(ConfigError, match="must be a whole number from 0 to"):
        seed_all(seed)


def test_a_negative_offset_raises() -> None:
    with pytest.raises(ConfigError, match="rank_offset=-1"):
        seed_all(1, rank_offset=-1)


def test_large_seeds_are_accepted() -> None:
    seed_all(2**63 - 1)
    first = draw()
    seed_all(2**63 - 2)
    assert draw() != first


def test_deterministic_blocks_nest_and_restore() -> None:
    assert not is_deterministic()
    with deterministic():
        assert torch.are_deterministic_algorithms_enabled()
        with deterministic(False):
            assert not torch.are_deterministic_algorithms_enabled()
        with deterministic(warn_only=True):
            assert torch.is_deterministic_algorithms_warn_only_enabled()
            with deterministic():
                assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert is_deterministic()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="boom"), deterministic():
        raise RuntimeError("boom")
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_kernel_raises_or_warns() -> None:
    def put() -> None:
        # Of the operations that torch checks on every device, one that runs on the CPU.
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)

    put()
    with deterministic(), pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        put()
    with deterministic(warn_only=True), pytest.warns(UserWarning, match="does not have a deterministic"):
        put()


def test_a_state_of_a_device_that_is_not_here_raises_before_anything_changes() -> None:
    state = rng_state()
    assert "cpu" in state.devices
    foreign = determinism.RngState(state.python, state.numpy, {**state.devices, "abacus": b"x"})
    expected = draw()
    set_rng_state(state)
    with pytest.raises(PlatformError, match="unknown device 'abacus'"):
        set_rng_state(foreign)
    assert draw() == expected
