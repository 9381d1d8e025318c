# SPDX-License-Identifier: Apache-2.0
"""What an import and `hp --help` cost: ``python bench/import_cost.py [--json]``.

Each side is a fresh interpreter; the two are alternated and medians are compared. Goals: `import hyper_parallel`
adds less than 50 ms to bare Python and brings no framework; `hp --help` takes less than 0.4 s.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import Row, report

FRAMEWORKS = ("torch", "mindspore", "numpy", "transformers")
IMPORT_GOAL_S = 0.050
HELP_GOAL_S = 0.4


def run_s(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started


def brought_by(statement: str) -> list[str]:
    code = f"import sys; {statement}; print(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def bounded(case: str, value: float, bound: float) -> Row:
    """Return the row of a figure that must not be above ``bound``, which stands in the peer's place."""
    return Row(case, value, bound, value / bound if bound else value, 1.0 if bound else 0.0, value <= bound)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--full", action="store_true", help="more repetitions")
    arguments = parser.parse_args()
    repetitions = 41 if arguments.full else 15

    bare = [sys.executable, "-c", "pass"]
    ours = [sys.executable, "-c", "import hyper_parallel"]
    help_ = [str(Path(sys.executable).parent / "hp"), "--help"]
    for command in (bare, ours, help_):
        run_s(command)  # the first one fills the file cache
    bare_s, ours_s, help_s = [], [], []
    for _ in range(repetitions):
        bare_s.append(run_s(bare))
        ours_s.append(run_s(ours))
        help_s.append(run_s(help_))
    added_s = statistics.median(ours_s) - statistics.median(bare_s)
    help_median_s = statistics.median(help_s)
    brought = brought_by("import hyper_parallel")
    rows = [
        bounded("import hyper_parallel, s over bare Python", added_s, IMPORT_GOAL_S),
        bounded("frameworks in sys.modules after it", len(brought), 0),
        bounded("hp --help, s", help_median_s, HELP_GOAL_S),
    ]
    if brought:
        print(f"import hyper_parallel brings {', '.join(brought)}")
    return 0 if report(rows, as_json=arguments.json) else 1


if __name__ == "__main__":
    sys.exit(main())
