# SPDX-License-Identifier: Apache-2.0
"""Every hook that HyperParallel calls; ``docs/plugins.md`` shows them with examples.

A plugin implements a hook with ``@hp_core.plugins.hookimpl`` and may leave out arguments that it does not
need. Hooks run on the rank and the thread that made the call, third-party plugins before first-party ones.
An implementation that raises an `HPError` raises it to the caller as it is; any other exception reaches the
caller as a `PluginError` that names the plugin and the hook, and keeps the original as its cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

from hp_core.provide import Provide

if TYPE_CHECKING:
    import typer

hookspec = pluggy.HookspecMarker("hyper_parallel")


@hookspec
def hp_provide() -> Iterable[Provide]:  # type: ignore[empty-body]
    """Say what the plugin offers.

    Called once in each process, when plugins are loaded. Return `Provide` lines; import nothing for it.
    """


@hookspec
def hp_add_hookspecs(pm: pluggy.PluginManager) -> None:
    """Add hook specifications of the plugin's own, so that other plugins can implement them.

    Called once in each process, when plugins are loaded, before any hook implementation is checked.

    Args:
        pm: The plugin manager; call ``pm.add_hookspecs(module)``.
    """


@hookspec
def hp_add_commands(app: typer.Typer) -> None:
    """Add commands to ``hp``.

    Called once in the ``hp`` process, when a command that is not built in is asked for, or the help. Keep it
    light: import what a command needs inside the command.

    Args:
        app: The typer application; decorate functions with ``@app.command("name")``.
    """


@hookspec
def hp_report_lines() -> Iterable[tuple[str, str]]:  # type: ignore[empty-body]
    """Add lines to ``hp doctor`` and to the environment part of a run's report.

    Called in the ``hp doctor`` process, and on rank 0 at the end of a run.

    Returns:
        ``(label, value)`` pairs, e.g. ``("my-store", "reachable at tcp://10.0.0.1:7000")``.
    """


@hookspec
def hp_mesh_created(mesh: Any) -> None:
    """See a device mesh right after it was built.

    Called on every rank that built it, members of the mesh or not. It may call collectives only if all
    these ranks do.

    Args:
        mesh: The `hp_core.mesh.DeviceMesh`.
    """


@hookspec
def hp_module_transformed(module: Any, transform: str, mesh: Any) -> None:
    """See a module right after a transform (``"fully_shard"``, ``"parallelize_module"``, …) changed it.

    Called on every rank of the mesh, in the order in which the user applied the transforms.

    Args:
        module: The module, as the transform left it.
        transform: Name of the transform.
        mesh: The mesh over which it was applied.
    """


@hookspec
def hp_before_collective(kind: str, group: Any, nbytes: int) -> None:
    """See a collective before it is issued.

    Called on each member of the group, on the thread that issues it, for synchronous and asynchronous calls.
    Whether anybody listens is looked up once, when the communication backend is initialised: it is free when
    nobody does. The implementation must not call collectives.

    Args:
        kind: Name of the call, e.g. ``"all_reduce"``.
        group: The `hp_core.comm.Group`.
        nbytes: Bytes of this rank's input.
    """


@hookspec
def hp_after_collective(kind: str, group: Any, nbytes: int) -> None:
    """See a collective after it is complete (for an asynchronous one: after its ``wait()``).

    Called on each member of the group, on the thread that waits; not called for a collective that raised. The
    implementation must not call collectives.

    Args:
        kind: Name of the call, e.g. ``"all_reduce"``.
        group: The `hp_core.comm.Group`.
        nbytes: Bytes of this rank's input.
    """


@hookspec
def hp_checkpoint_saving(path: str, step: int) -> None:
    """Be told that a checkpoint is about to be written.

    Called on every rank that takes part in the save, before the first byte is written. An exception stops
    the save.

    Args:
        path: The checkpoint's folder or address.
        step: The training step whose state is saved.
    """


@hookspec
def hp_checkpoint_loaded(path: str, step: int) -> None:
    """Be told that a checkpoint was read and put in place.

    Called on every rank that took part in the load, after its state is complete.

    Args:
        path: The checkpoint's folder or address.
        step: The training step whose state was loaded.
    """


@hookspec
def hp_fault(exc: BaseException, rank: int, step: int) -> None:
    """Be told that training stops on this rank because of an exception.

    Called on the rank that failed, before the job is taken down; other ranks may be gone, so it must not call
    collectives and must return within a second. What it raises is logged and does not hide ``exc``.

    Args:
        exc: The exception.
        rank: The global rank on which it was raised.
        step: The training step, or -1 before the first.
    """
