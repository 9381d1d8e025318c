# SPDX-License-Identifier: Apache-2.0
"""The current mesh: what ``with mesh:`` sets and ``get_current_mesh()`` reads."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from hp_core.errors import MeshError

if TYPE_CHECKING:
    from hp_core.mesh.device_mesh import DeviceMesh

_stack: ContextVar[tuple[DeviceMesh, ...]] = ContextVar("hp_current_meshes", default=())


def get_current_mesh() -> DeviceMesh | None:
    """Return the mesh of the innermost ``with mesh:`` around this call, or ``None``.

    It belongs to the thread or the asyncio task: a new thread starts without one.
    """
    stack = _stack.get()
    return stack[-1] if stack else None


def push_mesh(mesh: DeviceMesh) -> None:
    """Make ``mesh`` the current one."""
    _stack.set((*_stack.get(), mesh))


def pop_mesh(mesh: DeviceMesh) -> None:
    """Leave ``mesh``.

    Raises:
        MeshError: If it is not the current one.
    """
    stack = _stack.get()
    if not stack or stack[-1] is not mesh:
        raise MeshError(f"leaving {mesh!r}, which is not the current mesh: `with mesh:` blocks must nest")
    _stack.set(stack[:-1])
