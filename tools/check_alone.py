# SPDX-License-Identifier: Apache-2.0
"""Check one installed distribution: every module imports, and every plugin is well.

Run by ``nox -s alone`` in an environment that holds the distribution and what it declares, nothing else:
``python tools/check_alone.py hp-core``.
"""

import importlib
import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

# Modules that need a framework, by the one that they need: hp-core installs without any.
FRAMEWORKS = ("torch", "mindspore")


def modules_of(distribution: importlib.metadata.Distribution) -> list[str]:
    """Return the dotted names of the distribution's modules."""
    names = []
    for file in distribution.files or []:
        path = Path(str(file))
        if path.suffix == ".py" and not path.parts[0].startswith(".."):
            parts = path.with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(name for name in names if not name.endswith("__main__"))


def main(name: str) -> int:
    distribution = importlib.metadata.distribution(name)
    modules = modules_of(distribution)
    missing = {framework for framework in FRAMEWORKS if importlib.util.find_spec(framework) is None}
    left_out = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            if error.name not in missing:
                raise
            left_out.append(module)
    bare = [framework for framework in FRAMEWORKS if framework not in missing]
    print(
        f"{name}: {len(modules) - len(left_out)} of {len(modules)} modules import (frameworks here: {bare or 'none'})"
    )
    if left_out:
        print(f"  these need a framework: {', '.join(left_out)}")
    if name == "hp-native":
        from hp_native import library

        library.load()
        print(f"  {library.path().name}: {library.state()}")
    for command in (["plugins", "list"], ["--version"]):
        subprocess.run([Path(sys.executable).parent / "hp", *command], check=True)
    if "torch" in missing:
        result = subprocess.run(
            [Path(sys.executable).parent / "hp", "run", "-n", "2", __file__],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode == 0 or "pip install 'hp-core[torch]'" not in result.stderr:
            print(f"hp run without torch must say how to install it; it exited {result.returncode}:\n{result.stderr}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
