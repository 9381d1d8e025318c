# SPDX-License-Identifier: Apache-2.0
"""Meshes: named axes over ranks. Importing this imports no framework."""

from __future__ import annotations

from hp_core.mesh.current import get_current_mesh
from hp_core.mesh.device_mesh import DeviceMesh
from hp_core.mesh.grid import Axis, Grid
from hp_core.mesh.init import init_device_mesh

__all__ = ["Axis", "DeviceMesh", "Grid", "get_current_mesh", "init_device_mesh"]
