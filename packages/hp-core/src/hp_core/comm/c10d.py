# SPDX-License-Identifier: Apache-2.0
"""The ``c10d`` backend: torch.distributed's gloo on CPUs, NCCL on CUDA, HCCL on Ascend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from hp_core.comm.backend import Launch, Member, Store
from hp_core.comm.c10d_channel import C10dChannel
from hp_core.comm.select import LIBRARIES
from hp_core.comm.store_address import cannot_listen, no_answer, port_is_taken, store_address
from hp_core.errors import CommError

dist: Any = torch.distributed  # its typing leaves out half of what it exports

_LIBRARY = {device_type: library for library, device_type in LIBRARIES.items()}

# A store outlives shutdown(): rank 0 hosts it, and a rank that comes up again must not meet the old one's end.
_tcp_stores: dict[tuple[Any, ...], Any] = {}


class C10dStore:
    """A torch store behind a prefix."""

    def __init__(self, store: Any, prefix: str) -> None:
        self.torch_store = store
        self._prefix = prefix
        self.prefixed = dist.PrefixStore(prefix, store)

    def set(self, key: str, value: bytes) -> None:
        """Set ``key``."""
        self.prefixed.set(key, value)

    def set_once(self, key: str, value: bytes) -> bytes:
        """Set ``key`` unless it is set, atomically; return the value it has then."""
        now: bytes = self.prefixed.compare_set(key, "", value.decode())
        return now

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """Return the value of ``key``, or None when it is not set within ``timeout_s``."""
        try:
            self.prefixed.wait([key], timedelta(seconds=max(timeout_s, 0.001)))
        except (RuntimeError, ValueError):
            if not self.prefixed.check([key]):
                return None
        value: bytes = self.prefixed.get(key)
        return value

    def check(self, key: str) -> bool:
        """Return whether ``key`` is set."""
        return bool(self.prefixed.check([key]))

    def clone(self) -> C10dStore:
        """Return a connection of its own to the same store, or this one where the store has no connections."""
        store = self.torch_store
        if isinstance(store, dist.TCPStore):
            twin = dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False, timeout=store.timeout)
            return C10dStore(twin, self._prefix)
        return C10dStore(store.clone(), self._prefix) if hasattr(store, "clone") else self


class C10dBackend:
    """Groups over torch.distributed's libraries, spoken to directly (not through its dispatcher)."""

    name = "c10d"
    simulated = False

    def __init__(self) -> None:
        self._store: C10dStore | None = None
        self._device_type = "cpu"
        self._world_size = 0
        self._owns_world = False
        self._generation = 0

    def bootstrap(self, launch: Launch) -> Store:
        """Open the store at MASTER_ADDR:MASTER_PORT (rank 0 hosts it unless the launcher does), or adopt torch's.

        Raises:
            CommError: the address is missing, the port is taken, or the host of the store does not answer in time.
        """
        self._device_type = launch.device_type
        if dist.is_initialized():
            if (dist.get_rank(), dist.get_world_size()) != (launch.rank, launch.world_size):
                raise CommError(
                    f"torch.distributed is initialised as rank {dist.get_rank()} of {dist.get_world_size()}, but "
                    f"the environment says rank {launch.rank} of {launch.world_size}; make them agree"
                )
            return self._use(dist.distributed_c10d._get_default_store(), launch)
        host, port = store_address(launch)
        where = (host, port, launch.rank, launch.world_size, launch.agent_store)
        if where not in _tcp_stores:
            _tcp_stores[where] = _open_tcp_store(launch, host, port)
        return self._use(_tcp_stores[where], launch)

    def _use(self, store: Any, launch: Launch) -> C10dStore:
        global _generation
        _generation += 1  # every rank comes up equally often, so this keeps the keys of one world apart from the last
        self._generation = _generation
        self._store = C10dStore(store, f"hp/{launch.restart}/{_generation}")
        return self._store

    def attach(self, store: Store, members: Sequence[Member], rank: int) -> None:
        """Keep the store."""
        self._device_type = members[rank].device_type
        self._world_size = len(members)
        if isinstance(store, C10dStore):
            self._store = store

    def recording(self) -> bool:
        """Return whether autograd is recording."""
        return torch.is_grad_enabled()

    def suits(self, members: Sequence[Member]) -> bool:
        """Return True: it serves any group."""
        return True

    def connect(self, key: str, ranks: Sequence[int], rank: int, timeout_s: float) -> C10dChannel:
        """Make the process group; the world's is also torch.distributed's default one."""
        assert self._store is not None
        store = dist.PrefixStore(key, self._store.prefixed)
        limit = timedelta(seconds=timeout_s)
        types = ["cpu"] if self._device_type == "cpu" else ["cpu", self._device_type]
        if len(ranks) == self._world_size and list(ranks) == list(range(len(ranks))):
            if not dist.is_initialized():
                names = ",".join(f"{kind}:{_LIBRARY[kind]}" for kind in types)
                dist.init_process_group(names, store=store, rank=rank, world_size=len(ranks), timeout=limit)
                self._owns_world = True
            world: Any = dist.group.WORLD
            return C10dChannel({kind: world._get_backend(torch.device(kind)) for kind in types}, rank, len(ranks))
        backends = {kind: _make(kind, dist.PrefixStore(kind, store), rank, len(ranks), limit) for kind in types}
        return C10dChannel(backends, rank, len(ranks))

    def shutdown(self) -> None:
        """Destroy torch.distributed's default group if this backend made it."""
        if self._owns_world and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_world = False
        self._store = None


_generation = 0


def _make(device_type: str, store: Any, rank: int, size: int, limit: timedelta) -> Any:
    # Direct construction keeps the group's rank order (new_group would sort it).
    if device_type == "cpu":
        return dist.ProcessGroupGloo(store, rank, size, limit)
    if device_type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        return dist.ProcessGroupNCCL(store, rank, size, options)
    creator = dist.Backend._plugins.get(_LIBRARY[device_type].upper())
    if creator is None:
        raise CommError(f"torch.distributed has no {_LIBRARY[device_type]} here; pip install 'hp-core[npu]'")
    return creator.creator_fn(store, rank, size, limit)


def _open_tcp_store(launch: Launch, host: str, port: int) -> Any:
    hosts = launch.rank == 0 and not launch.agent_store
    try:
        return dist.TCPStore(
            host,
            port,
            launch.world_size,
            is_master=hosts,
            timeout=timedelta(seconds=launch.timeout_s),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except (RuntimeError, ValueError) as exc:
        text = str(exc)
        first = text.splitlines()[0] if text else type(exc).__name__
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            raise port_is_taken(launch) from exc
        raise (cannot_listen(launch, first) if hosts else no_answer(launch)) from exc
