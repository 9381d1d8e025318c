# SPDX-License-Identifier: Apache-2.0
"""What a comm backend implements.

A backend is a ``comm`` provision: ``Provide("comm", name, "package.module:Backend")``. The layer above it
(`hp_core.comm.api`) has checked arguments, resolved groups and sizes, and turns whatever is raised into errors
that name the call and the ranks; the backend moves bytes. ``hp_core.testing.comm_suite`` is what it must pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from hp_core.comm.types import P2P, Tensor


class Store(Protocol):
    """A key-value store that every rank reaches; keys persist for the life of the job."""

    def set(self, key: str, value: bytes) -> None:
        """Set ``key``."""

    def set_once(self, key: str, value: bytes) -> bytes:
        """Set ``key`` unless it is set, atomically; return the value it has then."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Return the value of ``key``, waiting for it to be set; ``None`` when it is not within ``timeout_s``."""

    def check(self, key: str) -> bool:
        """Return whether ``key`` is set, at once."""

    def clone(self) -> Store:
        """Return a connection of its own, for another thread (a blocked ``get`` holds a connection)."""


@dataclass(frozen=True)
class Launch:
    """Where this process stands in the job, from the environment or the caller."""

    rank: int
    world_size: int
    device_type: str
    timeout_s: float
    master_addr: str | None = None
    master_port: int | None = None
    restart: str = "0"
    agent_store: bool = False


@dataclass(frozen=True)
class Member:
    """What every rank knows of every rank; equal on all ranks, so that choices made from it agree."""

    rank: int
    host: str
    device_type: str
    pid: int
    backends: tuple[str, ...]


class Handle(Protocol):
    """A collective under way inside a backend."""

    def wait(self, timeout_s: float) -> bool:
        """Block up to ``timeout_s``; True when it is complete, False when it is still under way.

        A collective of an accelerator may return True at once, when the current stream is ordered behind it.

        Raises:
            Exception: any, when the collective failed.
        """

    def is_done(self) -> bool:
        """Return whether the collective is complete (or has failed), at once."""

    def leave(self) -> None:
        """Go on with it while the caller does something else; called once, at once, where nobody will wait for it yet.

        Nothing that it reads or writes is let go before it is complete, even if nobody ever waits for it.
        """

    def finish(self) -> Any:
        """Do what is left after completion, once, and return the result of the collective."""


class Channel(Protocol):
    """A backend's end of one group, on one rank. Ranks are indices within the group, in the group's order.

    Every method starts its collective and returns at once, but ``all_gather_bytes``, which blocks. ``timeout_s`` is how
    long the collective may take; afterwards ``Handle.wait`` raises. Tensors may have any strides; ``out`` is
    contiguous.
    """

    def all_reduce(self, tensor: Tensor, op: str, timeout_s: float) -> Handle:
        """Reduce in place; the result is ``tensor``."""

    def all_gather(self, tensor: Tensor, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float) -> Handle:
        """Concatenate along dim 0; ``sizes`` is None when all ranks have the same shape."""

    def reduce_scatter(
        self, tensor: Tensor, op: str, sizes: Sequence[int] | None, out: Tensor | None, timeout_s: float
    ) -> Handle:
        """Reduce, and keep this rank's piece of dim 0; ``sizes`` is None when all pieces are equal."""

    def all_to_all(
        self,
        tensor: Tensor,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
        out: Tensor | None,
        timeout_s: float,
    ) -> Handle:
        """Send piece ``i`` of dim 0 to rank ``i``; concatenate what comes, in rank order."""

    def broadcast(self, tensor: Tensor, src: int, timeout_s: float) -> Handle:
        """Overwrite ``tensor`` in place with that of ``src``; the result is ``tensor``."""

    def batch_p2p(self, ops: Sequence[P2P], timeout_s: float) -> Handle:
        """Start all sends and receives, in any order without deadlock; the result is None."""

    def barrier(self, timeout_s: float) -> Handle:
        """Complete when every rank has called it; the result is None."""

    def all_gather_bytes(self, data: bytes, timeout_s: float) -> list[bytes]:
        """Return every rank's ``data``, in rank order; blocks."""

    def abort(self) -> None:
        """Make what is blocked in this channel fail soon, as far as the backend can; called from another thread."""

    def close(self) -> None:
        """Release everything; the channel is not used afterwards."""


@runtime_checkable
class CommBackend(Protocol):
    """A way to move tensors between ranks. One object a process, made without arguments."""

    #: The name it was registered under.
    name: str
    #: True where one process stands for all ranks and nothing is exchanged with others (``fake``).
    simulated: bool

    def bootstrap(self, launch: Launch) -> Store:
        """Meet the other ranks and return the store; called once, only on the backend that brings the world up.

        Raises:
            CommError: the port is taken, the host is not there, or ranks did not come in time.
        """

    def attach(self, store: Store, members: Sequence[Member], rank: int) -> None:
        """Learn the store and the members; called once, before any ``connect``, also where another backend boots."""

    def recording(self) -> bool:
        """Return whether the framework is recording gradients on this thread now."""

    def suits(self, members: Sequence[Member]) -> bool:
        """Return whether a group of ``members`` should use this backend by default; pure, equal on all ranks."""

    def connect(self, key: str, ranks: Sequence[int], rank: int, timeout_s: float) -> Channel:
        """Make this rank's end of a group; called by its members only, each with the same ``key`` and ``ranks``.

        Args:
            key: Names the group uniquely, for keys in the store.
            ranks: World ranks, in group order.
            rank: This rank's index in ``ranks``.
            timeout_s: How long the other members may take.
        """

    def shutdown(self) -> None:
        """Release everything, after every channel was closed."""
