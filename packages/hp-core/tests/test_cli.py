# SPDX-License-Identifier: Apache-2.0
"""The ``hp`` command: built-in commands, those of plugins, and what an error looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import hp_core
from hp_core import plugins
from hp_core.cli import main

Install = Callable[..., Path]


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


Hp = Callable[..., Outcome]

GREET = """
    @hookimpl
    def hp_add_commands(app):
        @app.command("greet")
        def greet(name: str):
            "Say hello."
            print("hello", name)
"""


@pytest.fixture
def hp(capsys: pytest.CaptureFixture[str]) -> Hp:
    """Run ``hp`` in this process."""

    def run(*argv: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as raised:
            main(argv)
        out, err = capsys.readouterr()
        return Outcome(int(raised.value.code or 0), out, err)

    return run


def test_version(hp: Hp) -> None:
    assert hp("--version") == (0, f"hp {hp_core.__version__}\n", "")


def test_help_lists_built_in_and_plugin_commands(hp: Hp, install: Install) -> None:
    install("greeter", GREET)
    status, out, _ = hp("--help")
    assert status == 0
    for word in ("run", "plugins", "doctor", "greet", "Say hello."):
        assert word in out


def test_help_cuts_no_summary(hp: Hp, install: Install) -> None:
    summary = "Say hello to whoever it may be, in as many words as it takes, and then say goodbye again."
    install("greeter", GREET.replace("Say hello.", summary))
    _, out, _ = hp("--help")
    assert "..." not in out.partition("Commands:")[2]
    assert summary in " ".join(out.split())


def test_no_arguments_show_the_help(hp: Hp, install: Install) -> None:
    install("greeter", GREET)
    status, out, err = hp()
    assert "greet" in out + err
    assert "Usage: hp" in out + err
    assert status in (0, 2)  # click 8.2 made it 2


def test_a_command_of_a_plugin_runs(hp: Hp, install: Install) -> None:
    install("greeter", GREET)
    assert hp("greet", "you") == (0, "hello you\n", "")


def test_a_built_in_command_does_not_load_plugins_for_its_help() -> None:
    code = (
        "import sys; from hp_core.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print('hp_core.plugins.loading' in sys.modules)"
    )
    for argv in (["--version"], ["doctor", "--help"], ["run", "--help"], ["plugins", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "False", argv


def test_help_imports_neither_rich_nor_a_framework_nor_packaging() -> None:
    code = (
        "import sys; from hp_core.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'rich', 'torch', 'mindspore', 'numpy', 'psutil', 'pydantic', 'transformers'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_names_near_ones(hp: Hp, install: Install) -> None:
    install("greeter", GREET)
    status, _, err = hp("gret")
    assert status == 2
    assert "No such command 'gret'" in err


def test_a_command_of_a_package_that_is_not_written_yet_says_so(hp: Hp) -> None:
    outcome = hp("explain", "--some", "option")
    assert outcome == (2, "", "error: hp explain comes with hp-auto, which is not released yet\n")


def test_a_command_of_an_incompatible_package_says_how_to_mend_it(hp: Hp, install: Install) -> None:
    install("hp-auto", GREET, requires=["hp-core>=9"])
    status, _, err = hp("explain")
    assert status == 2
    assert err.splitlines()[-1].startswith("error: hp explain comes from plugin 'hp_auto' of hp-auto 1.0, which is inc")
    assert "pip install 'hp-core>=9'" in err


def test_a_plugin_whose_commands_fail_does_not_take_the_others_along(hp: Hp, install: Install) -> None:
    install("a-greeter", GREET)
    failing = """
        @hookimpl
        def hp_add_commands(app):
            app.command("half")(lambda: None)
            raise ValueError("oh")
    """
    install("b-failing", failing)
    status, out, err = hp("--help")
    assert status == 0
    assert "greet" in out
    assert "half" not in out
    assert "warning: plugin 'b-failing:b_failing' failed in hook hp_add_commands: ValueError: oh" in err


def test_a_plugin_cannot_take_a_command_that_is_taken(
    hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("greeter", GREET)
    install("usurper", GREET.replace('"greet"', '"doctor"'))
    _, out, err = hp("--help")
    assert "adds the command 'doctor', which hp-core has already" in err
    assert out.count("doctor") == 1
    monkeypatch.setenv("HP_PLUGINS_STRICT", "1")
    plugins.reload()
    status, _, err = hp("greet", "you")
    assert status == 2
    assert err.startswith("error: plugin 'usurper:usurper' adds the command 'doctor'")


def test_a_users_error_is_one_line_and_exit_status_2(hp: Hp, install: Install) -> None:
    source = """
        from hp_core.errors import ConfigError
        @hookimpl
        def hp_add_commands(app):
            @app.command("fail")
            def fail():
                raise ConfigError("steps: given\\n  'many', expected a number")
    """
    install("failing", source)
    assert hp("fail") == (2, "", "error: steps: given 'many', expected a number\n")


def test_any_other_exception_keeps_its_traceback(install: Install, site: Path) -> None:
    source = "@hookimpl\ndef hp_add_commands(app):\n    @app.command('crash')\n    def crash(): return 1 / 0\n"
    install("crashing", source)
    done = subprocess.run(
        [sys.executable, "-c", "from hp_core.cli import main; main(['crash'])"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_plugins_in_trouble_are_warned_of_in_one_line(hp: Hp, install: Install) -> None:
    install("broken", "raise ValueError('boom')")
    _, _, err = hp("--help")
    lines = [line for line in err.splitlines() if "broken" in line]
    assert lines == [
        "warning: not used: plugin 'broken' of broken 1.0, which is broken (importing broken raised ValueError: boom)"
    ]


def test_malformed_plugin_settings_are_one_line(hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("greeter", GREET)
    monkeypatch.setenv("HP_PREFER", "nonsense")
    status, _, err = hp("plugins", "list")
    assert status == 2
    assert err.startswith("error: HP_PREFER=nonsense: 'nonsense' must look like kind:name=distribution")
    assert err.count("\n") == 1


OFFERS = """
    @hookimpl
    def hp_provide():
        return [Provide("kernel", "k", "json:dumps", platform="torch"), Provide("export", "[e]", "json:dumps")]
    @hookimpl
    def hp_fault(exc): ...
"""


def test_list_as_a_table_of_well_plugins(hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("good-one", OFFERS, version="3.2", plugin="good")
    monkeypatch.setenv("HP_PLUGINS", "good")
    monkeypatch.setenv("COLUMNS", "120")
    status, out, err = hp("plugins", "list")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["Plugin", "Distribution", "Version", "State", "Offers"]
    assert any(line.split()[:5] == ["core", "hp-core", hp_core.__version__, "active", "platform:"] for line in lines)
    row = next(index for index, line in enumerate(lines) if line.startswith("good"))
    assert lines[row].split() == ["good", "good-one", "3.2", "active", "kernel:", "k", "(torch)"]
    assert lines[row + 1].split() == ["export:", "[e]"]
    assert lines[row + 2].split() == ["hooks:", "hp_fault"]


def test_list_says_why_and_exits_with_1(hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("bad", "raise ValueError('boom [not markup]')")
    install("needy", OFFERS, requires=["hp-core>=9"])
    install("shy", OFFERS)
    monkeypatch.setenv("HP_PLUGINS_DISABLE", "shy")
    status, out, _ = hp("plugins", "list")
    assert status == 1
    assert "broken bad: importing bad raised ValueError: boom [not markup]" in out
    assert "incompatible needy: hp-core>=9 is required, but" in out
    assert "blocked shy: HP_PLUGINS_DISABLE names it" in out


def test_a_blocked_plugin_is_no_trouble(hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("bad", "raise ValueError('boom')")
    monkeypatch.setenv("HP_PLUGINS", "hp-core")
    assert hp("plugins", "list").status == 0


def test_list_as_json(hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("good-one", OFFERS, version="3.2", plugin="good")
    install("bad", "raise ValueError('boom')")
    monkeypatch.setenv("HP_PLUGINS", "good,bad")
    status, out, err = hp("plugins", "list", "--json")
    found = json.loads(out)
    assert (status, err, found["ok"], found["problems"]) == (1, "", False, [])
    by_name = {info["name"]: info for info in found["plugins"]}
    assert by_name["core"]["state"] == "active"
    assert by_name["bad"] == {
        "name": "bad",
        "distribution": "bad",
        "version": "1.0",
        "module": "bad",
        "state": "broken",
        "why": "importing bad raised ValueError: boom",
        "offers": [],
        "hooks": [],
    }
    assert by_name["good"]["hooks"] == ["hp_fault", "hp_provide"]
    assert by_name["good"]["offers"][0] == {
        "kind": "kernel",
        "name": "k",
        "target": "json:dumps",
        "platform": "torch",
        "priority": 0,
        "replaces": None,
    }


def test_list_shows_what_a_broken_plugin_would_offer(hp: Hp, install: Install) -> None:
    install("bad", OFFERS + "\n    raise ValueError('boom')")
    found = json.loads(hp("plugins", "list", "--json").out)
    bad = next(info for info in found["plugins"] if info["name"] == "bad")
    assert [offer["name"] for offer in bad["offers"]] == ["k", "[e]"]


def test_list_shows_conflicts_and_settings_that_name_nobody(
    hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one", OFFERS)
    install("two", OFFERS)
    monkeypatch.setenv("HP_PLUGINS", "one,two,thre")
    status, out, _ = hp("plugins", "list")
    assert status == 1
    assert "problem HP_PLUGINS names 'thre', but no such plugin or distribution is installed" in out
    assert "problem kernel 'k' is offered by one and by two" in out
    monkeypatch.setenv("HP_PLUGINS", "one,two")
    monkeypatch.setenv("HP_PREFER", "kernel:k=one,export:[e]=two")
    install("three", "")
    assert hp("plugins", "list").status == 0


def test_list_works_in_strict_mode(hp: Hp, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("bad", "raise ValueError('boom')")
    monkeypatch.setenv("HP_PLUGINS_STRICT", "1")
    status, out, _ = hp("plugins", "list")
    assert status == 1
    assert "ValueError: boom" in out
    status, _, err = hp("--help")
    assert status == 2
    assert err.startswith("error: plugin 'bad' of bad 1.0, which is broken")
