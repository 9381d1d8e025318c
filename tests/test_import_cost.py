# SPDX-License-Identifier: Apache-2.0
"""What an import brings: no framework, and nothing heavy. (What it costs is measured in bench/import_cost.py.)"""

import subprocess
import sys

import pytest

FRAMEWORKS = ("torch", "mindspore")
HEAVY = ("pluggy", "rich", "typer", "importlib.metadata", "transformers", "pydantic", "plotly", "numpy")


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print('\\n'.join(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("module", ["hyper_parallel", "hp_core"])
def test_a_bare_import_brings_nothing_heavy(module: str) -> None:
    brought = modules_after(f"import {module}") - modules_after("pass")
    assert brought & {*FRAMEWORKS, *HEAVY} == set()


@pytest.mark.parametrize(
    "module",
    ["hp_core.comm", "hp_core.mesh", "hp_core.platform", "hp_core.plugins", "hp_core.registry", "hp_core.cli",
     "hp_core.launch", "hp_core.testing", "hp_core._plugin", "hp_native", "hp_native._plugin", "hp_native.library",
     "hp_trainer", "hp_trainer._plugin"],
)  # fmt: skip
def test_framework_free_modules(module: str) -> None:
    assert modules_after(f"import {module}") & set(FRAMEWORKS) == set()


def test_a_pure_mesh_and_its_costs_need_no_framework() -> None:
    statement = (
        "from hyper_parallel import init_device_mesh; "
        "init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'), init_backend=False)['tp']"
    )
    assert modules_after(statement) & set(FRAMEWORKS) == set()
