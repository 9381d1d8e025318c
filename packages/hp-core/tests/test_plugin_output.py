# SPDX-License-Identifier: Apache-2.0
"""What a plugin prints or raises while it loads never spoils what a command prints for programs to read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from hp_core import plugins
from hp_core.cli import main
from hp_core.plugins.info import PluginInfo

Install = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings("ignore::hp_core.errors.PluginWarning")

CHATTY = """
    import atexit, os, sys
    print("through print")
    print("through the first stdout", file=sys.__stdout__)
    os.write(1, b"through the descriptor\\n")
    os.system("echo through a program")
    atexit.register(print, "at exit")
    atexit.register(os.write, 1, b"at exit, through the descriptor\\n")
    sys.stdout = open(os.devnull, "w")
    @hookimpl
    def hp_report_lines():
        os.write(1, b"in a hook\\n")
        return [("chatty", "yes")]
"""


def hp(site: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``hp`` as a program."""
    command = [sys.executable, "-c", "from hp_core.cli import main; main()", *argv]
    env = {**os.environ, "PYTHONPATH": str(site), **env}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def info_of(distribution: str) -> PluginInfo:
    return next(info for info in plugins.plugin_infos() if info.distribution == distribution)


def test_what_a_plugin_prints_goes_to_stderr_when_json_is_asked_for(install: Install, site: Path) -> None:
    install("chatty", CHATTY)
    done = hp(site, "plugins", "list", "--json")
    assert done.returncode == 0, done.stderr
    assert {info["name"]: info["state"] for info in json.loads(done.stdout)["plugins"]}["chatty"] == "active"
    for words in ("print", "the first stdout", "the descriptor", "a program"):
        assert f"through {words}\n" in done.stderr
    assert "at exit\n" in done.stderr
    assert "at exit, through the descriptor\n" in done.stderr


def test_doctor_keeps_it_out_of_its_json_too(
    install: Install, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hp_core.cli.diagnosis._look_at_frameworks", lambda found: None)
    install("chatty", CHATTY.replace("import atexit,", "import").replace("atexit.register", "(lambda *_: 0)"))
    stdout = sys.stdout
    with pytest.raises(SystemExit):
        main(["doctor", "--json"])
    assert sys.stdout is stdout
    os.write(1, b"\nafterwards\n")
    out, err = capfd.readouterr()
    answer, afterwards = out.rsplit("\n\n", 1)
    assert json.loads(answer)["sections"]["Reported by plugins"]["chatty"] == "yes"
    assert afterwards == "afterwards\n"
    assert "in a hook" in err


def test_json_is_printed_with_stderr_closed(install: Install, site: Path) -> None:
    install("chatty", CHATTY)
    command = f"exec 2>&-; exec {sys.executable} -c 'from hp_core.cli import main; main()' plugins list --json"
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(["sh", "-c", command], env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=120)
    assert json.loads(done.stdout)["ok"]


MUTE = """
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")
    raise Mute
"""


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (MUTE, "importing odd raised Mute (no message: its __str__ raised RuntimeError)"),
        (
            MUTE.replace("raise RuntimeError", "return 3 #"),
            "importing odd raised Mute (no message: its __str__ raised ",
        ),
        (MUTE.replace("raise RuntimeError", "raise SystemExit"), "importing odd raised Mute (no message: its __str__"),
        ("raise KeyboardInterrupt", "importing odd raised KeyboardInterrupt"),
        ("raise type('Own', (BaseException,), {})('end')", "importing odd raised Own: end"),
        ("@hookimpl\ndef hp_provide(): raise KeyboardInterrupt('mine')", "KeyboardInterrupt: mine"),
        (f"raise ValueError('deep')\nx = {'[' * 3000}{']' * 3000}", "importing odd raised "),
    ],
)
def test_whatever_a_plugin_raises_costs_only_itself(
    install: Install, capsys: pytest.CaptureFixture[str], source: str, why: str
) -> None:
    install("odd", source)
    install("well", "")
    with pytest.raises(SystemExit) as ended:
        main(["plugins", "list", "--json"])
    assert ended.value.code == 1
    found = {info["name"]: info for info in json.loads(capsys.readouterr().out)["plugins"]}
    assert (found["odd"]["state"], found["well"]["state"]) == ("broken", "active")
    assert found["odd"]["why"].startswith(why)


def test_a_hook_whose_exception_has_no_words_is_named(install: Install) -> None:
    from hp_core.errors import PluginError

    install("odd", "class Mute(Exception):\n    __str__ = None\n@hookimpl\ndef hp_fault(exc): raise Mute")
    with pytest.raises(PluginError, match=r"'odd:odd' failed in hook hp_fault: Mute \(no message"):
        plugins.hooks().hp_fault(exc=ValueError(), rank=0, step=None)


def test_report_lines_that_are_no_pairs_are_a_finding(install: Install) -> None:
    from hp_core.cli import diagnosis

    install("odd", "@hookimpl\ndef hp_report_lines(): return 3")
    found = diagnosis.Diagnosis()
    diagnosis._look_at_plugins(found)
    assert [item.why for item in found.missing] == ["TypeError: 'int' object is not iterable"]


def test_ctrl_c_while_a_plugin_loads_still_ends_everything(install: Install) -> None:
    install("slow", "import signal\nsignal.raise_signal(signal.SIGINT)")
    # Whatever started the tests may ignore it: a shell does for what it runs in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            plugins.plugin_infos()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_plugins_load_in_a_thread(install: Install) -> None:
    install("odd", "raise KeyboardInterrupt")
    states = []

    def load() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            states.append(info_of("odd").state)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert states == ["broken"]
