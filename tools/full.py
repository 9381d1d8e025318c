# SPDX-License-Identifier: Apache-2.0
"""What takes too long for CI, part by part: ``nox -s full [-- part …]``.

Each part that passes is remembered for the commit in ``.cache/full/``, so that a second run goes on where the first
one stopped. The report, to be committed, is ``docs/reports/full.md``.
"""

import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "reports" / "full.md"
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
CORE = "packages/hp-core/tests"


@dataclass(frozen=True)
class Part:
    """One command that takes long.

    Attributes:
        what: What it shows, for the report.
        command: What is run, in the repository's root.
        environment: Variables that make it long.
        times: How often it is run; all must pass.
    """

    what: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    times: int = 1


FAULTS = ("comm_failures", "comm_startup", "launch", "launch_descendants", "launch_processes", "launch_signals")
BENCHES = sorted(path for path in (ROOT / "bench").glob("*.py") if path.name != "harness.py")

PARTS = {
    "conformance": Part(
        "random programs of collectives, every element checked, on 2, 3 and 4 ranks",
        [*PYTEST, f"{CORE}/test_comm_suite.py"],
        {"HP_TEST_PROGRAMS": "20"},
    ),
    "faults": Part(
        "ranks that fail, are killed, stopped and interrupted, again and again",
        [
            *PYTEST,
            *(f"{CORE}/test_{name}.py" for name in FAULTS),
        ],
        {},
        3,
    ),
    "native-stress": Part(
        "100,000 mixed calls through shared memory, back to back, every element checked, on 2, 4 and 8 ranks each",
        [*PYTEST, "packages/hp-native/tests/test_shm_stress.py"],
        {"HP_TEST_CALLS": "100000"},
    ),
    "native-deaths": Part(
        "ranks in shared memory that are killed, stopped, interrupted and fail at random moments, 200 times",
        [*PYTEST, "packages/hp-native/tests/test_shm_deaths.py"],
        {"HP_TEST_DEATHS": "200"},
    ),
    "native-build": Part(
        "hp-native from its source distribution, by pip, in an environment of its own",
        [*PYTEST, "-m", "full", "packages/hp-native/tests/test_build.py"],
    ),
    "repeatability": Part(
        "two fine-tunings of SmolLM2-135M on 2 ranks end with the same bits", [sys.executable, "tools/repeatability.py"]
    ),
    **{
        f"bench-{script.stem}": Part(
            f"the figures of bench/{script.name}, often repeated", [sys.executable, f"bench/{script.name}", "--full"]
        )
        for script in BENCHES
    },
    "fresh": Part("the README's two commands in an empty clone", [sys.executable, "noxfile.py", "-s", "fresh"]),
}


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def run(part: Part) -> tuple[bool, float, str]:
    """Return whether the part passed, how long it took, and its last line."""
    started = time.monotonic()
    last = ""
    for _ in range(part.times):
        result = subprocess.run(
            part.command,
            cwd=ROOT,
            env={**os.environ, **part.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        last = lines[-1].strip("= ") if lines else ""
        if result.returncode:
            print(result.stdout)
            return False, time.monotonic() - started, f"exit {result.returncode}: {last}"
    return True, time.monotonic() - started, last


def write_report(at: str, done: dict[str, dict[str, object]]) -> None:
    lines = [
        "# The long run",
        "",
        f"`nox -s full` at commit `{at}`, {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, "
        f"Python {platform.python_version()}, {os.cpu_count()} cores.",
        "",
        "| part | shows | times | result | minutes | last line |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in PARTS.items():
        entry = done.get(name)
        result, minutes, last = ("not run", "", "")
        if entry:
            result, minutes, last = (
                "passed" if entry["ok"] else "FAILED",
                f"{float(str(entry['seconds'])) / 60:.1f}",
                str(entry["last"]).replace("|", "/"),
            )
        lines.append(f"| {name} | {part.what} | {part.times} | {result} | {minutes} | {last} |")
    lines += ["", "Commands:", ""]
    for name, part in PARTS.items():
        variables = " ".join(f"{key}={value}" for key, value in part.environment.items())
        command = shlex.join(["python", *part.command[1:]]).replace(str(ROOT) + "/", "")
        lines.append(f"- {name}: `{variables + ' ' if variables else ''}{command}`")
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text("\n".join(lines) + "\n")


def main(wanted: list[str]) -> int:
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        sys.exit(f"error: no part {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    at = commit()
    state = ROOT / ".cache" / "full" / f"{at}.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(state.read_text()) if state.exists() else {}
    for name in wanted or PARTS:
        if done.get(name, {}).get("ok"):
            print(f"{name}: passed before at {at}")
            continue
        print(f"{name}: {PARTS[name].what} …", flush=True)
        ok, seconds, last = run(PARTS[name])
        done[name] = {"ok": ok, "seconds": round(seconds, 1), "last": last}
        state.write_text(json.dumps(done, indent=1))
        write_report(at, done)
        print(f"{name}: {'passed' if ok else 'FAILED'} in {seconds / 60:.1f} min: {last}", flush=True)
    print(f"report: {REPORT.relative_to(ROOT)}")
    return 0 if all(done.get(name, {}).get("ok") for name in wanted or PARTS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
