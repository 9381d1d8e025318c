# SPDX-License-Identifier: Apache-2.0
"""What a callback of the trainer may implement, and how the named ones are found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from hp_core.errors import PluginError
from hp_core.registry import resolve

if TYPE_CHECKING:
    from hp_trainer.config import TrainConfig
    from hp_trainer.run import Run


class Callback:
    """Sees a run go by; does nothing: override what you need.

    All methods are called on every rank; ``run.rank`` tells which. A callback may call collectives only if it does so
    on all ranks alike. What it raises ends the run. Deriving from this class is not needed: an object with one or more
    of these methods will do.
    """

    def on_train_begin(self, run: Run) -> None:
        """Be called once, after set-up, before the first evaluation and any step."""

    def on_step_end(self, run: Run, step_metrics: Mapping[str, Any]) -> None:
        """See the metrics of a step: the line of ``metrics.jsonl``, equal on all ranks."""

    def on_evaluation(self, run: Run, result: Mapping[str, Any]) -> None:
        """See an evaluation: ``step``, ``loss``, ``perplexity``, ``num_tokens``."""

    def on_train_end(self, run: Run) -> None:
        """Be called after the last evaluation and the export of the model, when the run succeeded."""

    def on_exception(self, run: Run, exc: BaseException) -> None:
        """Be called when the run fails or is interrupted; other ranks may be gone, so no collectives here."""


def make_callbacks(config: TrainConfig) -> list[Any]:
    """Return the callback that writes the metrics files, and one for each name in ``run.callbacks``.

    Raises:
        PluginError: No plugin offers a name (with near matches), or the one that does is broken.
    """
    return [make() for make in _resolve(["metrics", *config.run.callbacks])]


def check_callbacks(config: TrainConfig) -> None:
    """Raise as `make_callbacks` does, without making any."""
    _resolve(config.run.callbacks)


def _resolve(names: Iterable[str]) -> list[Callable[[], Any]]:
    found: list[Callable[[], Any]] = []
    for name in dict.fromkeys(names):
        try:
            found.append(cast("Callable[[], Any]", resolve("callback", name)))
        except PluginError as error:
            raise type(error)(f"run.callbacks: {error}") from error
    return found


class CallbackList:
    """Calls the method of an event on several callbacks, in order, on those that have it."""

    def __init__(self, callbacks: Iterable[object]) -> None:
        self._callbacks = list(callbacks)

    def tell(self, event: str, run: Run, *arguments: Any) -> None:
        """Call method ``event`` of each callback that has it; what one raises ends the run."""
        for callback in self._callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                method(run, *arguments)

    def tell_failure(self, run: Run, exc: BaseException) -> None:
        """Call ``on_exception`` of all: one that raises must not keep the others from hearing, nor hide ``exc``."""
        for callback in self._callbacks:
            method = getattr(callback, "on_exception", None)
            if method is None:
                continue
            try:
                method(run, exc)
            except Exception as error:
                print(f"warning: {type(callback).__name__}.on_exception failed: {error!r}", file=sys.stderr)


def tell_plugins(exc: BaseException, run: Run) -> None:
    """Call the hook ``hp_fault`` of all plugins; what they raise is printed and does not hide ``exc``."""
    from hp_core.plugins import has_hook, hooks

    try:
        if has_hook("hp_fault"):
            hooks().hp_fault(exc=exc, rank=run.rank, step=run.step or -1)
    except Exception as error:
        print(f"warning: a plugin's hp_fault failed: {error!r}", file=sys.stderr)
