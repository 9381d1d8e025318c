# SPDX-License-Identifier: Apache-2.0
"""Every Python snippet of the READMEs and of the docs runs as written.

The blocks of a page run one after another in one namespace, as a reader types them, in a process of their own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    found = [*ROOT.glob("README.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(page for page in found if BLOCK.search(page.read_text()))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    code = "\n".join(BLOCK.findall(page.read_text()))
    script = tmp_path / f"page_{page.stem}.py"  # not the name of a module
    script.write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HP_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(script)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, f"{page.relative_to(ROOT)}\n{result.stdout}\n{result.stderr}"


def test_the_packages_readmes_have_a_snippet() -> None:
    bare = [
        str(page.relative_to(ROOT))
        for page in ROOT.glob("packages/*/README.md")
        if (page.parent / "src").exists() and not BLOCK.search(page.read_text())
    ]
    assert bare == []
