# SPDX-License-Identifier: Apache-2.0
"""``assert_same_as_single``: many ranks train as one process does: loss, every gradient, every weight."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hp_core.testing.pool import ranks
from hp_core.testing.tolerance import NUM_NUDGED, Deviation, Quantity, Reference, bounds
from hp_core.testing.trainee import LossFunction, Trainee, model_loss

if TYPE_CHECKING:
    import torch

_SHOWN = 5  # faults listed in a message

Tensors = dict[Quantity, Any]  # to a tensor in float64, or None where there is no gradient


@dataclass
class _Trained:
    """What one run leaves: its tensors, the dtypes that its gradients had, and what its trainee says of names."""

    tensors: Tensors = field(default_factory=dict)
    dtypes: dict[Quantity, torch.dtype] = field(default_factory=dict)
    has_every_name: bool = True


@dataclass(frozen=True)
class Setup:
    """What all the runs of one comparison share; the arguments of `assert_same_as_single`."""

    build: Callable[[], torch.nn.Module]
    batch_for: Callable[[int], Any]
    distribute: Callable[[torch.nn.Module, LossFunction], Trainee]
    num_steps: int
    dtype: torch.dtype
    loss_fn: LossFunction
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
    bitwise: bool
    seed: int


@dataclass
class _Report:
    """What one rank found: ``faults`` are of names, shapes and non-finite numbers, in words."""

    deviations: list[Deviation] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    expected: set[Quantity] = field(default_factory=set)
    seen: set[Quantity] = field(default_factory=set)


@dataclass(frozen=True)
class Comparison:
    """What `assert_same_as_single` measured.

    Attributes:
        worst: the tensor nearest to its bound; its ``ratio`` is at most 1.
        num_compared: tensors compared, over all ranks and steps.
    """

    worst: Deviation
    num_compared: int


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with momentum: unlike Adam's, its step shows when all gradients are scaled alike."""
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def assert_same_as_single(
    build: Callable[[], torch.nn.Module],
    batch_for: Callable[[int], Any],
    distribute: Callable[[torch.nn.Module, LossFunction], Trainee],
    *,
    num_ranks: int = 2,
    num_steps: int = 3,
    dtype: torch.dtype | None = None,
    loss_fn: LossFunction = model_loss,
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] = sgd,
    bitwise: bool = False,
    seed: int = 0,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> Comparison:
    """Train on ``num_ranks`` processes and on one, and compare loss, every gradient and every weight.

    Runs of ``num_steps`` steps from the same weights: one process in float64 (the reference), one process in
    ``dtype`` (five times, to know its own error), and the ranks in ``dtype``. Losses and gradients are compared at
    every step, weights after the last, on EVERY rank. A rank's error against the reference may be twice one process's
    own plus eps (`hp_core.testing.tolerance` says it exactly). Missing and unexpected names, a gradient that is
    ``None`` on one side or of another dtype than one process' in ``dtype``, other shapes, and numbers that are not
    finite are failures whatever their size.

    The functions run in the workers of `hp_core.testing.ranks`, one thread each; pass small models.

    Args:
        build: returns the model, the same at every call with torch's generator seeded by ``seed``.
        batch_for: ``batch_for(step)`` returns the whole batch of a step, the same at every call: a tensor, or
            mappings, tuples and lists of tensors and other things. Floating tensors are cast to the run's type.
        distribute: ``distribute(model, loss_fn)`` applies the feature to the built model and returns the
            `Trainee` that trains it.
        num_ranks: number of processes.
        num_steps: optimizer steps.
        dtype: compute type; float32 when ``None``.
        loss_fn: ``loss_fn(model, batch)`` returns the mean loss of a batch, a 0-d tensor.
        optimizer: makes the optimizer of given parameters.
        bitwise: the ranks must have the very bits that one process has in ``dtype``.
        seed: torch's seed before each ``build``.
        env: environment of the workers.
        timeout_s: for all of it.

    Returns:
        How near the worst tensor came to its bound.

    Raises:
        AssertionError: the numbers differ; the message names the worst tensors, with step, rank and errors.
        RankError: a rank failed.
    """
    import torch

    setup = Setup(build, batch_for, distribute, num_steps, dtype or torch.float32, loss_fn, optimizer, bitwise, seed)
    reports = ranks(num_ranks, env=env).run(_compare_on_this_rank, setup, timeout_s=timeout_s)
    faults = [fault for report in reports for fault in report.faults]
    seen = set().union(*(report.seen for report in reports))
    faults += [f"{quantity}: no rank has it" for quantity in sorted(reports[0].expected - seen, key=str)]
    deviations = sorted((each for report in reports for each in report.deviations), key=_badness, reverse=True)
    wrong = [str(deviation) for deviation in deviations if deviation.ratio > 1.0]
    if faults or wrong:
        what = "differ in their bits from" if bitwise else "are not the same as"
        lines = faults + wrong
        head = f"{num_ranks} rank{'s' if num_ranks > 1 else ''} {what} one process ({len(lines)} tensors); worst first:"
        more = [f"… and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise AssertionError("\n  ".join([head, *lines[:_SHOWN], *more]))
    return Comparison(deviations[0], len(deviations))


def _badness(deviation: Deviation) -> tuple[float, float]:
    return deviation.ratio, deviation.error / (deviation.size or 1.0)


def _compare_on_this_rank(setup: Setup) -> _Report:
    import torch

    import hp_core.comm as comm
    from hp_core.testing.double import float64_everywhere

    def alone(model: torch.nn.Module) -> Trainee:
        return Trainee(model, setup.loss_fn)

    # Every rank runs the single process's part too: cheaper, for small models, than sending the tensors around.
    single = _train(setup, alone, setup.dtype)
    singles = [single.tensors]
    reference = single.tensors
    if not setup.bitwise:
        reference = _train(setup, alone, torch.float64, during=float64_everywhere).tensors
        singles += [_train(setup, alone, setup.dtype, nudge=draw).tensors for draw in range(1, NUM_NUDGED + 1)]
    for quantity, tensor in reference.items():
        if tensor is not None and not torch.isfinite(tensor).all():
            raise ValueError(f"one process itself has numbers that are not finite: {quantity}")
    ours = _train(setup, lambda model: setup.distribute(model, setup.loss_fn), setup.dtype)
    found = ours.tensors
    report = _Report(expected=set(reference), seen=set(found))
    sizes = {
        quantity: Reference(_size(tensor), max(_size(each[quantity] - tensor) for each in singles))
        for quantity, tensor in reference.items()
        if tensor is not None
    }
    allowed = bounds(sizes, torch.finfo(setup.dtype).eps)
    rank = comm.rank()
    for quantity in reference.keys() | found.keys():
        fault = _fault(quantity, reference, found, ours.has_every_name) or _dtype_fault(quantity, single, ours)
        if fault:
            report.faults.append(f"rank {rank}: {quantity}: {fault}")
        elif found.get(quantity) is not None:
            error = _size(found[quantity] - reference[quantity])
            if setup.bitwise:
                same = torch.equal(found[quantity], reference[quantity])
                deviation = Deviation(rank, quantity, 0.0 if same else error, 0.0, 0.0, sizes[quantity].size)
            else:
                size, own = sizes[quantity].size, sizes[quantity].own_error
                deviation = Deviation(rank, quantity, error, own, allowed[quantity], size)
            report.deviations.append(deviation)
    report.faults.sort()
    return report


def _fault(quantity: Quantity, reference: Tensors, found: Tensors, has_every_name: bool) -> str:
    """Return what is wrong with a tensor besides its numbers, or ``""``."""
    import torch

    if quantity not in reference:
        return "one process has no such name"
    if quantity not in found:
        return "missing" if has_every_name else ""
    expected, got = reference[quantity], found[quantity]
    if expected is None or got is None:
        if expected is got:
            return ""
        return "None, where one process has one" if got is None else "not None, as it is in one process"
    if expected.shape != got.shape:
        return f"shape {tuple(got.shape)}, in one process {tuple(expected.shape)}"
    if not torch.isfinite(got).all():
        return f"{int((~torch.isfinite(got)).sum())} of {got.numel()} numbers are not finite"
    return ""


def _dtype_fault(quantity: Quantity, single: _Trained, ours: _Trained) -> str:
    expected, got = single.dtypes.get(quantity), ours.dtypes.get(quantity)
    if expected is None or got is None or expected is got:
        return ""
    return f"dtype {str(got).removeprefix('torch.')}, in one process {str(expected).removeprefix('torch.')}"


def _train(
    setup: Setup,
    trainee_of: Callable[[torch.nn.Module], Trainee],
    dtype: torch.dtype,
    during: Callable[[], AbstractContextManager[None]] = nullcontext,
    nudge: int = 0,
) -> _Trained:
    import torch

    torch.manual_seed(setup.seed)
    # Rounded to the compute type first: the reference starts from the same numbers.
    model = setup.build().to(setup.dtype).to(dtype)
    if nudge:
        _nudge((parameter for parameter in model.parameters() if parameter.requires_grad), nudge)
    trainee = trainee_of(model)
    optimizer = setup.optimizer(trainee.parameters())
    run = _Trained(has_every_name=trainee.has_every_name)
    for step in range(setup.num_steps):
        optimizer.zero_grad(set_to_none=True)
        batch = _cast(_cast(setup.batch_for(step), setup.dtype), dtype)
        with during():  # the step alone: what draws random numbers draws them as the other runs do
            loss = trainee.forward_backward(batch)
        if loss is not None or trainee.has_every_name:
            run.tensors[Quantity("loss", "", step)] = _copy(loss)
        for name, gradient in trainee.gradients().items():
            quantity = Quantity("gradient", name, step)
            run.tensors[quantity] = _copy(gradient)
            if gradient is not None:
                run.dtypes[quantity] = gradient.dtype
        optimizer.step()
    for name, weight in trainee.weights().items():
        run.tensors[Quantity("weight", name, setup.num_steps - 1)] = _copy(weight)
    return run


def _nudge(tensors: Iterable[torch.Tensor], seed: int) -> None:
    """Move every number by less than one rounding, in place. See [Note: Tolerance]."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in tensors:
            by = torch.rand(tensor.shape, generator=draw, dtype=torch.float64) - 0.5
            tensor.copy_(tensor.double() * (1.0 + torch.finfo(tensor.dtype).eps * by))


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    import torch

    return None if tensor is None else tensor.detach().to(device="cpu", dtype=torch.float64, copy=True)


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _cast(batch: Any, dtype: torch.dtype) -> Any:
    import torch

    if isinstance(batch, torch.Tensor):
        return batch.to(dtype) if batch.is_floating_point() else batch
    if isinstance(batch, Mapping):
        return {name: _cast(value, dtype) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        values = [_cast(value, dtype) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch
