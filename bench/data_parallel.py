# SPDX-License-Identifier: Apache-2.0
"""The data-parallel step of SmolLM2-135M on 2 ranks, against torch's DistributedDataParallel.

    python bench/data_parallel.py [--json] [--full]

Both sides run forward and backward of 512 tokens a rank and end with the same averaged gradients, which is checked. A
side's model is made once; sides alternate, with a barrier around each step. The peer is DDP over gloo with
``gradient_as_bucket_view=True``, the better of its settings; ``--full`` shows its default as well. Ours communicates
over gloo, too, and then, with other processes, through shared memory. `compute` is the same step without communication.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Row, alternate, compare, medians, report

NUM_RANKS = 2
NUM_TOKENS = 512
#: Our step over DDP's, and over the step without communication, at most; by our backend.
GOALS = {"gloo": (1.0, None), "shm": (0.95, 1.1)}


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument(
        "--full", action="store_true", help="three times the rounds, and DDP with its default settings too"
    )
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backend", choices=list(GOALS), help="measure this one alone")
    options = parser.parse_args()
    rounds = options.rounds or (12 if options.full else 4)
    if "RANK" in os.environ:
        rank(rounds, options.full, options.backend)
        return 0

    from hp_core.launch.engine import launch
    from hp_core.launch.spec import LaunchSpec
    from hp_trainer.config import TrainConfig
    from hp_trainer.models import model_folder

    folder = model_folder(TrainConfig(), leader=True)
    threads = max(len(os.sched_getaffinity(0)) // NUM_RANKS, 1)
    rows = []
    for backend in [options.backend] if options.backend else GOALS:
        arguments = ["--rounds", str(rounds), "--backend", backend, *(["--full"] if options.full else [])]
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "rows.json"
            env = {"HP_BENCH_MODEL": str(folder), "HP_BENCH_RESULT": str(result), "OMP_NUM_THREADS": str(threads)}
            status = launch(LaunchSpec(__file__, arguments, num_ranks=NUM_RANKS, env=env))
            if status:
                return status
            rows += [Row(**row) for row in json.loads(result.read_text())]
    return 0 if report(rows, options.json) else 1


def rank(rounds: int, full: bool, backend: str) -> None:
    """Measure on this rank with ours over ``backend``; rank 0 writes the rows."""
    from dataclasses import asdict

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForCausalLM

    import hp_core.comm as comm
    from hp_trainer.data import Batch
    from hp_trainer.data_parallel import DataParallel
    from hp_trainer.loss import summed_loss
    from hp_trainer.quiet import quiet_transformers

    comm.init_backend("cpu", backend=backend)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(comm.rank())
    ids = torch.randint(0, 49152, (1, NUM_TOKENS + 1), generator=generator)
    batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), NUM_TOKENS)

    def load() -> Any:
        with quiet_transformers():
            return AutoModelForCausalLM.from_pretrained(os.environ["HP_BENCH_MODEL"], dtype=torch.float32).train()

    def plain(module: Any, num_targets: int) -> None:
        module.zero_grad(set_to_none=True)
        (summed_loss(module, batch, "fp32") / num_targets).backward()

    ours = DataParallel(load(), op="sum")
    view = DistributedDataParallel(load(), gradient_as_bucket_view=True)
    alone = load()

    def our_step() -> None:
        # The trainer's way: divided by the tokens of all ranks, so the sum over ranks is the mean over tokens.
        plain(ours.module, NUM_TOKENS * NUM_RANKS)
        ours.reduce_gradients()

    sides: dict[str, Callable[[], object]] = {
        "ours": our_step,
        "ddp_view": lambda: plain(view, NUM_TOKENS),
    }
    over_ddp, over_compute = GOALS[backend]
    seldom: dict[str, Callable[[], object]] = {}
    (sides if over_compute else seldom)["compute"] = lambda: plain(alone, NUM_TOKENS)
    if full:
        default = DistributedDataParallel(load())
        seldom["ddp"] = lambda: plain(default, NUM_TOKENS)
    times = alternate(sides, seldom=seldom, rounds=rounds, barrier=comm.barrier)
    check_equal(ours.module, view.module)
    if comm.rank() == 0:
        middle = medians(times)
        step = f"DP step over {backend}"
        rows = [
            compare(f"{step} / DDP (bucket views), s", middle["ours"], middle["ddp_view"], goal=over_ddp),
            compare(f"{step} / compute only, s", middle["ours"], middle["compute"], goal=over_compute),
            compare("DDP (bucket views) / compute only, s", middle["ddp_view"], middle["compute"]),
        ]
        if full:
            rows.append(compare(f"{step} / DDP (default), s", middle["ours"], middle["ddp"]))
        Path(os.environ["HP_BENCH_RESULT"]).write_text(json.dumps([asdict(row) for row in rows]))
    comm.barrier()
    comm.shutdown()


def check_equal(ours: Any, peer: Any) -> None:
    """Raise if the two sides did not compute the same gradients."""
    import torch

    for (name, one), other in zip(ours.named_parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(
            one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


if __name__ == "__main__":
    sys.exit(main())
