# SPDX-License-Identifier: Apache-2.0
"""Meshes: named axes over ranks. Importing this imports no framework."""

from __future__ import annotations

from hp_core.mesh.cost import Choice, Span, algorithms, axis_cost_s, cheapest, collective_cost_s, spans
from hp_core.mesh.current import get_current_mesh
from hp_core.mesh.device_mesh import DeviceMesh
from hp_core.mesh.grid import Axis, Grid
from hp_core.mesh.init import init_device_mesh
from hp_core.mesh.topology import Level, Topology

__all__ = [
    "Axis",
    "Choice",
    "DeviceMesh",
    "Grid",
    "Level",
    "Span",
    "Topology",
    "algorithms",
    "axis_cost_s",
    "cheapest",
    "collective_cost_s",
    "get_current_mesh",
    "init_device_mesh",
    "spans",
]
