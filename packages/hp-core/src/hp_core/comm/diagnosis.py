# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group were doing when a call failed, in words. No store and no threads here."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hp_core.comm.backend import Member
from hp_core.comm.group import Group
from hp_core.comm.types import Call, dtype_name

#: What one rank is doing: ``{"groups": {key: {"last": call, "done": call}}, "waiting": text, "where": text}``.
Snapshot = dict[str, Any]

_COMM = str(Path(__file__).parent)
_SHOWN = 8
_INNOCENT = 4


def group_key(ranks: Sequence[int]) -> str:
    """Return what names a group on all ranks alike."""
    return "-".join(map(str, ranks))


def describe_call(call: Call) -> dict[str, Any]:
    """Return ``call`` as JSON can carry it."""
    return {
        "kind": call.kind,
        "seq": call.seq,
        "what": [call.detail, None if call.shape is None else list(call.shape), dtype_name(call.dtype)],
        "text": str(call),
    }


def take_snapshot(groups: Iterable[Group], waiting: Call | None) -> Snapshot:
    """Return what this rank is doing now."""
    about = {}
    for group in list(groups):
        last, done = group.last_call, group.last_done
        about[group_key(group.ranks)] = {
            "last": None if last is None else describe_call(last),
            "done": None if done is None else f"{done.kind} #{done.seq} on group {group.name}",
        }
    return {"groups": about, "waiting": None if waiting is None else str(waiting), "where": user_line()}


def user_line() -> str:
    """Return where the main thread is, outside this package: ``train.py:12 in step``."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_filename.startswith(_COMM):
        frame = frame.f_back
    if frame is None:
        return "unknown"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def process_state(pid: int) -> str | None:
    """Return ``"dead"`` or ``"stopped"`` for a process of this host that cannot answer, else None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "dead" if Path("/proc/self/stat").exists() else None
    except OSError:  # no descriptor is left to look with
        return None
    letter = stat.rpartition(")")[2].split()[0]
    return {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped"}.get(letter)


def outlive(pids: Sequence[int], limit_s: float) -> None:
    """Return when all these processes of this host have ended, or after ``limit_s``."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end and any(process_state(pid) != "dead" for pid in pids):
        time.sleep(0.02)


def describe_dead(peers: Sequence[Member], host: str) -> list[str]:
    """Say which of ``peers`` on this host can be seen, without asking them, to have ended or to be stopped."""
    states = {peer: process_state(peer.pid) for peer in peers if peer.host == host}
    return [f"rank {peer.rank} {_gone(peer, state)}" for peer, state in states.items() if state is not None]


def _gone(peer: Member, state: str) -> str:
    if state == "dead":
        return f"has ended (process {peer.pid} is gone)"
    return f"is stopped (process {peer.pid}, by a signal or a debugger)"


def describe_peers(
    key: str, call: dict[str, Any], peers: Sequence[Member], host: str, states: Mapping[int, Snapshot]
) -> str:
    """Say in one line what each of ``peers`` was doing with regard to ``call`` on group ``key``.

    The ranks to blame come first.
    """
    found = sorted((_describe(key, call, peer, host, states.get(peer.rank)), peer.rank) for peer in peers)
    words = [f"rank {rank} {text}" for (blame, text), rank in found if blame < _INNOCENT][:_SHOWN]
    num_left = sum(blame < _INNOCENT for (blame, _), _ in found) - len(words)
    if num_left:
        words.append(f"and {num_left} more ranks like these")
    for what in sorted({text for (blame, text), _ in found if blame == _INNOCENT}):
        ranks = [str(rank) for (blame, text), rank in found if (blame, text) == (_INNOCENT, what)]
        shown = ", ".join(ranks[:_SHOWN]) + (f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else "")
        words.append(f"rank{'s' if len(ranks) > 1 else ''} {shown} {what}")
    return "; ".join(words)


def _describe(key: str, call: dict[str, Any], peer: Member, host: str, state: Snapshot | None) -> tuple[int, str]:
    """Return (order of blame, what the rank does)."""
    if state is None:
        process = process_state(peer.pid) if peer.host == host else None
        if process is not None:
            return 0, _gone(peer, process)
        return 0, "does not answer (stopped, dead, or busy outside Python)"
    about = state["groups"].get(key, {})
    last = about.get("last")
    now = f"waiting in {state['waiting']}" if state["waiting"] else f"in user code, {state['where']}"
    if call["kind"] in ("batch_p2p", "new_group"):
        return 3, f"is {now}"
    done = f"last completed: {about['done']}" if about.get("done") else "it completed none on this group"
    if last is None or (last["kind"] != "batch_p2p" and last["seq"] < call["seq"]):
        return 1, f"never came ({done}; now {now})"
    if last["kind"] == "batch_p2p":
        return 3, f"is {now} ({done})"
    if last["seq"] > call["seq"]:
        return _INNOCENT, f"past it, {now}"
    if last["kind"] != call["kind"]:
        return 2, f"is at {last['text']} (a different call: mismatch)"
    if last["what"] != call["what"] and call["kind"] in ("all_reduce", "reduce_scatter", "broadcast"):
        return 2, f"called it differently: {last['text']} (mismatch)"
    return _INNOCENT, "waiting in it too" if state["waiting"] else f"came to it, now {now}"


def first_line(exc: Exception) -> str:
    """Return the message of an exception in one line, without what libraries put around it."""
    text = (str(exc) or type(exc).__name__).partition("\n")[0]
    # gloo adds the place in its source and advice that does not fit here.
    return re.sub(r"^\[\S+\.cc:\d+\] ", "", text).partition(". This is typically caused")[0]
