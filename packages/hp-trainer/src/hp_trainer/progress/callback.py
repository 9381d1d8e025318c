# SPDX-License-Identifier: Apache-2.0
"""The callback that shows how a run goes.

`hp train` leaves the terminal to rank 0, which draws a panel there. Under ``hp run`` a rank writes into a pipe, and the
output may be a file: then plain lines are written.

[Note: Pauses between lines] Each line is whole: step, loss, speed, memory, time left. They come once a second at first,
and then each time the run has grown by a hundredth, at most ``MAX_PAUSE_S`` apart: live to a reader, short in the log
of a long run, and no need to know which of the two is at the other end of the pipe.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hp_trainer.callbacks import Callback
from hp_trainer.progress.lines import evaluation_line, plain, start_line, step_line, stop_line, summary_lines
from hp_trainer.progress.state import ProgressState

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from hp_trainer.run import Run

MIN_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
PAUSE_SHARE = 0.01  # of the time that the run has taken


class Progress(Callback):
    """Shows how a run goes, on rank 0; does nothing on the others. Communicates nothing.

    Args:
        console: Where to write; standard output by default.
        clock: Seconds that only grow.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._state: ProgressState | None = None
        self._live: Live | None = None
        self._last_line_s = -math.inf

    def on_train_begin(self, run: Run) -> None:
        """Start the panel, or say in a line what starts."""
        if not run.is_main:
            return
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False)
        now_s = self._clock()
        self._state = ProgressState(run.config.run.name, run.num_steps, now_s)
        self._last_line_s = -math.inf
        if _can_draw(self._console):
            from rich.live import Live

            from hp_trainer.progress.panel import panel

            state = self._state
            self._live = Live(
                console=self._console, get_renderable=lambda: panel(state, self._clock()), refresh_per_second=4
            )
            self._live.start()
            atexit.register(self._stop)  # gives the cursor back whatever ends the process
        else:
            self._say(start_line(self._state, run.world_size))

    def on_step_end(self, run: Run, step_metrics: Mapping[str, Any]) -> None:
        """Take in a step; write a line when it is time for one."""
        state = self._state
        if state is None:
            return
        now_s = self._clock()
        state.add_step(step_metrics, now_s)
        if self._live is not None:
            return
        pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, PAUSE_SHARE * (now_s - state.started_s)))
        if now_s - self._last_line_s >= pause_s or state.step >= state.num_steps:
            self._last_line_s = now_s
            self._say(step_line(state, now_s))

    def on_evaluation(self, run: Run, result: Mapping[str, Any]) -> None:
        """Show a held-out loss."""
        if self._state is None:
            return
        self._state.add_evaluation(result, self._clock())
        if self._live is None:
            self._say(evaluation_line(self._state, result))

    def on_train_end(self, run: Run) -> None:
        """Take the panel away and leave the summary."""
        if self._state is None:
            return
        self._stop()
        for line in summary_lines(self._state, self._clock(), str(run.dir / "report.html")):
            self._say(line)

    def on_exception(self, run: Run, exc: BaseException) -> None:
        """Give the terminal back and say how far the run came; the error itself is printed by who started the run."""
        if self._state is None:
            return
        self._stop()
        self._say(stop_line(self._state, self._clock(), exc))

    def _stop(self) -> None:
        """End the panel; its last state stays on the screen. Harmless when there is none."""
        live, self._live = self._live, None
        atexit.unregister(self._stop)
        if live is not None:
            live.stop()

    def _say(self, line: str) -> None:
        """Write a line of plain text, never wrapped, coloured or marked up, and flush it through the pipe."""
        assert self._console is not None
        self._console.file.write(plain(line) + "\n")
        self._console.file.flush()


def _can_draw(console: Console) -> bool:
    """Say whether a panel can be drawn over and over: a terminal that moves its cursor and knows the characters."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf")
