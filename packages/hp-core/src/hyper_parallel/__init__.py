# SPDX-License-Identifier: Apache-2.0
"""HyperParallel under one name: ``from hyper_parallel import init_device_mesh, fully_shard, …``.

Every public name is looked up at its first use among the installed packages (the ``export`` provisions of the
plugin registry). A name whose package is missing says which one to install. Importing this imports no framework.
"""

from __future__ import annotations

from hp_core import __version__ as __version__

# Not typing's: importing it would be a third of this import's cost.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hp_core.mesh import DeviceMesh as DeviceMesh
    from hp_core.mesh import get_current_mesh as get_current_mesh
    from hp_core.mesh import init_device_mesh as init_device_mesh
    from hp_core.platform import get_platform as get_platform

_SUBMODULES = ("collectives", "core", "platform")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    from hp_core.lazy import load_export

    return load_export(__name__, name)


def __dir__() -> list[str]:
    from hp_core.lazy import list_exports

    return sorted({*list_exports(__name__), *_SUBMODULES} - {"TYPE_CHECKING", "annotations"})
