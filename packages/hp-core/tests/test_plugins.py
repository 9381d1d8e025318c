# SPDX-License-Identifier: Apache-2.0
"""Plugins: what loads, in which order, and what becomes of those that cannot."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from hp_core import plugins
from hp_core.errors import HPError, PluginError, PluginWarning
from hp_core.plugins import discovery
from hp_core.plugins.info import PluginInfo
from hp_core.plugins.settings_from_environment import read_settings

Install = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::hp_core.errors.PluginWarning")

GOOD = """
    @hookimpl
    def hp_provide():
        return [Provide("export", "good_name", "json:dumps")]
"""


def info_of(distribution: str) -> PluginInfo:
    return next(info for info in plugins.plugin_infos() if info.distribution == distribution)


def test_hp_core_is_active_and_comes_first() -> None:
    first = plugins.plugin_infos()[0]
    assert (first.distribution, first.name, first.state) == ("hp-core", "core", "active")
    assert {("platform", "torch"), ("comm", "c10d")} <= {(offer.kind, offer.name) for offer in first.offers}


def test_a_plugin_is_found_and_its_offers_listed(install: Install) -> None:
    install("my-plugin", GOOD, version="2.1")
    info = info_of("my-plugin")
    assert (info.name, info.version, info.value, info.state) == ("my_plugin", "2.1", "my_plugin", "active")
    assert [str(offer) for offer in info.offers] == ["export:good_name"]
    assert info.hooks == ("hp_provide",)


def test_nothing_is_imported_before_the_first_use(install: Install, site: Path) -> None:
    install("my-plugin", GOOD)
    code = (
        "import sys, hp_core.plugins, hp_core.registry, hyper_parallel; assert 'my_plugin' not in sys.modules;"
        "hp_core.registry.names('export'); assert 'my_plugin' in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(site)}
    )


def test_a_plugin_that_raises_at_import_costs_only_itself(install: Install) -> None:
    install("a-broken", "raise ValueError('no such luck')")
    install("b-good", GOOD)
    assert info_of("b-good").state == "active"
    broken = info_of("a-broken")
    assert broken.state == "broken"
    assert broken.why == "importing a_broken raised ValueError: no such luck"
    assert isinstance(broken.error, ValueError)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import module_that_is_not_there", "No module named 'module_that_is_not_there'"),
        ("def f(:", "SyntaxError"),
        ("@hookimpl\ndef hp_mesh_craeted(mesh): ...", "unknown hook 'hp_mesh_craeted'; did you mean 'hp_mesh_created'"),
        ("@hookimpl\ndef hp_mesh_created(maesh): ...", "maesh"),
        ("@hookimpl\ndef hp_provide(): raise RuntimeError('boom')", "RuntimeError: boom"),
        ("@hookimpl\ndef hp_provide(): return ['fsdp']", "expected hp_core.registry.Provide"),
        ("@hookimpl\ndef hp_provide(): return [Provide('exprot', 'a', 'b:c')]", "did you mean 'export'"),
        ("@hookimpl\ndef hp_provide(): return [Provide('export', 'a', 'b.c')]", "must look like"),
        ("@hookimpl\ndef hp_provide(): return [Provide('export', 'a', 'b:c'), Provide('export', 'a', 'd:e')]", "twice"),
    ],
)
def test_a_plugin_that_is_not_a_proper_one_is_broken_and_says_why(install: Install, source: str, why: str) -> None:
    install("odd", source)
    info = info_of("odd")
    assert info.state == "broken"
    assert why in info.why
    assert "\n" not in info.why
    assert plugins.manager().get_plugin("odd:odd") is None


def test_a_plugin_that_exits_ends_only_itself(install: Install) -> None:
    install("a-broken", "raise SystemExit(7)")
    assert info_of("a-broken").why == "importing a_broken raised SystemExit: 7"


def test_an_entry_point_that_leads_nowhere_is_broken(install: Install) -> None:
    install("ghost", None)
    assert "No module named 'ghost'" in info_of("ghost").why


def test_trouble_is_warned_of_once_in_one_line(install: Install) -> None:
    install("a-broken", "raise ValueError('first\\nsecond')")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plugins.hooks()
        plugins.hooks()
        plugins.plugin_infos()
    mine = [str(warning.message) for warning in caught if "a-broken" in str(warning.message)]
    assert len(mine) == 1
    assert "ValueError: first second" in mine[0]
    assert all(warning.category is PluginWarning for warning in caught)


def test_the_warning_points_at_the_users_line(install: Install, site: Path) -> None:
    install("a-broken", "raise ValueError('no')")
    script = site / "script.py"
    script.write_text("import hyper_parallel\n\nhyper_parallel.DeviceMesh\nfrom hyper_parallel import get_platform\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"{script}:3: PluginWarning: not used: plugin 'a_broken'")
    assert done.stderr.splitlines()[1:] == ["  hyper_parallel.DeviceMesh"]


def test_unmet_requirement_makes_a_plugin_incompatible_before_it_is_imported(install: Install) -> None:
    install("needy", "raise AssertionError('imported')", requires=["hp-core>=9,<10"])
    info = info_of("needy")
    assert info.state == "incompatible"
    assert "hp-core<10,>=9 is required, but" in info.why
    assert info.why.endswith("pip install 'hp-core<10,>=9'")
    assert "needy" not in sys.modules


def test_missing_requirement_makes_a_plugin_incompatible(install: Install) -> None:
    install("needy", GOOD, requires=["not-on-this-machine", "hp-core>=0.1"])
    info = info_of("needy")
    assert (info.state, info.why) == (
        "incompatible",
        "not-on-this-machine is required, but it is not installed: pip install not-on-this-machine",
    )


def test_requirements_under_false_markers_and_of_extras_nobody_asked_for_do_not_count(install: Install) -> None:
    requires = ["absent; python_version < '3'", "absent; extra == 'gpu'", "pluggy; python_version >= '3'"]
    install("relaxed", GOOD, requires=requires)
    assert info_of("relaxed").state == "active"


def test_an_extra_of_a_requirement_counts(install: Install) -> None:
    install("base", GOOD, requires=["absent-one>=2; extra == 'fast'"])
    install("user", "", requires=["base[fast]"])
    assert info_of("base").state == "active"
    assert info_of("user").why == "absent-one>=2 is required, but it is not installed: pip install 'absent-one>=2'"


def test_a_shadowed_older_version_does_not_count(install: Install, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("twice", GOOD, version="2.0")
    older = site / "older"
    (older / "twice-1.0.dist-info").mkdir(parents=True)
    (older / "twice-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: twice\nVersion: 1.0\n")
    (older / "twice-1.0.dist-info" / "entry_points.txt").write_text("[hyper_parallel]\ntwice = nowhere\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(older)])
    plugins.reload()
    assert [(info.version, info.state) for info in plugins.plugin_infos() if info.distribution == "twice"] == [
        ("2.0", "active")
    ]


def test_two_third_parties_with_one_plugin_name_are_both_set_aside(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one", GOOD, plugin="extra")
    install("two", GOOD, plugin="extra")
    assert {info_of("one").state, info_of("two").state} == {"broken"}
    assert "also used by two" in info_of("one").why
    assert "also used by one" in info_of("two").why
    monkeypatch.setenv("HP_PLUGINS_DISABLE", "two")
    plugins.reload()
    assert (info_of("one").state, info_of("two").state) == ("active", "blocked")


def test_a_third_party_cannot_take_the_name_of_a_first_party_plugin(install: Install) -> None:
    install("impostor", GOOD, plugin="core")
    assert info_of("hp-core").state == "active"
    assert "also used by hp-core" in info_of("impostor").why


def test_order_does_not_depend_on_enumeration(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zeta", "alpha", "mid"):
        install(name, f"@hookimpl\ndef hp_report_lines(): return [('who', '{name}')]")
    real = list(discovery.importlib.metadata.distributions())
    orders, calls = set(), set()
    for seed in range(5):
        shuffled = random.Random(seed).sample(real, len(real))
        monkeypatch.setattr("importlib.metadata.distributions", lambda shuffled=shuffled: iter(shuffled))
        plugins.reload()
        orders.add(tuple(info.distribution for info in plugins.plugin_infos()))
        calls.add(tuple(line for lines in plugins.hooks().hp_report_lines() for line in lines))
    assert len(orders) == len(calls) == 1
    order = orders.pop()
    assert order[0] == "hp-core"
    assert [name for name in order if not name.startswith("hp-")] == ["alpha", "mid", "zeta"]


def test_allow_list_admits_by_plugin_or_distribution_name(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one-dist", GOOD, plugin="one")
    install("two-dist", "", plugin="two")
    install("three-dist", "", plugin="three")
    monkeypatch.setenv("HP_PLUGINS", "one, Two_Dist")
    plugins.reload()
    states = {name: info_of(name).state for name in ("hp-core", "one-dist", "two-dist", "three-dist")}
    assert states == {"hp-core": "active", "one-dist": "active", "two-dist": "active", "three-dist": "blocked"}
    assert info_of("three-dist").why == "HP_PLUGINS does not name it"
    assert "three_dist" not in sys.modules


def test_block_list_wins_over_the_allow_list(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one", GOOD)
    monkeypatch.setenv("HP_PLUGINS", "one")
    monkeypatch.setenv("HP_PLUGINS_DISABLE", "one")
    plugins.reload()
    assert (info_of("one").state, info_of("one").why) == ("blocked", "HP_PLUGINS_DISABLE names it")


@pytest.mark.parametrize("variable", ["HP_PLUGINS", "HP_PLUGINS_DISABLE"])
def test_a_list_that_names_nobody_is_complained_of(
    install: Install, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    install("example", GOOD)
    monkeypatch.setenv(variable, "exmaple")
    plugins.reload()
    with pytest.warns(PluginWarning, match=f"{variable} names 'exmaple'.*did you mean 'example'"):
        plugins.hooks()


def test_hp_core_cannot_be_disabled(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    install("example", GOOD)
    monkeypatch.setenv("HP_PLUGINS_DISABLE", "hp-core")
    plugins.reload()
    with pytest.warns(PluginWarning, match="hp-core, which always loads"):
        assert info_of("hp-core").state == "active"


@pytest.mark.parametrize(
    ("source", "options", "disable"),
    [
        ("raise ValueError('boom')", {}, ""),
        (GOOD, {"requires": ["not-on-this-machine"]}, ""),
        (GOOD, {"plugin": "core"}, ""),
        (GOOD, {}, "nobody"),
    ],
    ids=["broken", "incompatible", "duplicate", "setting"],
)
def test_strict_mode_raises_for_any_trouble(
    install: Install, monkeypatch: pytest.MonkeyPatch, source: str, options: dict[str, object], disable: str
) -> None:
    install("one", source, **options)
    monkeypatch.setenv("HP_PLUGINS_STRICT", "1")
    monkeypatch.setenv("HP_PLUGINS_DISABLE", disable)
    plugins.reload()
    for _ in range(2):
        with pytest.raises(PluginError, match="HP_PLUGINS_STRICT=1") as raised:
            plugins.hooks()
    if "boom" in source:
        assert isinstance(raised.value.__cause__, ValueError)
    assert info_of("hp-core").state == "active"  # the listing still works


def test_strict_mode_is_quiet_when_all_is_well(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("one", GOOD)
    monkeypatch.setenv("HP_PLUGINS", "one")
    monkeypatch.setenv("HP_PLUGINS_STRICT", "1")
    plugins.reload()
    plugins.hooks()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HP_PREFER": "comm=hp-core"}, "must look like kind:name=distribution"),
        ({"HP_PREFER": "comm:a=x,comm:a=y"}, "given to two distributions"),
        ({"HP_PLUGINS_STRICT": "maybe"}, "expected 1 or 0"),
    ],
)
def test_malformed_settings_are_errors(environ: dict[str, str], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read_settings(environ)


def test_settings_are_read_leniently() -> None:
    settings = read_settings({"HP_PLUGINS": "A_b, c", "HP_PREFER": "comm:c10d=My_Dist ,", "HP_PLUGINS_STRICT": "0"})
    assert settings.allow == {"a-b", "c"}
    assert settings.preferred("comm", "c10d") == "my-dist"
    assert not settings.strict
    assert read_settings({"HP_PLUGINS": ""}).allow is None


def test_plugin_errors_are_user_errors_and_import_errors() -> None:
    assert issubclass(PluginError, HPError)
    assert issubclass(PluginError, ImportError)


def test_fingerprint_depends_on_distribution_version_entry_point_state_and_preferences(
    install: Install, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = [plugins.fingerprint()]
    install("one", GOOD)
    prints.append(plugins.fingerprint())
    (site / "one-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: one\nVersion: 1.1\n")
    plugins.reload()
    prints.append(plugins.fingerprint())
    monkeypatch.setenv("HP_PLUGINS_DISABLE", "one")
    plugins.reload()
    prints.append(plugins.fingerprint())
    monkeypatch.setenv("HP_PREFER", "comm:c10d=hp-core")
    plugins.reload()
    prints.append(plugins.fingerprint())
    assert len(set(prints)) == len(prints)
    plugins.reload()
    assert plugins.fingerprint() == prints[-1]


def test_difference_names_the_ranks_and_the_plugins() -> None:
    usual = "hp-core 0.1.0 core=hp_core._plugin active\nx 1.0 x=x active"
    older = usual.replace("x 1.0", "x 0.9")
    alone = usual.splitlines()[0]
    message = plugins.describe_difference({0: usual, 1: usual, 2: older, 3: alone, 4: usual})
    assert "against ranks 0, 1, 4" in message
    assert "rank 2 lacks 'x 1.0 x=x active' and has 'x 0.9 x=x active'" in message
    assert "rank 3 lacks 'x 1.0 x=x active'" in message
    assert "\n" not in message
    assert plugins.describe_difference({0: usual, 1: usual}) == ""


def test_every_plugin_module_of_ours_is_imported_without_a_framework() -> None:
    code = textwrap.dedent(
        """
        import sys
        from hp_core import plugins
        bad = [info.describe() for info in plugins.plugin_infos() if not info.well]
        assert not bad, bad
        assert not {"torch", "mindspore"} & set(sys.modules)
        """
    )
    subprocess.run([sys.executable, "-c", code], check=True)
