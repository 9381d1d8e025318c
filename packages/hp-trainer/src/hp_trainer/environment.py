# SPDX-License-Identifier: Apache-2.0
"""What a run's report says about the machines and the software it ran on."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
from typing import Any

import hp_core.comm as comm
from hp_core.errors import HPError
from hp_core.plugins import hooks, plugin_infos
from hp_trainer.run import first_line

_PACKAGES = ("hp-core", "hp-trainer", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the numbers."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a distribution"
    return found


def plugins() -> list[dict[str, str]]:
    """Return the installed plugins and their states."""
    return [
        {"name": info.name, "distribution": info.distribution, "version": info.version, "state": info.state}
        for info in plugin_infos()
    ]


def hosts() -> list[str]:
    """Return the names of the hosts, each once, in rank order. Every rank calls it; gathers a name a rank."""
    return list(dict.fromkeys(comm.all_gather_object(socket.gethostname())))


def describe_environment() -> dict[str, Any]:
    """Return the part of `run.json` about machines and software. Every rank calls it; gathers the hosts' names."""
    return {"hosts": hosts(), "versions": versions(), "plugins": plugins()}


def plugin_lines() -> dict[str, str]:
    """Return what plugins have to say about the environment (the hook ``hp_report_lines``). Rank 0, at a run's end.

    A plugin that fails at it gets a line that says so: the run is done, and its report is not lost for that.
    """
    try:
        return {label: value for lines in hooks().hp_report_lines() for label, value in lines}
    except HPError as error:
        return {"hp_report_lines": f"failed: {first_line(error)}"}
