# SPDX-License-Identifier: Apache-2.0
"""The collectives of hp-native in shared memory, against gloo, on 2 and 4 ranks of this host.

    python bench/collectives.py [--json] [--full]

Both sides run in the same processes, alternately, with a barrier around each turn; what is counted is the median over
turns of the slowest rank's time for a call. The peer is torch.distributed as its users call it. Sizes are those of
the whole tensor of a rank: what goes in, or for all_gather what comes out. `ours` and `peer` are microseconds, and the
goal is that of their ratio (0.05: twenty times as fast). The memcpy bound is each rank copying the tensor at once.
A turn is as many calls as take about 20 ms: of a few calls one would see how the ranks begin, not how they go on.
Where deepspeed can be imported, its shared-memory all-reduce is a further peer.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from harness import Row, compare, medians, report

KB, MB = 1024, 1024 * 1024
#: How many times as fast as gloo at least, by number of ranks, call and bytes.
GOALS = {
    (2, "all_reduce", KB): 200,
    (2, "all_reduce", MB): 15,
    (2, "all_reduce", 64 * MB): 4.5,
    (2, "all_gather", 64 * MB): 8,
    (2, "reduce_scatter", 64 * MB): 10,
    (2, "all_to_all", 64 * MB): 2.5,
    (2, "send_recv", 64 * MB): 1.3,
    (2, "symmetric all_reduce", 64 * MB): 10,
    (4, "all_reduce", KB): 50,
    (4, "all_reduce", MB): 15,
    (4, "all_reduce", 64 * MB): 3.5,
    (4, "all_gather", 64 * MB): 6,
    (4, "reduce_scatter", 64 * MB): 8,
    (4, "all_to_all", 64 * MB): 1.8,
}
#: The same against DeepSpeed, 2 ranks.
DEEPSPEED_GOALS = {MB: 1.0, 64 * MB: 1.8}
#: Symmetric all-reduce over the memcpy bound, at most.
BOUND = 2.0
SIZES = (KB, MB, 64 * MB)
#: How long a turn is to take.
TURN_S = 0.02


def main() -> int:
    """Start the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--full", action="store_true", help="four times the turns")
    parser.add_argument("--turns", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    turns = options.turns or (28 if options.full else 7)
    if "RANK" in os.environ:
        rank(turns)
        return 0

    from hp_core.launch.engine import launch
    from hp_core.launch.spec import LaunchSpec

    rows = []
    for num_ranks in (2, 4):
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "rows.json"
            env = {"HP_BENCH_RESULT": str(result), "OMP_NUM_THREADS": "1"}
            status = launch(LaunchSpec(__file__, ["--turns", str(turns)], num_ranks=num_ranks, env=env))
            if status:
                return status
            rows += [Row(**row) for row in json.loads(result.read_text())]
    return 0 if report(rows, options.json) else 1


def rank(turns: int) -> None:
    """Measure on this rank; rank 0 writes the rows."""
    import torch
    import torch.distributed as dist

    import hp_core.comm as comm
    import hp_native

    dist.init_process_group("gloo")
    comm.init_backend("cpu", backend="shm")
    size = comm.world_size()
    deepspeed = deepspeed_all_reduce()
    rows = []
    for nbytes in SIZES:
        unit = f"{nbytes // MB} MB" if nbytes >= MB else f"{nbytes // KB} KB"
        for name, (ours, peer) in sides(nbytes, size).items():
            case = f"{size} ranks, {name} {unit}, us"
            rows.append(faster(case, ours, peer, GOALS.get((size, name, nbytes)), turns))
        if deepspeed is not None:
            mine, theirs = torch.ones(nbytes // 4), torch.ones(nbytes // 4)
            # A sum, which is all that it has: of zeros, which stay zeros.
            ours, peer = functools.partial(comm.all_reduce, mine.zero_()), functools.partial(deepspeed, theirs.zero_())
            goal = DEEPSPEED_GOALS.get(nbytes) if size == 2 else None
            rows.append(faster(f"{size} ranks, all_reduce {unit} / DeepSpeed, us", ours, peer, goal, turns))
    source, target = torch.ones(16 * MB), torch.empty(16 * MB)
    flat = hp_native.empty(16 * MB, torch.float32)
    flat.fill_(1.0)

    def symmetric() -> None:
        comm.all_reduce(flat, "max")

    middle = timed({"copy": lambda: target.copy_(source), "symmetric": symmetric}, turns)
    case = f"{size} ranks, symmetric all_reduce 64 MB / memcpy bound, us"
    rows.append(compare(case, middle["symmetric"], middle["copy"], goal=BOUND if size == 2 else None))
    if comm.rank() == 0:
        Path(os.environ["HP_BENCH_RESULT"]).write_text(json.dumps([asdict(row) for row in rows]))
    comm.barrier()
    comm.shutdown()
    dist.destroy_process_group()


def sides(nbytes: int, size: int) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return what is compared at ``nbytes``: our call, and gloo's, both on tensors of their own."""
    import torch
    import torch.distributed as dist

    import hp_core.comm as comm
    import hp_native

    count = nbytes // 4
    whole, peer_whole = torch.ones(count), torch.ones(count)
    part, peer_part = torch.ones(count // size), torch.ones(count // size)
    other, peer_other = torch.empty(count), torch.empty(count)
    # max: sums would grow out of range in the end.
    found: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "all_reduce": (
            lambda: comm.all_reduce(whole, "max"),
            lambda: dist.all_reduce(peer_whole, dist.ReduceOp.MAX),
        ),
        "all_gather": (
            lambda: comm.all_gather(part, out=other),
            lambda: dist.all_gather_into_tensor(peer_other, peer_part),
        ),
        "reduce_scatter": (
            lambda: comm.reduce_scatter(whole, "max", out=part),
            lambda: dist.reduce_scatter_tensor(peer_part, peer_whole, dist.ReduceOp.MAX),
        ),
        "all_to_all": (
            lambda: comm.all_to_all(whole, out=other),
            lambda: dist.all_to_all_single(peer_other, peer_whole),
        ),
    }
    if size == 2:
        me, peer = comm.rank(), 1 - comm.rank()

        def ours_message() -> None:
            comm.batch_p2p([comm.P2P("recv" if me else "send", whole, peer)])

        def peer_message() -> None:
            dist.recv(peer_whole, peer) if me else dist.send(peer_whole, peer)

        found["send_recv"] = ours_message, peer_message
    if nbytes == 64 * MB:
        flat: Any = hp_native.empty(count, torch.float32)
        flat.fill_(1.0)
        found["symmetric all_reduce"] = (lambda: comm.all_reduce(flat, "max"), found["all_reduce"][1])
    return found


def faster(case: str, ours: Callable[[], object], peer: Callable[[], object], goal: float | None, turns: int) -> Row:
    """Return the row of a case where ours is to be ``goal`` times as fast as the peer."""
    middle = timed({"ours": ours, "peer": peer}, turns)
    return compare(case, middle["ours"], middle["peer"], goal=None if goal is None else 1 / goal)


def deepspeed_all_reduce() -> Callable[[Any], object] | None:
    """Return DeepSpeed's all-reduce in shared memory, in place; None where it is not there."""
    import torch

    import hp_core.comm as comm

    os.environ["LOCAL_SIZE"] = str(comm.world_size())  # what its library goes by
    found: Any = None
    try:
        from deepspeed.ops.op_builder import ShareMemCommBuilder

        found = ShareMemCommBuilder().load()
        found.initialize(comm.world_size(), comm.rank())
    except Exception as error:
        # ImportError, or whatever compiling its extension raises.
        if comm.rank() == 0:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            print(f"DeepSpeed's all-reduce is not measured: {reason}", file=sys.stderr)
    if not all(comm.all_gather_object(found is not None)):
        return None
    return cast("Callable[[Any], object]", torch.ops.deepspeed.inference_all_reduce_)


def timed(sides: dict[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Return each side's median over ``turns`` of the slowest rank's microseconds for a call."""
    calls = {name: calls_a_turn(run) for name, run in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name in list(sides) if turn % 2 else list(sides)[::-1]:
            took = slowest_s(sides[name], calls[name])
            if turn:  # the first warms up
                times[name].append(took / calls[name] * 1e6)
    return medians(times)


def calls_a_turn(run: Callable[[], object]) -> int:
    """Return how many calls take about `TURN_S`; the same on all ranks."""
    calls = 1
    slowest_s(run, calls)
    while (took := slowest_s(run, calls)) < TURN_S / 2 and calls < 20_000:
        calls = min(calls * 10, max(calls + 1, int(calls * TURN_S / took)))
    return calls


def slowest_s(run: Callable[[], object], calls: int) -> float:
    """Return the seconds that the slowest rank takes for ``calls`` calls, begun together."""
    import hp_core.comm as comm

    comm.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    took = time.perf_counter() - start
    return max(comm.all_gather_object(took))


if __name__ == "__main__":
    sys.exit(main())
