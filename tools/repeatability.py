# SPDX-License-Identifier: Apache-2.0
"""Two fine-tunings of SmolLM2-135M on 2 ranks end with the same bits: ``python tools/repeatability.py [steps]``."""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def train(folder: Path, name: str, steps: int) -> tuple[list[float], str]:
    """Return the losses and a hash of the weights of one run."""
    options = {
        "run.name": name, "run.output_dir": str(folder), "run.deterministic": "true",
        "train.steps": str(steps), "train.warmup_steps": "1", "eval.batches": "2",
    }  # fmt: skip
    arguments = [word for key, value in options.items() for word in (f"--{key}", value)]
    subprocess.run([sys.executable, "-m", "hp_trainer", "-n", "2", *arguments], check=True)
    run = folder / name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    digest = hashlib.sha256()
    for file in sorted((run / "model").glob("*.safetensors")):
        digest.update(file.read_bytes())
    return [line["loss"] for line in lines if "loss" in line], digest.hexdigest()


def main(steps: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        first = train(Path(folder), "first", steps)
        second = train(Path(folder), "second", steps)
    same = first == second and len(first[0]) == steps
    print(f"{steps} steps, weights {first[1][:16]} and {second[1][:16]}: {'the same bits' if same else 'THEY DIFFER'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
