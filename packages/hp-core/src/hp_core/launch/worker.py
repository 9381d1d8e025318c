# SPDX-License-Identifier: Apache-2.0
"""The process of one rank: ``python -m hp_core.launch.worker (script PATH | module NAME) [ARGS]``.

It runs the target as ``__main__``, and when that raises it leaves the `Failure` in the
memory file that the launcher passed. It sets no signal handlers: SIGTERM ends it by default disposition, at once,
even where C code waits in a collective.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import runpy
import sys
import types
from typing import Any

from hp_core.launch.failure import Failure, from_exception, from_exit

FAILURE_FD = "HP_LAUNCH_FAILURE_FD"


def main(argv: list[str]) -> int:
    """Run the target and return the exit code."""
    kind, target, *args = argv
    record = _Record(int(os.environ.pop(FAILURE_FD)))
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # into pipes: a line must show when it is printed
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    sys.argv = [target, *args]
    rank, process = int(os.environ["RANK"]), os.getpid()
    own_files = {__file__, runpy.__file__, "<frozen runpy>"}
    try:
        if kind == "module":
            sys.path[0] = os.getcwd()
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            _run_script(target)
    except SystemExit as error:
        if os.getpid() != process:
            raise  # a child that the target has forked: its end is not the rank's
        code = _exit_code(error)
        if code:
            record.leave(from_exit(rank, code, error, own_files=own_files))
        return code
    except BaseException as error:
        if os.getpid() != process:
            raise
        record.leave(from_exception(rank, error, own_files=own_files))
        return 1
    return 0


def _run_script(path: str) -> None:
    path = os.path.abspath(path)  # as Python does: it stays true when the script changes its folder
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    # Not runpy.run_path: it takes the script's globals away when the script ends, under the feet of its threads.
    module = types.ModuleType("__main__")
    namespace: dict[str, Any] = module.__dict__
    namespace.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)  # without this file's own __future__
    exec(code, namespace)  # noqa: S102  # the user's script is what we are here to run


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    with contextlib.suppress(OSError, ValueError):  # the target may have closed it
        print(error.code, file=sys.stderr)
    return 1


class _Record:
    """The memory file for the launcher."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._status = os.fstat(fd)

    def leave(self, failure: Failure) -> None:
        """Write how this rank failed, or print it where the target has closed the file."""
        if self._is_there():
            # One write: the launcher may read at any time.
            os.write(self._fd, json.dumps(failure.to_json()).encode())
        else:
            with contextlib.suppress(OSError, ValueError):
                print(failure.traceback, file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
                stream.flush()

    def _is_there(self) -> bool:
        # A target that closes all descriptors (as daemons do) may have got this number for a file of its own.
        try:
            return os.path.samestat(os.fstat(self._fd), self._status)
        except OSError:
            return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
