# SPDX-License-Identifier: Apache-2.0
"""``ranks(n)``: run a function on n worker processes that stay alive for the whole test session.

Importing a framework costs seconds, so a distributed test must not pay for it again. Workers are fresh
interpreters (never forks), one thread each, with ``hp_core.comm`` initialised over all of them.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hp_core.errors import HPError
from hp_core.launch.failure import Failure, first_failure
from hp_core.testing.processes import Outcome, WorkerGroup
from hp_core.testing.shipping import ship

Result = TypeVar("Result")
Environment = tuple[tuple[tuple[str, str], ...], ...]

MAX_POOLS = 3  # a worker with a framework in it takes some 300 MB


class RankError(HPError, RuntimeError):
    """A function run by `ranks` failed on a rank, or a rank did not answer in time.

    Attributes:
        rank: the rank that failed first (of those that did not answer: the lowest).
        summary: one line: the exception and its message, or how the process ended.
        traceback: that rank's formatted traceback, or the stack where it was stuck.
        failures: what is known of every rank that failed, by rank.
        stuck: the ranks that did not answer.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        summary: str,
        traceback: str,
        failures: Mapping[int, Failure],
        stuck: Sequence[int],
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.summary = summary
        self.traceback = traceback
        self.failures = dict(failures)
        self.stuck = list(stuck)


@dataclass(frozen=True)
class _Key:
    num_ranks: int
    environment: Environment
    init_comm: bool


_pools: OrderedDict[_Key, WorkerGroup] = OrderedDict()
_lock = threading.RLock()
_owner = os.getpid()


class Ranks:
    """A handle on a pool; made by `ranks`. The processes start at the first ``run``."""

    def __init__(self, key: _Key) -> None:
        self._key = key

    @property
    def num_ranks(self) -> int:
        """The number of worker processes."""
        return self._key.num_ranks

    def run(self, function: Callable[..., Result], *args: Any, timeout_s: float = 60.0, **kwargs: Any) -> list[Result]:
        """Call ``function(*args, **kwargs)`` on every rank at once and return the results in rank order.

        The function, its arguments and its results travel by cloudpickle; what is defined in a test module or a
        script travels by value, so module-level state of such a file is not shared with the workers, nor kept
        from one run to the next.

        Args:
            function: called in every worker; it asks ``hp_core.comm.rank()`` (or ``$RANK``) who it is.
            args: positional arguments, equal on all ranks.
            timeout_s: seconds until ranks that have not answered count as stuck.
            kwargs: keyword arguments.

        Raises:
            RankError: a rank raised, died or did not answer. It says which rank failed first, with its traceback,
                what the others did and what they printed. The pool is then thrown away; the next run starts
                another.
        """
        payload = ship(function, args, kwargs)
        with _lock:
            group = _live_group(self._key)
            try:
                outcomes = group.call(payload, timeout_s)
            except BaseException:
                _throw_away(self._key)
                raise
            if any(not outcome.ok for outcome in outcomes):
                error = _describe(group, outcomes, getattr(function, "__name__", repr(function)), timeout_s)
                cause = outcomes[error.rank].error
                _throw_away(self._key)
                raise error from cause
        return [outcome.result for outcome in outcomes]

    def close(self) -> None:
        """End the pool's processes; the next run starts others."""
        with _lock:
            _throw_away(self._key)

    def __repr__(self) -> str:
        return f"ranks({self._key.num_ranks})"


def ranks(
    num_ranks: int,
    *,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    init_comm: bool = True,
) -> Ranks:
    """Return a pool of ``num_ranks`` worker processes of this host, shared by all who ask for the same.

    Works with and without pytest. At most three pools live at a time; the one that was used least recently ends
    when a fourth starts. The workers end with this process, however it ends.

    Args:
        num_ranks: number of processes.
        env: environment variables for the workers, the same for all, or one mapping per rank. Each environment has
            a pool of its own. Workers inherit ``os.environ`` as it is when the pool starts.
        init_comm: whether ``hp_core.comm.init_backend("cpu")`` is called in the workers before the first function.

    Raises:
        ValueError: ``num_ranks`` is below 1, or ``env`` has another number of mappings.

    Example:
        ``assert ranks(2).run(lambda: hp_core.comm.rank()) == [0, 1]``
    """
    if num_ranks < 1:
        raise ValueError(f"ranks({num_ranks}): the number of ranks must be at least 1")
    per_rank: Sequence[Mapping[str, str]]
    per_rank = [env or {}] * num_ranks if env is None or isinstance(env, Mapping) else env
    if len(per_rank) != num_ranks:
        raise ValueError(f"ranks({num_ranks}): env has {len(per_rank)} mappings; give one, or one per rank")
    environment = tuple(tuple(sorted(mapping.items())) for mapping in per_rank)
    return Ranks(_Key(num_ranks, environment, init_comm))


def close_pools() -> None:
    """End the processes of all pools. Called at exit."""
    if os.getpid() != _owner:
        return  # a fork of the test process: the workers are its parent's
    with _lock:
        while _pools:
            _throw_away(next(iter(_pools)))


atexit.register(close_pools)


def _live_group(key: _Key) -> WorkerGroup:
    group = _pools.get(key)
    if group is not None and group.is_alive():
        _pools.move_to_end(key)
        return group
    _throw_away(key)
    while len(_pools) >= MAX_POOLS:
        _throw_away(next(iter(_pools)))
    group = _start(key)
    _pools[key] = group
    return group


def _start(key: _Key) -> WorkerGroup:
    attempts = 3
    for attempt in range(attempts):
        group = WorkerGroup(key.num_ranks, [dict(pairs) for pairs in key.environment], key.init_comm)
        try:
            outcomes = group.wait_for_answers(timeout_s=180.0)
            if all(outcome.ok for outcome in outcomes):
                return group
            error = _describe(group, outcomes, "start of the worker", 180.0)
        except BaseException:
            group.kill()
            raise
        group.kill()
        # Another process took the port between our look and the store's bind: once more, with another one.
        port_taken = "EADDRINUSE" in str(error) or "address already in use" in str(error)
        if not port_taken or attempt == attempts - 1:
            raise error
    raise AssertionError("unreachable")


def _throw_away(key: _Key) -> None:
    group = _pools.pop(key, None)
    if group is not None:
        group.kill()


def _describe(group: WorkerGroup, outcomes: Sequence[Outcome], name: str, timeout_s: float) -> RankError:
    failures = {rank: outcome.failure for rank, outcome in enumerate(outcomes) if outcome.failure is not None}
    stuck = {rank: outcome.stuck for rank, outcome in enumerate(outcomes) if outcome.stuck is not None}
    lines: list[str] = []
    if failures:
        first = first_failure(failures.values())
        rank, summary, traceback = first.rank, first.summary, first.traceback
        lines.append(f"{name}: rank {rank} of {len(outcomes)} failed: {summary}")
        lines += _indented(traceback)
    else:
        rank = min(stuck)
        summary, traceback = f"no answer within {timeout_s:g} s", stuck[rank]
        who = ", ".join(str(each) for each in stuck)
        lines.append(f"{name}: no answer from rank{'s' if len(stuck) > 1 else ''} {who} within {timeout_s:g} s")
    for other, outcome in enumerate(outcomes):
        if other == rank and failures:
            continue
        lines.append(f"rank {other}: {_doing(outcome)}")
        lines += _indented(outcome.stuck or "")
    for other in range(len(outcomes)):
        printed = group.printed(other)
        if printed:
            lines.append(f"rank {other} printed:")
            lines += [f"    [rank {other}] {line}" for line in printed.splitlines()]
    return RankError(
        "\n".join(lines), rank=rank, summary=summary, traceback=traceback, failures=failures, stuck=sorted(stuck)
    )


def _doing(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"failed too: {outcome.failure.summary}"
    if outcome.stuck is not None:
        return "was still running, here:"
    return "returned"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


__all__ = ["MAX_POOLS", "RankError", "Ranks", "close_pools", "ranks"]
