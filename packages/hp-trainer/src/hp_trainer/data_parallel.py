# SPDX-License-Identifier: Apache-2.0
"""Plain data parallelism: every rank holds the whole model, gradients are reduced while the backward still runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch

import hp_core.comm as comm
from hp_core.errors import CommError
from hp_trainer.buckets import Bucket, plan_buckets
from hp_trainer.replicas import check_same_structure, make_replicas_equal

if TYPE_CHECKING:
    from torch import nn

#: Gradients from here on are reduced where they are; see [Note: Buckets].
ALONE_BYTES = 1 << 20


class DataParallel:
    """Keeps the gradients of a module equal on all ranks of a group.

    The module itself is not changed but for a hook on each trainable parameter, and its forward is not touched::

        parallel = DataParallel(model, mesh.get_group("dp"))
        with parallel.no_sync():
            loss(first).backward()          # accumulates, no communication
        loss(last).backward()               # messages start as gradients become ready
        parallel.reduce_gradients()         # sends what is left and waits

    All ranks call the constructor and `reduce_gradients` together. The constructor checks that all ranks hold the
    same parameters and broadcasts parameters and buffers from rank 0 of the group.

    A parameter without a gradient on this rank counts as zero; one without a gradient on any rank keeps ``grad`` None,
    as in one process. Frozen parameters take no part. Tied ones are one parameter. Sparse gradients are refused.

    Memory beyond the gradients: one flat buffer for those smaller than 1 MiB, of which their ``grad`` are then views.
    ``zero_grad(set_to_none=False)`` keeps the views; the default drops them until the next backward.

    Args:
        module: The model, on its device, the same structure on all ranks.
        group: The data-parallel ranks; None is the world.
        op: ``"avg"`` for the mean over ranks (a mean loss per rank), ``"sum"`` where the loss is already divided by
            what all ranks have together.
        bucket_bytes: Size at which a bucket of small gradients is closed.
        alone_bytes: Gradients of this size or more are reduced in place.

    Raises:
        CommError: The ranks' modules differ, or a collective fails.
    """

    def __init__(
        self,
        module: nn.Module,
        group: comm.Group | None = None,
        *,
        op: Literal["avg", "sum"] = "avg",
        bucket_bytes: int = 25 * 2**20,
        alone_bytes: int = ALONE_BYTES,
    ) -> None:
        self.module = module
        self.group = comm.world() if group is None else group
        self.op = op
        self.exposed_wait_s = 0.0
        self._sync = True
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._frozen = [
            (name, parameter) for name, parameter in module.named_parameters() if not parameter.requires_grad
        ]
        check_same_structure(module, self.group)
        make_replicas_equal(module, self.group)
        self.plan: list[Bucket] = []
        self._buffers: dict[int, torch.Tensor] = {}
        self._views: dict[int, torch.Tensor] = {}
        self._flags = torch.empty(0)
        self._bucket_of: list[int] = [0] * len(named)
        self._communicates = self.group.size > 1 and bool(named)
        if self._communicates:
            self._make_buckets(bucket_bytes, alone_bytes)
        self._start_round()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes within the block only accumulate: nothing is sent."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def reduce_gradients(self) -> None:
        """Send the gradients that are not under way yet, and wait until all are reduced.

        Call it on every rank after the last backward of a step, before clipping and the optimizer. The time it had to
        wait is in ``exposed_wait_s`` (seconds).

        Raises:
            CommError: A collective failed, or a parameter that was frozen when this object was made has a gradient.
        """
        start = time.perf_counter()
        for name, parameter in self._frozen:
            if parameter.grad is not None:
                raise CommError(
                    f"parameter {name!r} has a gradient but was frozen when DataParallel was made, so it would "
                    "differ between ranks; unfreeze parameters first, or make DataParallel anew"
                )
        if self._communicates:
            self._fill_missing()
            self._launch_ready()
            assert self._next == len(self.plan), "a bucket was not sent"
            for work in self._works:
                work.wait()
            self._drop_unused()
        self._start_round()
        self.exposed_wait_s = time.perf_counter() - start

    def _make_buckets(self, bucket_bytes: int, alone_bytes: int) -> None:
        parameters = self._parameters
        sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
        kinds = [f"{parameter.dtype} {parameter.device}" for parameter in parameters]
        self.plan = plan_buckets(sizes, kinds, bucket_bytes=bucket_bytes, alone_bytes=alone_bytes)
        for number, bucket in enumerate(self.plan):
            for index in bucket.members:
                self._bucket_of[index] = number
            if bucket.joined:
                self._make_buffer(number, bucket)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._hook_of(index))  # type: ignore[no-untyped-call]

    def _make_buffer(self, number: int, bucket: Bucket) -> None:
        like = self._parameters[bucket.members[0] if bucket.members else 0]
        count = sum(self._parameters[index].numel() for index in bucket.members)
        num_flags = len(self._parameters) if bucket.flags else 0
        buffer = torch.zeros(count + num_flags, dtype=like.dtype, device=like.device)
        offset = 0
        for index in bucket.members:
            parameter = self._parameters[index]
            self._views[index] = buffer[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
        if bucket.flags:
            self._flags = buffer[offset:]
        self._buffers[number] = buffer

    def _start_round(self) -> None:
        self._arrived = [False] * len(self._parameters)
        # The bucket with the flags is sent by `reduce_gradients` only: the flags are known no earlier.
        self._missing = [len(bucket.members) + bucket.flags for bucket in self.plan]
        self._next = 0
        self._works: list[comm.Work] = []

    def _hook_of(self, index: int) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            if self._sync:
                self._arrive(index, parameter)

        return hook

    def _arrive(self, index: int, parameter: torch.Tensor) -> None:
        if self._arrived[index]:
            raise CommError(
                f"the gradient of {self._names[index]!r} became ready twice before reduce_gradients(); do all "
                "backward passes of a step but the last within no_sync(), and use non-reentrant recompute"
            )
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout is not torch.strided:
            raise CommError(
                f"the gradient of {self._names[index]!r} is {gradient.layout}; data parallelism needs dense "
                "gradients: make the embedding with sparse=False"
            )
        self._arrived[index] = True
        view = self._views.get(index)
        if view is not None and gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
            parameter.grad = view
        number = self._bucket_of[index]
        self._missing[number] -= 1
        if number == self._next:
            self._launch_ready()

    def _launch_ready(self) -> None:
        while self._next < len(self.plan) and self._missing[self._next] == 0:
            bucket = self.plan[self._next]
            tensor = self._buffers[self._next] if bucket.joined else self._parameters[bucket.members[0]].grad
            assert tensor is not None
            self._works.append(comm.all_reduce(tensor, self.op, self.group, async_op=True))
            self._next += 1

    def _fill_missing(self) -> None:
        """Give zeros to the parameters that no backward reached in this round, and set the flags."""
        flags = []
        for index, parameter in enumerate(self._parameters):
            if self._arrived[index]:
                flags.append(1.0)
                continue
            # A gradient may still be there: of earlier micro-steps, when only the last one left the parameter out.
            flags.append(0.0 if parameter.grad is None else 1.0)
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._arrive(index, parameter)
        self._flags.copy_(torch.tensor(flags, dtype=self._flags.dtype))
        self._missing[-1] -= 1

    def _drop_unused(self) -> None:
        for index, flag in enumerate(self._flags.tolist()):
            if flag == 0.0:
                self._parameters[index].grad = None
