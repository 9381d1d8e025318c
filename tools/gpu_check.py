# SPDX-License-Identifier: Apache-2.0
"""The checks that need a CUDA device: ``nox -s gpu``, under 5 minutes on one device.

Runs the platform suite on the device, a data-parallel step of a small model against the same step without
HyperParallel (losses, every gradient, time, memory), and a short training run. Where there is no CUDA device it says
that nothing was run, and exits with 0: that line is the result then.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192, "max_position_embeddings": 512,
}  # fmt: skip
TOKENS = 2048
STEPS = 20


def check_platform() -> bool:
    from hp_core.testing import PlatformSuite

    results = PlatformSuite.run_all("cuda")
    for result in results:
        print(f"  {'ok' if result.ok else 'FAILED':6s} {result.time_s:6.2f} s  {result.name}")
        if not result.ok:
            print(result.error)
    return bool(results) and all(result.ok for result in results)


def build() -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**MODEL)).cuda()


def measure(step: Any) -> tuple[list[float], float, int]:
    """Return the losses, the median seconds of a step, and the peak bytes."""
    import torch

    torch.cuda.reset_peak_memory_stats()
    losses, times = [], []
    for _ in range(STEPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        losses.append(float(step()))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return losses, statistics.median(times[3:]), torch.cuda.max_memory_allocated()


def check_data_parallel() -> bool:
    import torch

    import hp_core.comm as comm
    from hp_trainer.data_parallel import DataParallel

    ids = torch.randint(0, MODEL["vocab_size"], (TOKENS // 512, 512), generator=torch.Generator().manual_seed(1)).cuda()

    def stepper(model: Any, finish: Any) -> Any:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step() -> Any:
            optimizer.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            finish()
            optimizer.step()
            return loss.detach()

        return step

    plain = build()
    plain_losses, plain_s, plain_bytes = measure(stepper(plain, lambda: None))
    comm.init_backend("cuda")
    model = build()
    parallel = DataParallel(model)
    losses, ours_s, ours_bytes = measure(stepper(model, parallel.reduce_gradients))
    comm.shutdown()
    same = losses == plain_losses
    for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        if not torch.equal(one.grad, other.grad):
            same = False
            print(f"  gradient of {name} differs by {(one.grad - other.grad).abs().max().item():.3g}")
    print(f"  losses {plain_losses[0]:.4f} → {plain_losses[-1]:.4f} plain, {losses[0]:.4f} → {losses[-1]:.4f} ours")
    print(f"  step {plain_s * 1e3:.1f} ms plain, {ours_s * 1e3:.1f} ms ours ({ours_s / plain_s:.3f}×)")
    print(f"  peak {plain_bytes / 2**20:.0f} MiB plain, {ours_bytes / 2**20:.0f} MiB ours (with both models alive)")
    return same and losses[-1] < losses[0]


def check_training() -> bool:
    from hp_trainer import LLMTrainer

    with tempfile.TemporaryDirectory() as folder:
        config = {
            "run": {"output_dir": folder, "device": "cuda"},
            "model": {"config": {**MODEL, "vocab_size": 512}},
            "data": {"max_bytes": 400_000},
            "train": {"steps": 20, "lr": 1e-3, "precision": "bf16"},
        }
        info = LLMTrainer(config).train()
        evaluation = info["evaluation"]
        print(f"  held-out loss {evaluation['before']['loss']:.3f} → {evaluation['after']['loss']:.3f}")
        report = Path(folder) / "default" / "report.html"
        return bool(evaluation["after"]["loss"] < evaluation["before"]["loss"]) and report.is_file()


def main() -> int:
    import torch

    if not torch.cuda.is_available():
        print("NOT RUN: this machine has no CUDA device that torch can use; no check was made.")
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    failed = []
    for name, check in (
        ("platform suite", check_platform),
        ("data-parallel step", check_data_parallel),
        ("training run", check_training),
    ):
        started = time.monotonic()
        print(f"{name}:")
        ok = check()
        print(f"{name}: {'ok' if ok else 'FAILED'} in {time.monotonic() - started:.1f} s")
        if not ok:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
