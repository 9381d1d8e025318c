# SPDX-License-Identifier: Apache-2.0
"""What one framework can do on this machine; a program of its own, so that a crash in it is only a finding.

``python -m hp_core.cli.probe torch`` prints one JSON object.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any


def probe(framework: str, timeout_s: float = 120.0) -> dict[str, Any]:
    """Import ``framework`` in a new process and return what it says.

    Returns:
        ``version``, ``devices`` (a list of ``{"type", "name", "memory_bytes"}``), ``backends`` (names of
        communication libraries) and ``notes`` (device type to why there is none); or ``error``, one line.
    """
    command = [sys.executable, "-m", "hp_core.cli.probe", framework]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"importing {framework} did not end within {timeout_s:.0f} s"}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"error": lines[-1] if lines else f"importing {framework} ended with exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def probe_torch() -> dict[str, Any]:
    """Return torch's devices and communication libraries; imports torch, and torch_npu where it is installed."""
    torch = importlib.import_module("torch")
    devices, notes = [], {}
    if torch.version.cuda is None:
        notes["cuda"] = "this torch build has no CUDA"
    elif not torch.cuda.is_available():
        notes["cuda"] = f"torch is built for CUDA {torch.version.cuda}, but no usable device or driver is there"
    else:
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append({"type": "cuda", "name": properties.name, "memory_bytes": properties.total_memory})
    try:
        importlib.import_module("torch_npu")
    except ImportError as exc:
        notes["npu"] = "torch_npu is not installed" if exc.name == "torch_npu" else f"torch_npu: {exc}"
    else:
        for index in range(torch.npu.device_count()):
            properties = torch.npu.get_device_properties(index)
            devices.append({"type": "npu", "name": properties.name, "memory_bytes": properties.total_memory})
        if not torch.npu.device_count():
            notes["npu"] = "torch_npu is installed, but no device is there"
    distributed = torch.distributed
    backends = []
    if distributed.is_available():
        available = {
            "gloo": distributed.is_gloo_available(),
            "nccl": distributed.is_nccl_available(),
            "hccl": "hccl" in getattr(distributed.Backend, "backend_list", []),
        }
        backends = [name for name, there in available.items() if there]
    return {"version": torch.__version__, "devices": devices, "backends": backends, "notes": notes}


def probe_mindspore() -> dict[str, Any]:
    """Return MindSpore's version and devices; imports MindSpore."""
    mindspore = importlib.import_module("mindspore")
    devices = [
        {"type": "npu", "name": mindspore.hal.get_device_name(index, "Ascend"), "memory_bytes": None}
        for index in range(mindspore.hal.device_count("Ascend") if mindspore.hal.is_available("Ascend") else 0)
    ]
    notes = {} if devices else {"npu": "MindSpore sees no Ascend device"}
    return {"version": mindspore.__version__, "devices": devices, "backends": [], "notes": notes}


if __name__ == "__main__":
    print(json.dumps({"torch": probe_torch, "mindspore": probe_mindspore}[sys.argv[1]]()))
