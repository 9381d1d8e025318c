# SPDX-License-Identifier: Apache-2.0
"""``hp doctor``: what is here, what is missing, and the command that installs it."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hp_core
from hp_core.cli import diagnosis, main, probe

Install = Callable[..., Path]
Doctor = Callable[..., tuple[int, str]]

TORCH = {
    "version": "2.9.0",
    "devices": [{"type": "cuda", "name": "Some GPU", "memory_bytes": 80 * 2**30}],
    "backends": ["gloo", "nccl"],
    "notes": {"npu": "torch_npu is not installed"},
}


@pytest.fixture
def versions(install: Install, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """What is installed, to be changed by a test."""
    install("unused", "")
    found: dict[str, str | None] = dict.fromkeys(("hp-core", "hp-trainer", "hp-native"), "0.1.0") | {"torch": "2.9.0"}
    monkeypatch.setattr(diagnosis, "_version", found.get)
    monkeypatch.setattr(diagnosis, "unmet_requirements", lambda metadata, extra: [])
    monkeypatch.setattr(diagnosis, "probe", lambda name: TORCH)
    monkeypatch.setenv("HP_PLATFORM", "torch")
    monkeypatch.setattr("hp_core.platform.select._is_installed", lambda name: True)
    monkeypatch.setenv("HP_PLUGINS", "hp-core")
    return found


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Run ``hp doctor`` in this process."""

    def run(*argv: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as raised:
            main(["doctor", *argv])
        return int(raised.value.code or 0), capsys.readouterr().out

    return run


def missing(found: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {item["what"]: (item["command"], item["required"]) for item in found["missing"]}


def test_all_is_well(versions: dict[str, str | None], doctor: Doctor) -> None:
    versions["hp-core"] = hp_core.__version__
    status, out = doctor("--json")
    found = json.loads(out)
    sections = found["sections"]
    assert (status, found["ok"]) == (0, True)
    assert sections["Python"]["executable"] == sys.executable
    assert sections["Packages"] == {"hp-core": hp_core.__version__, "hp-trainer": "0.1.0", "hp-native": "0.1.0"}
    assert sections["Frameworks"] == {
        "torch": "2.9.0",
        "torch-npu": "not installed",
        "mindspore": "not installed",
        "in use": "torch",
    }
    assert sections["Devices"]["cuda:0"] == "Some GPU, 80 GiB"
    assert sections["Devices"]["npu"] == "none: torch_npu is not installed"
    assert sections["Communication"]["torch libraries"] == "gloo, nccl"
    assert {"c10d", "fake"} <= set(sections["Communication"]["backends"].split(", "))
    assert "GiB free of" in sections["Machine"]["memory"]
    assert sections["Plugins"]["core"] == f"hp-core {hp_core.__version__}: active"


def test_no_framework_is_needed_and_says_the_command(versions: dict[str, str | None], doctor: Doctor) -> None:
    versions["torch"] = None
    status, out = doctor()
    assert status == 1
    assert "missing  a framework, for: everything that computes\n  pip install 'hp-core[torch]'\n" in out


def test_a_framework_that_is_too_old(
    versions: dict[str, str | None], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hp_core.plugins.requirements import Unmet

    monkeypatch.setattr(diagnosis, "unmet_requirements", lambda metadata, extra: [Unmet("torch>=2.6", "2.1")])
    status, out = doctor("--json")
    assert status == 1
    assert missing(json.loads(out))["torch>=2.6 is required, but 2.1 is installed"] == (
        "pip install 'torch>=2.6'",
        True,
    )


def test_a_framework_that_cannot_be_imported(
    versions: dict[str, str | None], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "probe", lambda name: {"error": "OSError: libtorch.so: not found"})
    status, out = doctor("--json")
    found = json.loads(out)
    assert status == 1
    assert found["sections"]["Frameworks"]["torch does not work"] == "OSError: libtorch.so: not found"
    assert missing(found) == {"a working torch": ("pip install --force-reinstall torch", True)}


def test_a_choice_of_framework_that_cannot_be_is_a_finding(
    versions: dict[str, str | None], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HP_PLATFORM", "trch")
    status, out = doctor()
    assert status == 1
    assert "missing  a choice of framework, for: HP_PLATFORM=trch" in out
    assert "did you mean 'torch'" in out


def test_optional_things_do_not_fail(
    versions: dict[str, str | None], doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions["hp-trainer"] = versions["hp-native"] = None
    monkeypatch.setenv("CXX", "no-such-compiler")
    status, out = doctor()
    assert status == 0
    assert "optional  hp-trainer, for: hp train\n  pip install hp-trainer\n" in out
    assert ("pip install hp-native" in out) == (sys.platform == "linux")
    assert "no-such-compiler (from CXX) is not there" in out
    assert "optional  a C++ compiler" in out


def test_plugins_in_trouble_are_findings(
    versions: dict[str, str | None], doctor: Doctor, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("needy", "", requires=["hp-core>=9"])
    install("bad", "raise ValueError('boom')")
    monkeypatch.setenv("HP_PLUGINS", "needy,bad")
    status, out = doctor("--json")
    found = missing(json.loads(out))
    assert status == 1
    assert found["plugin needy"] == ("pip install 'hp-core>=9'", True)
    assert found["plugin bad"] == ("pip install --force-reinstall bad (or HP_PLUGINS_DISABLE=bad)", True)


def test_a_preferred_comm_backend_that_cannot_be_used_is_an_optional_finding_with_its_fix(
    versions: dict[str, str | None], doctor: Doctor, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(
        "fast",
        """
        from hp_core.errors import PluginError

        class Backend:
            def __init__(self):
                error = PluginError("no library here")
                error.fix = "pip install a-library"
                raise error

        class Other:
            def __init__(self): raise PluginError("no other either")

        @hookimpl
        def hp_provide():
            return [
                Provide("comm", "fast", "fast:Backend", priority=10),
                Provide("comm", "slow", "fast:Other", priority=1),
                Provide("comm", "unused", "fast:missing"),
            ]
        """,
    )
    monkeypatch.setenv("HP_PLUGINS", "fast")
    monkeypatch.setattr("hp_core.registry.check", lambda kind, target: None)
    status, out = doctor("--json")
    found = missing(json.loads(out))
    assert status == 0
    assert found["comm backend 'fast' of fast"] == ("pip install a-library", False)
    assert found["comm backend 'slow' of fast"] == ("hp plugins list", False)
    assert not any("unused" in what for what in found)


def test_plugins_can_add_lines(
    versions: dict[str, str | None], doctor: Doctor, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("store", "@hookimpl\ndef hp_report_lines(): return [('my-store', 'reachable')]")
    monkeypatch.setenv("HP_PLUGINS", "store")
    status, out = doctor("--json")
    assert status == 0
    assert json.loads(out)["sections"]["Reported by plugins"] == {"my-store": "reachable"}


def test_a_plugin_that_fails_to_report_is_a_finding(
    versions: dict[str, str | None], doctor: Doctor, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("store", "@hookimpl\ndef hp_report_lines(): raise OSError('unreachable')")
    monkeypatch.setenv("HP_PLUGINS", "store")
    status, out = doctor()
    assert status == 1
    assert "'store:store' failed in hook hp_report_lines: OSError: unreachable" in out


def test_probe_of_a_framework_that_raises_returns_the_last_line(install: Install, site: Path) -> None:
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        assert probe.probe("torch") == {"error": "OSError: libcudart.so.12: cannot open shared object file"}


def test_probe_of_a_framework_that_hangs_or_crashes_ends(site: Path) -> None:
    (site / "torch").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site))
        (site / "torch" / "__init__.py").write_text("import time; time.sleep(60)")
        assert probe.probe("torch", timeout_s=1.0) == {"error": "importing torch did not end within 1 s"}
        (site / "torch" / "__init__.py").write_text("import os; os.abort()")
        assert probe.probe("torch") == {"error": "importing torch ended with exit code -6"}


def test_probe_of_the_torch_that_is_installed() -> None:
    found = probe.probe("torch")
    assert found["version"] == importlib.metadata.version("torch")
    assert "gloo" in found["backends"]
    # Either there is a CUDA device or there is a reason why not.
    assert any(device["type"] == "cuda" for device in found["devices"]) != ("cuda" in found["notes"])
