# SPDX-License-Identifier: Apache-2.0
"""Build and run the C++ tests of hp-native: ``python tools/check_native.py [release|address|thread …]``.

Without arguments under both sanitizers: the release build is what the Python tests run on. Each kind has its folder in
``.cache/native/``, so that a second run compiles only what changed. ``thread`` sees races between ranks, because the
tests run ranks as threads of one process.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "packages" / "hp-native"
KINDS = {"release": "", "address": "address,undefined", "thread": "thread"}
# Programs of one thread, which has nobody to race with; under ThreadSanitizer they would take minutes.
ONE_THREAD = ("test_copy", "test_reduce", "test_wire")
ENVIRONMENT = {
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
    "CTEST_OUTPUT_ON_FAILURE": "1",
}


def fixed_addresses() -> list[str]:
    """Return the command that runs another without random addresses, which GCC's ThreadSanitizer cannot have.

    On kernels that randomise more bits than it knows of, it ends with "unexpected memory mapping".
    """
    command = ["setarch", "-R"]
    if shutil.which("setarch") and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        return command
    return []


def step(kind: str, command: list[str]) -> str:
    """Run one command and return what it printed, or end with it."""
    result = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        print(result.stdout)
        sys.exit(f"error: the C++ tests ({kind}) failed at: {' '.join(command)}")
    return result.stdout


def check(kind: str) -> None:
    started = time.monotonic()
    folder = ROOT / ".cache" / "native" / kind
    options = {"HP_NATIVE_TESTS": "ON", "HP_NATIVE_WERROR": "ON", "HP_NATIVE_SANITIZE": KINDS[kind]}
    defines = [f"-D{name}={value}" for name, value in options.items()]
    step(kind, ["cmake", "-G", "Ninja", "-S", str(PACKAGE), "-B", str(folder), *defines])
    step(kind, ["cmake", "--build", str(folder)])
    command = ["ctest", "--test-dir", str(folder), "--no-tests=error", "--parallel", "2"]
    if kind == "thread":
        command = [*fixed_addresses(), *command, "--exclude-regex", f"^({'|'.join(ONE_THREAD)})$"]
    said = step(kind, command)
    summary = next(line for line in said.splitlines() if "tests passed" in line)
    print(f"C++ tests, {kind}: {summary} ({time.monotonic() - started:.0f} s with the build)", flush=True)


def main(wanted: list[str]) -> int:
    unknown = [kind for kind in wanted if kind not in KINDS]
    if unknown:
        sys.exit(f"error: no kind {', '.join(unknown)}; the kinds are {', '.join(KINDS)}")
    for kind in wanted or ("address", "thread"):
        check(kind)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
