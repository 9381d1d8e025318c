# SPDX-License-Identifier: Apache-2.0
"""The watchdog: one quiet thread a rank that turns a collective that fails into words about every rank.

[Note: Failure protocol] All keys are in the store of the session.

1. The rank whose call fails or times out sets ``fault``, once for the job; whoever is second learns who was first.
2. Every watchdog looks for ``fault`` twice a second. When it is there it writes ``state/<rank>``: the last call and the
   last completed call on each group, and where the main thread is.
3. The first rank reads the states of its group, for three seconds at most (a process of its own host that is dead or
   stopped needs no waiting), and sets ``verdict``.
4. Every other watchdog takes the verdict and aborts its channels, so that what its rank is blocked in fails with it.

The thread has a connection of its own: a call that blocks in the store must not stop it, and what asks the store
through it can give up when the host of the store is stopped or dead.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hp_core.comm.backend import Member, Store
from hp_core.comm.diagnosis import Snapshot, describe_peers, process_state

Answer = TypeVar("Answer")

POLL_S = 0.5
GATHER_S = 3.0
#: How long a rank waits for the verdict of the rank that failed first.
VERDICT_S = GATHER_S + 2.0


@dataclass(frozen=True)
class Fault:
    """The first failure of the job.

    Attributes:
        rank: Who failed.
        report: What failed there.
        verdict: What that rank found out about the others; may be empty.
    """

    rank: int
    report: str
    verdict: str

    def seen_from(self, rank: int, call: str) -> str:
        """Return the fault in words for ``rank``, which is at ``call`` (``all_reduce #3 on group dp``)."""
        if self.rank == rank:
            return self.verdict
        if self.verdict and self.report.startswith(call):
            return f"{self.verdict} (found by rank {self.rank})"
        return f"rank {self.rank} failed: {self.report}" + (f"; {self.verdict}" if self.verdict else "")


class StoreSilentError(Exception):
    """The store does not answer: its host is stopped, dead or gone."""


class Watchdog:
    """The thread and its connection.

    Args:
        store: A connection that nobody else uses.
        rank: This rank.
        snapshot: Says what this rank is doing; called on the watchdog's thread.
        on_fault: Called on the watchdog's thread when another rank failed.
        host_gone: Says, without asking the store, that whoever hosts it is dead or stopped, if that can be known.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        snapshot: Callable[[], Snapshot],
        on_fault: Callable[[Fault], None],
        host_gone: Callable[[], str | None],
    ) -> None:
        self._store = store
        self._rank = rank
        self._snapshot = snapshot
        self._on_fault = on_fault
        self._host_gone = host_gone
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._over = False
        self._thread = threading.Thread(target=self._serve, name="hp-comm-watchdog", daemon=True)
        self._thread.start()

    def ask(self, question: Callable[[Store], Answer], limit_s: float) -> Answer:
        """Return ``question(store)``, called on the watchdog's thread.

        Raises:
            StoreSilentError: no answer within ``limit_s``, or the connection is lost.
        """
        gone = self._host_gone()
        if gone is not None:
            raise StoreSilentError(gone)
        done = threading.Event()
        box: list[Answer] = []
        errors: list[Exception] = []

        def job() -> None:
            try:
                box.append(question(self._store))
            except Exception as exc:
                errors.append(exc)
            done.set()

        self._jobs.put(job)
        if not done.wait(limit_s):
            raise StoreSilentError(f"no answer within {limit_s:g} s")
        if errors:
            raise StoreSilentError(str(errors[0]).partition("\n")[0]) from errors[0]
        return box[0]

    def diagnose(self, report: str, key: str, call: dict[str, Any], peers: list[Member], host: str) -> Fault:
        """Report a failed call and return the job's fault, which is this one unless another rank was first.

        Args:
            report: What failed, for the other ranks.
            key: Which group the call was on.
            call: The call, as in a snapshot.
            peers: The other ranks of the group.
            host: This rank's host.

        Raises:
            StoreSilentError: the store does not answer.
        """

        def question(store: Store) -> Fault:
            fault = json.dumps({"rank": self._rank, "report": report})
            first = json.loads(store.set_once("fault", fault.encode()))
            if first["rank"] != self._rank:
                return self._verdict(store, first)
            self._over = True
            states = self._gather(store, peers, host)
            verdict = describe_peers(key, call, peers, host, states)
            store.set("verdict", verdict.encode())
            return Fault(self._rank, report, verdict)

        return self.ask(question, VERDICT_S + 2.0)

    def report(self, reason: str) -> None:
        """Tell all ranks that this one failed outside a collective; silent when the store is gone."""

        def question(store: Store) -> None:
            self._over = True
            fault = json.dumps({"rank": self._rank, "report": reason}).encode()
            if store.set_once("fault", fault) == fault:
                store.set("verdict", b"")

        try:
            self.ask(question, 2.0)
        except StoreSilentError:
            return

    def stop(self) -> None:
        """End the thread."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    def _serve(self) -> None:
        timeout: float | None = POLL_S
        while True:
            try:
                job = self._jobs.get(timeout=timeout)
            except queue.Empty:
                if self._over:
                    timeout = None
                    continue
                try:
                    self._poll()
                except Exception:
                    # The store went away. A job that ends does this too: nothing is said, nothing polled any more.
                    timeout = None
                continue
            if job is None:
                return
            job()

    def _poll(self) -> None:
        store = self._store
        if self._host_gone() is None and store.check("fault"):
            first = json.loads(store.get("fault", 1.0) or b"{}")
            if first.get("rank") != self._rank:
                self._on_fault(self._verdict(store, first))

    def _verdict(self, store: Store, first: dict[str, Any]) -> Fault:
        """Publish what this rank is doing, and wait for what the first rank to fail found out."""
        self._over = True
        store.set(f"state/{self._rank}", json.dumps(self._snapshot()).encode())
        verdict = store.get("verdict", VERDICT_S)
        return Fault(first["rank"], first["report"], (verdict or b"").decode())

    def _gather(self, store: Store, peers: list[Member], host: str) -> dict[int, Snapshot]:
        end = time.monotonic() + GATHER_S
        states: dict[int, Snapshot] = {}
        while True:
            waiting = False
            for peer in peers:
                if peer.rank in states:
                    continue
                if store.check(f"state/{peer.rank}"):
                    states[peer.rank] = json.loads(store.get(f"state/{peer.rank}", 1.0) or b"{}")
                elif peer.host != host or process_state(peer.pid) is None:
                    waiting = True
            if not waiting or time.monotonic() >= end:
                return states
            time.sleep(0.02)
