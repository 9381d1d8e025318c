# SPDX-License-Identifier: Apache-2.0
"""What ``hp doctor`` finds out, as data."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hp_core import catalog, plugins, registry
from hp_core.cli.probe import probe
from hp_core.errors import HPError, PlatformError, PluginError
from hp_core.platform.host_cores import num_cores
from hp_core.plugins.exception_text import exception_text
from hp_core.plugins.requirements import install_command, unmet_requirements

#: pip's name of each framework, and the extra of hp-core that asks for it.
FRAMEWORKS = {"torch": "torch", "torch-npu": "npu", "mindspore": "mindspore"}
_GIB = 2**30


@dataclass(frozen=True)
class Missing:
    """Something that is not there.

    Attributes:
        what: What it is.
        why: What does not work without it.
        command: The command that installs it, or the step that mends it.
        required: False for what only some features need.
    """

    what: str
    why: str
    command: str
    required: bool


@dataclass
class Diagnosis:
    """The findings: sections of (label, value) lines, and what is missing."""

    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when nothing that is needed is missing."""
        return not any(item.required for item in self.missing)

    def add(self, section: str, label: str, value: str) -> None:
        """Add a line to a section."""
        self.sections.setdefault(section, []).append((label, value))

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON: ``sections``, ``missing`` and ``ok``."""
        return {
            "sections": {name: dict(lines) for name, lines in self.sections.items()},
            "missing": [vars(item) for item in self.missing],
            "ok": self.ok,
        }


def diagnose() -> Diagnosis:
    """Look at this machine and this environment; takes as long as importing the frameworks does."""
    found = Diagnosis()
    _look_at_python(found)
    _look_at_machine(found)
    _look_at_packages(found)
    _look_at_frameworks(found)
    _look_at_compiler(found)
    _look_at_plugins(found)
    return found


def _look_at_python(found: Diagnosis) -> None:
    found.add("Python", "version", platform.python_version())
    found.add("Python", "executable", sys.executable)


def _look_at_machine(found: Diagnosis) -> None:
    import psutil

    memory = psutil.virtual_memory()
    found.add("Machine", "system", f"{platform.system()} {platform.release()} {platform.machine()}")
    found.add("Machine", "cores", f"{num_cores()} usable of {os.cpu_count()}")
    found.add("Machine", "memory", f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f} GiB")
    shm = Path("/dev/shm")  # noqa: S108  # the mount itself, not a file in it
    if shm.is_dir():
        usage = shutil.disk_usage(shm)
        found.add("Machine", "shared memory", f"{usage.free / _GIB:.2f} GiB free of {usage.total / _GIB:.2f} GiB")


def _look_at_packages(found: Diagnosis) -> None:
    for distribution in catalog.PACKAGES:
        version = _version(distribution)
        if version is not None:
            found.add("Packages", distribution, version)
    if _version("hp-trainer") is None:
        found.missing.append(Missing("hp-trainer", "hp train", "pip install hp-trainer", required=False))
    if _version("hp-native") is None and platform.system() == "Linux":
        why = "fast communication between the CPU ranks of a host"
        found.missing.append(Missing("hp-native", why, "pip install hp-native", required=False))


def _look_at_frameworks(found: Diagnosis) -> None:
    found.add("Devices", "cpu", f"{os.cpu_count()} cores")
    notes: dict[str, str] = {}
    usable = False
    for name, extra in FRAMEWORKS.items():
        version = _version(name)
        found.add("Frameworks", name, version or "not installed")
        if version is None:
            continue
        unmet = unmet_requirements(importlib.metadata.distribution("hp-core"), extra)
        if unmet:
            found.missing.append(Missing(str(unmet[0]), f"hp-core with {name}", install_command(unmet), required=True))
        if name == "torch-npu":
            continue  # looked at together with torch
        usable = _add_probe(found, name, notes) or usable
    for device, note in sorted(notes.items()):
        found.add("Devices", device, f"none: {note}")
    if not usable and not any(item.why == "everything that computes" for item in found.missing):
        found.missing.append(
            Missing("a framework", "everything that computes", "pip install 'hp-core[torch]'", required=True)
        )
    _compare_with_hardware(found, notes)
    if usable:
        _look_at_choice(found)


def _look_at_choice(found: Diagnosis) -> None:
    from hp_core.platform.select import choose

    try:
        found.add("Frameworks", "in use", choose())
    except HPError as exc:
        found.add("Frameworks", "in use", "none")
        found.missing.append(Missing("a choice of framework", str(exc), "export HP_PLATFORM=torch", required=True))


def _add_probe(found: Diagnosis, name: str, notes: dict[str, str]) -> bool:
    """Add what one framework says; return whether it works."""
    result = probe(name)
    if "error" in result:
        found.add("Frameworks", f"{name} does not work", result["error"])
        command = f"pip install --force-reinstall {name}"
        found.missing.append(Missing(f"a working {name}", "everything that computes", command, required=True))
        return False
    for index, device in enumerate(result["devices"]):
        size = f", {device['memory_bytes'] / _GIB:.0f} GiB" if device["memory_bytes"] else ""
        found.add("Devices", f"{device['type']}:{index}", f"{device['name']}{size}")
    there = {device["type"] for device in result["devices"]}
    notes.update({device: note for device, note in result["notes"].items() if device not in there})
    found.add("Communication", f"{name} libraries", ", ".join(result["backends"]) or "none")
    return True


def _compare_with_hardware(found: Diagnosis, notes: dict[str, str]) -> None:
    """Hardware that is here but that no installed framework can use is worth a hint."""
    if "cuda" in notes and Path("/proc/driver/nvidia/version").exists():
        command = "pip install --force-reinstall torch (a build with CUDA)"
        found.missing.append(Missing("CUDA in torch", "the NVIDIA device of this machine", command, required=False))
    if "npu" in notes and any(Path("/dev").glob("davinci[0-9]*")):
        command = "pip install 'hp-core[npu]'"
        found.missing.append(Missing("torch-npu", "the Ascend device of this machine", command, required=False))


def _look_at_compiler(found: Diagnosis) -> None:
    compiler = os.environ.get("CXX") or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    program = shutil.which(compiler.split()[0]) if compiler else None
    if program is None:
        found.add("Compiler", "C++", f"{compiler} (from CXX) is not there" if compiler else "none")
        command = "apt-get install g++ (or your system's way)"
        found.missing.append(Missing("a C++ compiler", "torch.compile, source builds", command, required=False))
        return
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=30)
    lines = done.stdout.splitlines()
    found.add("Compiler", "C++", f"{program}: {lines[0] if lines else 'says no version'}")


def _look_at_plugins(found: Diagnosis) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", plugins.PluginWarning)  # each is a finding here
        infos = plugins.plugin_infos()
    offered = {offer.provide.name for offer in plugins.active_offers(strict=False) if offer.provide.kind == "comm"}
    found.add("Communication", "backends", ", ".join(sorted(offered)) or "none")
    _look_at_backends(found)
    for info in infos:
        found.add("Plugins", info.name, f"{info.distribution} {info.version}: {info.state}")
        if not info.well:
            fix = info.why.rpartition(": ")[2] if info.state == "incompatible" else ""
            command = fix or f"pip install --force-reinstall {info.distribution} (or HP_PLUGINS_DISABLE={info.name})"
            found.missing.append(Missing(f"plugin {info.name}", info.why, command, required=True))
    for problem in [*plugins.plugin_complaints(), *map(str, registry.conflicts())]:
        found.missing.append(Missing("a clear choice of plugins", problem, "hp plugins list", required=True))
    if any(not info.well for info in infos) and plugins.settings().strict:
        return  # hooks would raise
    try:
        for lines in plugins.hooks().hp_report_lines():
            for label, value in lines or ():
                found.add("Reported by plugins", str(label), str(value))
    except (Exception, SystemExit) as exc:  # a hook that raised, or lines that are no pairs
        why = str(exc) if isinstance(exc, HPError) else exception_text(exc)
        found.missing.append(Missing("a working hp_report_lines", why, "hp plugins list", required=True))


def _look_at_backends(found: Diagnosis) -> None:
    """Load each backend that would be taken before the one that brings the world up: what fails is not used."""
    kept: dict[tuple[str, str, str], list[str]] = {}
    for offer in plugins.active_offers(strict=False):
        provide = offer.provide
        if provide.kind != "comm" or provide.priority <= 0:
            continue
        try:
            made: Any = registry.resolve("comm", provide.name, provide.platform)
            made()
        except PlatformError:
            continue  # a finding of its own, above
        except HPError as exc:
            command = (isinstance(exc, PluginError) and exc.fix) or "hp plugins list"
            kept.setdefault((offer.distribution, str(exc), command), []).append(repr(provide.name))
    for (distribution, why, command), names in kept.items():
        what = f"comm backend{'s' if len(names) > 1 else ''} {' and '.join(names)} of {distribution}"
        found.missing.append(Missing(what, why, command, required=False))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
