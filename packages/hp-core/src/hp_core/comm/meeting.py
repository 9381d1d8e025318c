# SPDX-License-Identifier: Apache-2.0
"""The members of a new group wait for each other before they connect: connecting cannot be interrupted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hp_core.comm.backend import Launch, Store
from hp_core.comm.watchdog import StoreSilentError, Watchdog
from hp_core.errors import CommError, CommTimeoutError

_ANSWER_S = 10.0


def meet(
    ranks: Sequence[int],
    name: str,
    key: str,
    launch: Launch,
    watchdog: Watchdog,
    down: Callable[[], str | None],
    silence: Callable[[StoreSilentError], str],
) -> None:
    """Return when every member makes the group.

    Args:
        ranks: The members.
        name: What errors call the group.
        key: What names it in the store.
        launch: This rank's place in the job, and its time limit.
        watchdog: Whom to ask.
        down: Says why nothing can be communicated any more, if so.
        silence: Says in words that the store does not answer.

    Raises:
        CommTimeoutError: a member did not come in time; all ranks are told.
        CommError: another rank failed, or the store does not answer.
    """
    end = time.monotonic() + launch.timeout_s
    pause_s = 0.001
    missing = list(ranks)

    def still_missing(store: Store) -> list[int]:
        store.set(f"{key}/{launch.rank}", b"1")
        return [rank for rank in missing if not store.check(f"{key}/{rank}")]

    while True:
        try:
            missing = watchdog.ask(still_missing, _ANSWER_S)
        except StoreSilentError as exc:
            raise CommError(f"rank {launch.rank}: group {name}: {silence(exc)}") from exc
        if not missing:
            return
        reason = down()
        if reason is not None:
            raise CommError(f"rank {launch.rank}: group {name} is given up: {reason}")
        if time.monotonic() >= end:
            who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            text = (
                f"rank {launch.rank}: new_group({list(ranks)}) waited {launch.timeout_s:g} s for {who} to make "
                "it too; every member makes it, and members make their groups in the same order"
            )
            watchdog.report(text)
            raise CommTimeoutError(text)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)
