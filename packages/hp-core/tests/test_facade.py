# SPDX-License-Identifier: Apache-2.0
"""The facade: names that are there, names whose package is missing, names that nobody knows."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hp_core import catalog, plugins
from hp_core.errors import PluginError

Install = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::hp_core.errors.PluginWarning")

ALIASES = {
    "hyper_parallel.core.dtensor": "hp_dtensor",
    "hyper_parallel.core.dtensor.placement_types": "hp_dtensor",
    "hyper_parallel.core.shard": "hp_dtensor",
    "hyper_parallel.core.shard.sharding_plan": "hp_dtensor",
    "hyper_parallel.core.tensor_parallel": "hp_dtensor",
    "hyper_parallel.core.pipeline_parallel": "hp_pipeline",
    "hyper_parallel.core.optimizer": "hp_optim",
    "hyper_parallel.core.activation_checkpoint": "hp_offload",
    "hyper_parallel.core.fully_shard": "hp_fsdp",
    "hyper_parallel.core.distributed_checkpoint": "hp_dcp",
    "hyper_parallel.platform": "hp_core.platform",
    "hyper_parallel.collectives.cc": "hp_core.comm",
}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_names_of_hp_core_are_the_objects_themselves() -> None:
    import hp_core.mesh
    from hyper_parallel import DeviceMesh, init_device_mesh

    assert DeviceMesh is hp_core.mesh.DeviceMesh
    assert init_device_mesh is hp_core.mesh.init_device_mesh


def test_a_name_is_looked_up_once() -> None:
    import hyper_parallel

    found = hyper_parallel.get_current_mesh
    assert vars(hyper_parallel)["get_current_mesh"] is found


def test_an_unknown_name_is_an_attribute_error_with_near_matches() -> None:
    import hyper_parallel

    with pytest.raises(AttributeError, match=r"no attribute 'init_device_mseh'; did you mean 'init_device_mesh'"):
        hyper_parallel.init_device_mseh  # noqa: B018
    assert not hasattr(hyper_parallel, "qwertyuiop")
    assert not hasattr(hyper_parallel, "_private")
    assert not hasattr(hyper_parallel, "__wrapped__")


def test_from_import_of_an_unknown_name_is_an_import_error_with_near_matches() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'init_device_mseh'.*did you mean 'init_device_mesh'"):
        from hyper_parallel import init_device_mseh  # noqa: F401
    with pytest.raises(ImportError, match=r"cannot import name 'all_redcue'.*did you mean 'all_reduce'"):
        from hyper_parallel.collectives.cc import all_redcue  # noqa: F401


@pytest.mark.parametrize(
    "name",
    ["fully_shard", "DTensor", "shard_module", "ColwiseParallel", "PipelineStage", "checkpoint_wrapper", "Muon"],
)
def test_a_name_whose_package_is_not_written_yet_says_so(name: str) -> None:
    import hyper_parallel

    owner = catalog.owner(name)
    assert owner is not None
    if importlib.util.find_spec(owner.replace("-", "_")) is not None:
        assert getattr(hyper_parallel, name) is not None
        return
    message = f"^{name} lives in {owner}, which is not released yet$"
    with pytest.raises(ImportError, match=message):
        getattr(hyper_parallel, name)
    with pytest.raises(ImportError, match=message):
        exec(f"from hyper_parallel import {name}", {})


def test_a_name_of_an_installed_package_that_does_not_offer_it(install: Install) -> None:
    install("hp-context", "", version="0.1.0")
    with pytest.raises(
        ImportError, match=r"hp-context 0.1.0, which is installed, does not offer it; no release has it"
    ):
        exec("from hyper_parallel import ContextParallel", {})


def test_a_name_of_a_broken_package_raises_from_the_original(install: Install) -> None:
    install("hp-context", "raise OSError('libfoo.so not found')")
    with pytest.raises(PluginError, match=r"ContextParallel comes from plugin .*broken.*libfoo.so not found") as raised:
        exec("from hyper_parallel import ContextParallel", {})
    assert isinstance(raised.value.__cause__, OSError)


def test_third_parties_can_export_names(install: Install) -> None:
    source = "@hookimpl\ndef hp_provide(): return [Provide('export', 'third_party_name', 'json:dumps')]"
    install("third-party", source)
    import hyper_parallel

    assert "third_party_name" in dir(hyper_parallel)
    assert hyper_parallel.third_party_name is json.dumps
    del hyper_parallel.third_party_name


def test_an_export_for_one_platform_is_chosen_by_the_platform_in_use(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"Provide('export', 'platform_name', 'json:{f}', platform='{p}')" for f, p in
             (("dumps", "torch"), ("loads", "mindspore"))]  # fmt: skip
    install("two-platforms", f"@hookimpl\ndef hp_provide(): return [{', '.join(lines)}]")
    import hyper_parallel
    from hp_core import lazy

    monkeypatch.setattr(lazy, "_platform_name", lambda: "mindspore")
    assert hyper_parallel.platform_name is json.loads
    del hyper_parallel.platform_name


def test_every_export_of_ours_is_in_the_catalog() -> None:
    for info in plugins.plugin_infos():
        if info.distribution in catalog.PACKAGES:
            exports = {offer.name for offer in info.offers if offer.kind == "export"}
            assert exports <= set(catalog.PACKAGES[info.distribution]), f"add them to hp_core.catalog: {exports}"


def test_the_catalog_knows_which_packages_exist() -> None:
    packages = Path(__file__).resolve().parents[2]
    written = {path.parent.name for path in packages.glob("*/pyproject.toml") if (path.parent / "src").exists()}
    assert written == catalog.RELEASED
    assert written <= set(catalog.PACKAGES)


def test_only_a_package_that_exists_is_named_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from hp_core import lazy

    monkeypatch.setattr(plugins, "plugin_infos", list)
    assert (
        str(lazy._why_not_there("LLMTrainer", "hp-trainer")) == "LLMTrainer lives in hp-trainer: pip install hp-trainer"
    )
    assert str(lazy._why_not_there("DryRun", "hp-auto")) == "DryRun lives in hp-auto, which is not released yet"


def test_dir_lists_what_is_installed() -> None:
    import hyper_parallel

    assert {"init_device_mesh", "DeviceMesh", "get_platform", "core", "platform", "__version__"} <= set(
        dir(hyper_parallel)
    )
    assert "TYPE_CHECKING" not in dir(hyper_parallel)


@pytest.mark.parametrize(("path", "target"), ALIASES.items())
def test_every_deep_path_imports_and_is_the_package_or_names_it(path: str, target: str) -> None:
    module = importlib.import_module(path)
    if importlib.util.find_spec(target.partition(".")[0]) is not None:
        real = importlib.import_module(target)
        public = [name for name in dir(real) if not name.startswith("_")]
        assert public
        assert all(getattr(module, name) is getattr(real, name) for name in public)
        assert set(public) <= set(dir(module))
        return
    distribution = target.replace("_", "-")
    with pytest.raises(ImportError, match=f"^Thing lives in {distribution}, which is not released yet$"):
        exec(f"from {path} import Thing", {})
    with pytest.raises(ImportError, match=f"^{target} lives in {distribution}"):
        exec(f"from {path} import *", {})


def test_submodules_are_reached_by_attribute() -> None:
    code = "import hyper_parallel as h; print(h.collectives.__name__, h.core.__name__, h.platform.__name__)"
    assert run(code).split() == ["hyper_parallel.collectives", "hyper_parallel.core", "hyper_parallel.platform"]


def test_alias_lets_an_error_inside_the_package_through(install: Install, site: Path) -> None:
    from hp_core.lazy import alias

    (site / "needs_more.py").write_text("import module_that_is_not_there")
    install("unrelated", "")
    get, _ = alias("json", "needs_more")
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        get("anything")


def test_star_import_from_an_alias_brings_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from hyper_parallel.collectives.cc import *", namespace)
    assert "all_reduce" in namespace
    assert "alias" not in namespace


def test_import_of_the_facade_is_cheap_and_brings_no_framework() -> None:
    code = (
        "import sys, time; before = set(sys.modules); start = time.perf_counter(); import hyper_parallel;"
        "cost_s = time.perf_counter() - start; new = sorted(set(sys.modules) - before);"
        "import json; print(json.dumps([cost_s, new]))"
    )
    runs = [json.loads(run(code)) for _ in range(5)]
    modules = set(runs[0][1])
    heavy = {"torch", "mindspore", "pluggy", "typing", "importlib.metadata", "typer", "rich", "numpy"}
    assert modules & heavy == set()
    assert min(cost_s for cost_s, _ in runs) < 0.05


def test_type_checkers_see_the_facade(tmp_path: Path) -> None:
    from mypy import api

    user = tmp_path / "user.py"
    user.write_text(
        "from hyper_parallel import DeviceMesh, fully_shard, init_device_mesh\n"
        "from hyper_parallel.collectives.cc import all_reduce\n"
        "mesh: DeviceMesh = init_device_mesh('cpu', (1,), init_backend=False)\n"
        "wrong: int = init_device_mesh('cpu', (1,))\n"
    )
    out, _, status = api.run(
        [
            "--strict",
            "--no-error-summary",
            "--python-executable",
            sys.executable,
            "--cache-dir",
            str(tmp_path),
            str(user),
        ]
    )
    assert status == 1, out
    assert [line for line in out.splitlines() if "error:" in line] == [
        f'{user}:4: error: Incompatible types in assignment (expression has type "DeviceMesh", variable has type "int")'
        "  [assignment]"
    ], out
