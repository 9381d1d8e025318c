# SPDX-License-Identifier: Apache-2.0
"""What can be communicated: a tensor whose memory holds its values, each written element in a place of its own.

Anything else is refused here, on the caller, before anything is sent: inside a backend it would be a crash, or an
error after the others have begun, which ends communication on all ranks. The checks look at attributes alone, so that
no framework is imported, and cost less than a microsecond.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from hp_core.comm.types import Tensor, dtype_name
from hp_core.errors import CommError

if TYPE_CHECKING:
    from hp_core.comm.group import Group

#: What a tensor of any framework has.
_ATTRIBUTES = ("shape", "dtype", "nbytes", "is_contiguous", "data_ptr")
#: Classes seen: torch's layout of plain memory for its tensors, None for those of other frameworks.
_layouts: dict[type, Any] = {}
#: What says of a tensor that gradients go through it. MindSpore's public name says of parameters that they are trained.
_grad_attributes: dict[type, str] = {}
#: Classes whose tensors stand for others and have no memory of their own.
_wrappers: set[type] = set()


def check_tensor(what: str, tensor: Tensor, group: Group, written: bool = False) -> None:
    """Raise unless ``tensor`` can be communicated.

    Args:
        what: The call, and which argument where it is not the first, for the message.
        tensor: What was passed.
        group: On which group.
        written: Whether it is overwritten: then no two elements may share memory.

    Raises:
        CommError: it is no tensor, or one that cannot be moved as it is.
    """
    kind = type(tensor)
    strided = _layouts[kind] if kind in _layouts else _learn(what, kind, group)
    if strided is not None:
        if tensor.is_nested or tensor.is_quantized or tensor.layout is not strided:
            _refuse_storage(what, tensor, group)
        if tensor.is_conj():
            _refuse(what, group, "the tensor is a view that conjugates when read; pass tensor.resolve_conj()")
        if tensor.is_neg():
            _refuse(what, group, "the tensor is a view that negates when read; pass tensor.resolve_neg()")
        if kind in _wrappers and not group.session.simulated:
            _refuse(what, group, f"a {kind.__name__} has no memory of its own; pass the tensor that it wraps")
    if not group.session.simulated and not tensor.data_ptr() and tensor.numel() and "meta" not in str(tensor.device):
        shape = tuple(tensor.shape)
        _refuse(
            what, group, f"the memory of the tensor (shape {shape}) was freed, or never allocated; allocate it first"
        )
    if written and not tensor.is_contiguous() and _may_overlap(tensor.shape, tensor.stride()):
        _refuse(
            what,
            group,
            f"elements of the tensor (shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}) share memory, and "
            "it is written to; pass the tensor that was expanded, or a clone",
        )


def requires_grad(tensor: Tensor) -> bool:
    """Return whether gradients go through ``tensor``, of a class that `check_tensor` has seen."""
    found: bool = getattr(tensor, _grad_attributes[type(tensor)])
    return found


def _learn(what: str, kind: type, group: Group) -> Any:
    grad_attribute = next((name for name in ("_requires_grad", "requires_grad") if hasattr(kind, name)), None)
    if grad_attribute is None or not all(hasattr(kind, name) for name in _ATTRIBUTES):
        fix = "pass a tensor"
        if kind.__module__ == "numpy":
            maker = "mindspore.Tensor" if "mindspore" in sys.modules and "torch" not in sys.modules else "torch"
            fix = f"pass {maker}.from_numpy(array)"
        elif kind in (list, tuple, dict):
            fix = "pass a tensor; objects go through all_gather_object and broadcast_object"
        _refuse(what, group, f"expected a tensor, not {_named(kind)}; {fix}")
    base: Any = next((c for c in kind.__mro__ if (c.__module__, c.__qualname__) == ("torch", "Tensor")), None)
    _grad_attributes[kind] = grad_attribute
    if base is None:
        _layouts[kind] = None
    else:
        if getattr(kind, "__torch_dispatch__", None) is not base.__torch_dispatch__:
            _wrappers.add(kind)
        _layouts[kind] = sys.modules["torch"].strided
    return _layouts[kind]


def _named(kind: type) -> str:
    if kind is type(None):
        return "None"
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _refuse_storage(what: str, tensor: Tensor, group: Group) -> None:
    if tensor.is_nested:
        _refuse(what, group, "the tensor is nested; pass its values and its lengths, or a padded tensor")
    if tensor.is_quantized:
        text = f"the tensor is quantized ({dtype_name(tensor.dtype)}); pass tensor.int_repr(), and its scale apart"
        _refuse(what, group, text)
    layout = str(tensor.layout).rpartition(".")[2]
    _refuse(what, group, f"the layout of the tensor is {layout}, not strided; pass tensor.to_dense(), or its parts")


def _refuse(what: str, group: Group, text: str) -> NoReturn:
    raise CommError(f"rank {group.ranks[group.rank]}: {what} on group {group.name}: {text}")


def _may_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether two elements may share memory: False for all that slicing and transposing make."""
    reach = 0  # the last element of the dims with smaller strides
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length == 0:
            return False
        if length > 1:
            if stride <= reach:
                return True
            reach += stride * (length - 1)
    return False
