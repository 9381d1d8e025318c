# SPDX-License-Identifier: Apache-2.0
"""The registry: from a name to the object, and what is said when it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hp_core import plugins
from hp_core.errors import ConflictError, PluginError
from hp_core.kinds import KIND_TABLE, check
from hp_core.provide import KINDS
from hp_core.registry import Provide, names, resolve

Install = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::hp_core.errors.PluginWarning")


def offering(*provides: str, body: str = "") -> str:
    lines = ", ".join(f"Provide({provide})" for provide in provides)
    return f"{body}\n@hookimpl\ndef hp_provide(): return [{lines}]\n"


def test_resolve_imports_the_target_when_asked_for(install: Install, site: Path) -> None:
    (site / "late_module.py").write_text("class Box:\n    def dumps(self): ...\n")
    install("one", offering("'export', 'box_dumps', 'late_module:Box.dumps'"))
    assert "box_dumps" in names("export")
    assert "late_module" not in sys.modules
    assert resolve("export", "box_dumps") is sys.modules["late_module"].Box.dumps  # type: ignore[attr-defined]


def test_names_are_sorted_by_priority_then_alphabet(install: Install) -> None:
    install("one", offering("'kernel', 'b', 'json:dumps'", "'kernel', 'c', 'json:dumps', priority=5"))
    install("two", offering("'kernel', 'a', 'json:dumps'", "'kernel', 'z', 'json:dumps', platform='mindspore'"))
    assert names("kernel") == ["c", "a", "b", "z"]
    assert names("kernel", platform="torch") == ["c", "a", "b"]


def test_exact_platform_wins_over_every_platform(install: Install) -> None:
    install("any", offering("'kernel', 'k', 'json:dumps'"))
    install("torchy", offering("'kernel', 'k', 'json:loads', platform='torch'"))
    assert resolve("kernel", "k").__name__ == "dumps"  # type: ignore[attr-defined]
    assert resolve("kernel", "k", platform="torch").__name__ == "loads"  # type: ignore[attr-defined]
    assert resolve("kernel", "k", platform="mindspore").__name__ == "dumps"  # type: ignore[attr-defined]


def test_a_name_for_other_platforms_says_which(install: Install) -> None:
    install("torchy", offering("'kernel', 'k', 'json:loads', platform='torch'"))
    with pytest.raises(PluginError, match=r"offered for platform torch only, not for platform 'mindspore'"):
        resolve("kernel", "k", platform="mindspore")
    with pytest.raises(PluginError, match=r"offered for platform torch only, not for every platform"):
        resolve("kernel", "k")


def test_conflict_names_both_distributions_and_the_way_out(install: Install) -> None:
    install("beta", offering("'schedule', 's', 'json:loads'"))
    install("alpha", offering("'schedule', 's', 'json:dumps'"))
    assert names("schedule") == ["s"]
    with pytest.raises(ConflictError, match=r"alpha and by beta: .*HP_PREFER=schedule:s=alpha"):
        resolve("schedule", "s")


def test_conflict_is_only_raised_for_the_name_in_question(install: Install) -> None:
    install("beta", offering("'kernel', 'k', 'json:loads'", "'kernel', 'mine', 'json:loads'"))
    install("alpha", offering("'kernel', 'k', 'json:dumps'"))
    assert resolve("kernel", "mine").__name__ == "loads"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("preferred", "function"), [("alpha", "dumps"), ("Be_Ta", "loads")])
def test_prefer_settles_a_conflict(
    install: Install, monkeypatch: pytest.MonkeyPatch, preferred: str, function: str
) -> None:
    install("be-ta", offering("'kernel', 'k', 'json:loads'"))
    install("alpha", offering("'kernel', 'k', 'json:dumps'"))
    monkeypatch.setenv("HP_PREFER", f"kernel:k={preferred},kernel:other=alpha")
    plugins.reload()
    assert resolve("kernel", "k").__name__ == function  # type: ignore[attr-defined]


def test_prefer_for_a_distribution_that_does_not_offer_it_is_an_error(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("alpha", offering("'kernel', 'k', 'json:dumps'"))
    monkeypatch.setenv("HP_PREFER", "kernel:k=gamma")
    plugins.reload()
    with pytest.raises(PluginError, match=r"gamma does not offer it; it is offered by alpha"):
        resolve("kernel", "k")


def test_replaces_settles_a_conflict_also_with_first_party(install: Install) -> None:
    install("alpha", offering("'comm', 'fake', 'alpha:Mine', replaces='hp_core'", body="def Mine(): ..."))
    assert resolve("comm", "fake") is sys.modules["alpha"].Mine


def test_replaces_of_another_distribution_settles_nothing(install: Install) -> None:
    install("alpha", offering("'kernel', 'k', 'json:dumps', replaces='gamma'"))
    install("beta", offering("'kernel', 'k', 'json:loads'"))
    with pytest.raises(ConflictError):
        resolve("kernel", "k")


def test_two_that_replace_each_other_conflict(install: Install) -> None:
    install("alpha", offering("'kernel', 'k', 'json:dumps', replaces='beta'"))
    install("beta", offering("'kernel', 'k', 'json:loads', replaces='alpha'"))
    with pytest.raises(ConflictError, match=r"alpha and by beta"):
        resolve("kernel", "k")


def test_preference_wins_over_replaces(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("alpha", offering("'kernel', 'k', 'json:dumps', replaces='beta'"))
    install("beta", offering("'kernel', 'k', 'json:loads'"))
    assert resolve("kernel", "k").__name__ == "dumps"  # type: ignore[attr-defined]
    monkeypatch.setenv("HP_PREFER", "kernel:k=beta")
    plugins.reload()
    assert resolve("kernel", "k").__name__ == "loads"  # type: ignore[attr-defined]


def test_unknown_name_says_what_is_near_and_what_is_there() -> None:
    with pytest.raises(PluginError, match=r"no comm is named 'c10b'; did you mean 'c10d'\? \(there: .*c10d, .*fake"):
        resolve("comm", "c10b")


def test_unknown_kind_says_what_is_near() -> None:
    with pytest.raises(PluginError, match=r"unknown kind 'platfrom'; did you mean 'platform'"):
        resolve("platfrom", "torch")
    with pytest.raises(PluginError, match=r"unknown kind 'nothing' \(kinds: export, platform"):
        names("nothing")


def test_a_name_of_a_broken_plugin_raises_from_the_original(install: Install) -> None:
    install("wreck", offering("'kernel', 'k', 'json:dumps'") + "raise ValueError('boom')\n")
    with pytest.raises(PluginError, match=r"kernel 'k' is offered by plugin 'wreck' of wreck 1.0.*boom") as raised:
        resolve("kernel", "k")
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_name_of_an_incompatible_plugin_says_the_command_that_mends_it(install: Install) -> None:
    install("needy", offering("'kernel', name='k', target='json:dumps'"), requires=["hp-core>=9"])
    with pytest.raises(PluginError, match=r"needy 1.0, which is incompatible .*pip install 'hp-core>=9'"):
        resolve("kernel", "k")


def test_a_name_of_a_blocked_plugin_says_so(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("shy", offering("'kernel', 'k', 'json:dumps'"))
    monkeypatch.setenv("HP_PLUGINS_DISABLE", "shy")
    plugins.reload()
    with pytest.raises(PluginError, match=r"which is blocked \(HP_PLUGINS_DISABLE names it\)"):
        resolve("kernel", "k")


def test_a_name_that_a_broken_plugin_might_have_offered_mentions_the_plugin(install: Install) -> None:
    install("wreck", "raise ValueError('boom')")
    with pytest.raises(PluginError, match=r"no kernel is named 'k'.*not looked into: plugin 'wreck'.*boom"):
        resolve("kernel", "k")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("not_there:x", "ModuleNotFoundError: No module named 'not_there'"),
        ("json:not_there", "AttributeError"),
        ("one_bad:x", "ZeroDivisionError"),
    ],
)
def test_a_target_that_cannot_be_loaded_says_whose_it_is(
    install: Install, site: Path, target: str, message: str
) -> None:
    (site / "one_bad.py").write_text("1 / 0")
    install("one", offering(f"'kernel', 'k', '{target}'"))
    with pytest.raises(PluginError, match=rf"kernel 'k' of plugin 'one' \(one\): cannot load {target}: {message}"):
        resolve("kernel", "k")


def test_a_target_whose_error_has_no_text_is_still_an_error_of_ours(install: Install, site: Path) -> None:
    (site / "mute.py").write_text("class Mute(Exception):\n    def __str__(self): return 1 / 0\nraise Mute\n")
    install("one", offering("'kernel', 'k', 'mute:f'"))
    with pytest.raises(PluginError, match=r"cannot load mute:f: Mute \(no message: its __str__ raised ZeroDiv"):
        resolve("kernel", "k")


def test_a_target_that_does_not_satisfy_its_protocol_is_an_error(install: Install) -> None:
    body = "class Half:\n    def read(self, name): ...\n    def list(self): ...\n"
    install("one", offering("'storage', 'half', 'one:Half'", body=body))
    with pytest.raises(
        PluginError, match=r"one:Half lacks delete\(\), write\(\), which hp_core.kinds.Storage asks for"
    ):
        resolve("storage", "half")


class _Nothing:
    pass


class _Apply:
    def apply(self, module: object, mesh: object) -> object: ...


class _OnStepEnd:
    def on_step_end(self, run: object, metrics: object) -> None: ...


@pytest.mark.parametrize(
    ("kind", "target", "problem"),
    [
        ("export", 3, ""),
        ("kernel", 3, "is 3: expected"),
        ("kernel", len, ""),
        ("comm", _Nothing, "lacks attach()"),
        ("comm", lambda: None, ""),
        ("parallel_style", _Nothing, "lacks apply()"),
        ("parallel_style", _Apply, ""),
        ("callback", _Nothing, "has none of on_train_begin"),
        ("callback", _OnStepEnd, ""),
        ("schedule", lambda stages: None, "cannot be called with (num_stages, num_micro_batches)"),
        ("schedule", lambda num_stages, num_micro_batches, depth=1: None, ""),
        ("schedule", lambda num_stages, num_micro_batches, depth: None, "missing a required argument: 'depth'"),
        ("platform", 3, "expected a class"),
        ("format", _Nothing, "lacks load(), save()"),
    ],
)
def test_protocol_of_each_kind(kind: str, target: object, problem: str) -> None:
    found = check(kind, target)
    assert problem in found
    assert bool(found) == bool(problem)


def test_every_kind_has_a_rule() -> None:
    assert tuple(KIND_TABLE) == KINDS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("exprot", "a", "b:c"), "unknown kind 'exprot'; did you mean 'export'"),
        (("export", "", "b:c"), "non-empty"),
        (("export", "a ", "b:c"), "non-empty"),
        (("export", "a", "b"), "must look like"),
        (("export", "a", "b:"), "must look like"),
        (("export", "a", "b c:d"), "must look like"),
    ],
)
def test_a_malformed_provide_is_an_error(fields: tuple[str, str, str], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        Provide(*fields)
