# SPDX-License-Identifier: Apache-2.0
"""The platform's Protocols: few, frozen, documented, and implemented as written."""

from __future__ import annotations

import inspect

import pytest

from hp_core.comm.backend import Channel, CommBackend, Handle
from hp_core.platform import get_platform
from hp_core.platform.protocols import PROTOCOLS, Platform

LIMIT = 48

FROZEN = {
    "Platform": ["device"],
    "TensorOps": ["copy_", "empty", "from_numpy", "resize_storage", "to_numpy", "view"],
    "DeviceOps": [
        "elapsed_s",
        "memory",
        "record",
        "rng_state",
        "seed",
        "set_deterministic",
        "set_rng_state",
        "stream",
        "synchronize",
        "use",
        "wait",
    ],
    "ModuleOps": ["add_hook", "named_parameters", "set_parameter"],
    "AutogradOps": ["backward", "function", "grad", "no_grad", "on_grad", "saved_tensors_hooks", "set_grad"],
}


def callables(protocol: type) -> list[str]:
    return sorted(name for name, member in vars(protocol).items() if inspect.isfunction(member) and name[0] != "_")


def test_the_callables_are_these() -> None:
    """A change here is a change for every framework: replace one rather than add one."""
    assert {protocol.__name__: callables(protocol) for protocol in PROTOCOLS} == FROZEN


def test_there_are_at_most_48_callables_with_those_of_comm() -> None:
    """``Store`` is not counted: it is the launcher's, not a framework's."""
    own = sum(len(callables(protocol)) for protocol in PROTOCOLS)
    comm = sum(len(callables(protocol)) for protocol in (CommBackend, Channel, Handle))
    assert own + comm <= LIMIT, f"{own} of platforms and {comm} of comm backends"


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.__name__)
def test_every_callable_is_documented_with_what_mindspore_maps_it_to(protocol: type) -> None:
    for name in callables(protocol):
        doc = inspect.getdoc(getattr(protocol, name)) or ""
        assert doc, name
        assert "MindSpore" in doc or protocol is Platform, f"{protocol.__name__}.{name} does not say it for MindSpore"


def test_torch_has_every_callable_with_the_arguments_of_the_protocol() -> None:
    platform = get_platform()
    assert isinstance(platform, Platform)
    parts = dict(
        zip(
            PROTOCOLS,
            (platform, platform.tensor, platform.device("cpu"), platform.module, platform.autograd),
            strict=True,
        )
    )
    for protocol, part in parts.items():
        for name in callables(protocol):
            asked = list(inspect.signature(getattr(protocol, name)).parameters.values())[1:]
            given = list(inspect.signature(getattr(part, name)).parameters.values())
            assert [(p.name, p.kind, p.default) for p in asked] == [(p.name, p.kind, p.default) for p in given], name
        extra = {n for n, m in vars(type(part)).items() if inspect.isfunction(m) and n[0] != "_"} - set(
            callables(protocol)
        )
        assert extra == set(), f"{type(part).__name__} offers more than the Protocol: {extra}"
