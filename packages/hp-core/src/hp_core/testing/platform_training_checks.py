# SPDX-License-Identifier: Apache-2.0
"""The checks of a platform's modules and autograd; part of `hp_core.testing.platform_suite.PlatformSuite`."""

from __future__ import annotations

from typing import Any

from hp_core.errors import PlatformError
from hp_core.testing.platform_case import PlatformCase, check_raises


class TrainingChecks(PlatformCase):
    """Parameters, hooks, recording, derivatives."""

    # Modules

    def test_every_name_of_a_parameter_is_listed_also_when_tied(self) -> None:
        """Dotted names; one parameter under two names is the same object."""
        module, ops = self.nested(a=self.linear(2, 3), b=self.linear(2, 3)), self.platform.module
        names = dict(ops.named_parameters(module))
        assert sorted(names) == ["a.bias", "a.weight", "b.bias", "b.weight"]
        assert ops.set_parameter(module, "b.weight", names["a.weight"]) is names["a.weight"]
        names = dict(ops.named_parameters(module))
        assert len(names) == 4
        assert names["b.weight"] is names["a.weight"]

    def test_a_parameter_is_replaced_under_its_name_and_used_by_the_forward(self) -> None:
        """A plain tensor becomes a parameter on the same memory; trainability stays; unknown names raise."""
        module, ops = self.nested(a=self.linear(2, 1)), self.platform.module
        layer = module["a"]
        layer.bias.requires_grad_(False)
        plain = self.tensor([[3.0, 4.0]])
        made = ops.set_parameter(module, "a.weight", plain)
        bias = ops.set_parameter(module, "a.bias", self.tensor([1.0]))
        assert layer.weight is made
        assert made.requires_grad
        assert not bias.requires_grad
        assert self.numpy(layer(self.tensor([[1.0, 1.0]]))).tolist() == [[8.0]]
        self.platform.tensor.copy_(plain, self.tensor([[5.0, 5.0]]))
        assert self.numpy(made).tolist() == [[5.0, 5.0]]
        check_raises(PlatformError, lambda: ops.set_parameter(module, "a.wieght", plain))

    def test_hooks_run_in_order_change_values_and_come_off(self) -> None:
        """All four kinds, with positional and keyword arguments; removed hooks do not run."""
        layer, ops, seen = self.linear(2, 1), self.platform.module, []
        ops.set_parameter(layer, "weight", self.tensor([[1.0, 1.0]]))
        ops.set_parameter(layer, "bias", self.tensor([0.0]))

        def before(module: Any, args: Any, kwargs: Any) -> Any:
            seen.append("forward_pre")
            return tuple(value * 2 for value in args), {name: value * 2 for name, value in kwargs.items()}

        def after(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
            seen.append(f"forward {len(args)} {sorted(kwargs)}")
            return output * 10

        def before_backward(module: Any, grad_outputs: Any) -> Any:
            seen.append("backward_pre")
            return tuple(grad * 3 for grad in grad_outputs)

        def after_backward(module: Any, grad_inputs: Any, grad_outputs: Any) -> Any:
            seen.append("backward")
            return tuple(None if grad is None else grad * 7 for grad in grad_inputs)

        handles = [ops.add_hook(layer, "forward_pre", before), ops.add_hook(layer, "forward", after)]
        assert self.values(layer(input=self.tensor([[1.0, 2.0]]))) == [[60.0]]
        assert seen == ["forward_pre", "forward 0 ['input']"]
        seen.clear()
        handles.append(ops.add_hook(layer, "backward_pre", before_backward))
        handles.append(ops.add_hook(layer, "backward", after_backward))
        x = self.tensor([[1.0, 2.0]]).requires_grad_()
        self.platform.autograd.backward([layer(x).sum()])
        assert seen == ["forward_pre", "forward 1 []", "backward_pre", "backward"]
        # The output is 10 (2 x) w; the backward counts it three times, and the input's part seven times more.
        assert self.values(self.platform.autograd.grad(layer.weight)) == [[60.0, 120.0]]
        assert self.values(self.platform.autograd.grad(x)) == [[420.0, 420.0]]
        for handle in handles:
            handle.remove()
            handle.remove()
        assert self.values(layer(self.tensor([[1.0, 2.0]]))) == [[3.0]]
        assert len(seen) == 4
        check_raises(PlatformError, lambda: ops.add_hook(layer, "forwards", after))  # type: ignore[arg-type]

    # Autograd

    def test_nothing_is_recorded_under_no_grad(self) -> None:
        """Outputs require no gradient there, and do outside."""
        layer, x = self.linear(2, 2), self.tensor([[1.0, 1.0]])
        with self.platform.autograd.no_grad():
            assert not layer(x).requires_grad
        assert layer(x).requires_grad

    def test_a_function_has_the_derivative_given(self) -> None:
        """Saved tensors, several inputs and outputs, None for an input without a derivative."""
        autograd = self.platform.autograd

        def forward(ctx: Any, x: Any, y: Any, factor: float) -> Any:
            ctx.save_for_backward(x, y)
            ctx.factor = factor
            return x * y, x + y

        def backward(ctx: Any, grad_product: Any, grad_sum: Any) -> Any:
            x, y = ctx.saved_tensors
            return (grad_product * y + grad_sum) * ctx.factor, grad_product * x + grad_sum, None

        function = autograd.function(forward, backward)
        x, y = self.tensor([2.0, 3.0]).requires_grad_(), self.tensor([5.0, 7.0]).requires_grad_()
        product, total = function(x, y, 100.0)
        assert self.numpy(product).tolist() == [10.0, 21.0]
        autograd.backward([product.sum(), total.sum()])
        assert self.values(autograd.grad(x)) == [600.0, 800.0]
        assert self.values(autograd.grad(y)) == [3.0, 4.0]

    def test_saved_tensors_go_through_the_hooks(self) -> None:
        """Packed in the forward, unpacked in the backward, and the gradient uses what came back."""
        autograd = self.platform.autograd
        x = self.tensor([2.0, 3.0]).requires_grad_()
        y = self.tensor([5.0, 7.0])
        packed: list[Any] = []

        def pack(tensor: Any) -> int:
            packed.append(tensor)
            return len(packed) - 1

        with autograd.saved_tensors_hooks(pack, lambda index: packed[index] * 10):
            product = x * y
        assert packed
        autograd.backward([product.sum()])
        assert self.values(autograd.grad(x)) == [50.0, 70.0]

    def test_gradients_accumulate_are_set_cleared_and_announced(self) -> None:
        """Given derivatives, two backwards, a hook after each accumulation, and None."""
        autograd = self.platform.autograd
        x = self.tensor([1.0, 2.0]).requires_grad_()
        announced: list[list[float]] = []
        handle = autograd.on_grad(x, lambda leaf: announced.append(self.values(autograd.grad(leaf))))
        assert autograd.grad(x) is None
        autograd.backward([x * 3, x * x], [self.tensor([1.0, 10.0]), self.tensor([1.0, 1.0])])
        assert self.values(autograd.grad(x)) == [5.0, 34.0]
        autograd.backward([(x * 2).sum()])
        assert self.values(autograd.grad(x)) == [7.0, 36.0]
        assert announced == [[5.0, 34.0], [7.0, 36.0]]
        handle.remove()
        autograd.set_grad(x, self.tensor([1.0, 1.0]))
        autograd.backward([x.sum()])
        assert self.values(autograd.grad(x)) == [2.0, 2.0]
        assert len(announced) == 2
        autograd.set_grad(x, None)
        assert autograd.grad(x) is None
