# SPDX-License-Identifier: Apache-2.0
"""Run every example as a user would: ``python tools/run_examples.py``.

A script under ``examples/`` or ``packages/*/examples/`` says in its first comment lines how it is run,
on a line that starts with ``# run:``. A script without such a line is an error, not a pass.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def command_of(script: Path) -> list[str]:
    for line in script.read_text().splitlines()[:10]:
        if line.startswith("# run:"):
            return shlex.split(line.removeprefix("# run:"))
    sys.exit(f"error: {script.relative_to(ROOT)} does not say how it is run: add a line '# run: …' at its top")


def main() -> int:
    scripts = sorted([*ROOT.glob("examples/*.py"), *ROOT.glob("packages/*/examples/*.py")])
    scripts += sorted([*ROOT.glob("examples/*.yaml"), *ROOT.glob("packages/*/examples/*.yaml")])
    if not scripts:
        sys.exit("error: no example found")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    failed = []
    for script in scripts:
        command = command_of(script)
        started = time.monotonic()
        result = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        print(
            f"{'ok' if result.returncode == 0 else 'FAILED':6s} "
            f"{time.monotonic() - started:5.1f} s  {shlex.join(command)}"
        )
        if result.returncode:
            failed.append(script)
            print(result.stdout, result.stderr, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
