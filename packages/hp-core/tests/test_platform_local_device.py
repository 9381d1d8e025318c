# SPDX-License-Identifier: Apache-2.0
"""Which device of its host a rank takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hp_core.errors import PlatformError
from hp_core.platform import local_device, use_local_device


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[tuple[str, int]]:
    """The calls of ``use``, on a stand-in for a platform with as many devices as the parameter says."""
    calls: list[tuple[str, int]] = []
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    def device(kind: str) -> SimpleNamespace:
        return SimpleNamespace(num_devices=request.param, use=lambda index: calls.append((kind, index)))

    monkeypatch.setattr(local_device, "get_platform", lambda: SimpleNamespace(device=device))
    return calls


@pytest.mark.parametrize(
    ("used", "text", "index"), [(4, "2", 2), (4, None, 0), (4, "", 0), (1, "2", 0)], indirect=["used"]
)
def test_a_rank_takes_the_device_of_its_number_on_the_host(
    used: list[tuple[str, int]], text: str | None, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        monkeypatch.setenv("LOCAL_RANK", text)
    assert use_local_device("cuda") == index
    assert used == [("cuda", index)]


@pytest.mark.parametrize("used", [8], indirect=True)
def test_the_host_is_one_device_for_all_ranks(used: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert use_local_device("cpu") == 0
    assert used == []


@pytest.mark.parametrize("used", [8], indirect=True)
@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_a_local_rank_that_is_no_number_is_an_error(
    used: list[tuple[str, int]], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(PlatformError, match=rf"LOCAL_RANK='{text}' is not a whole number from 0: unset it"):
        use_local_device("npu")
    assert used == []
