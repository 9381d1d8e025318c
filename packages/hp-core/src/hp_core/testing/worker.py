# SPDX-License-Identifier: Apache-2.0
"""The process behind one rank of `hp_core.testing.ranks`: it runs what it is sent, and sends back the result.

Messages in both directions are an 8-byte length and a pickle. Standard output and standard error are the
parent's memory files.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import socket
import struct
import sys
from typing import Any

import cloudpickle

from hp_core.launch.failure import from_exception

_LENGTH = struct.Struct("<Q")


def send(connection: socket.socket, message: bytes) -> None:
    """Send one message; ``OSError`` when the peer has gone."""
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def receive(connection: socket.socket) -> bytes:
    """Wait for one message; ``EOFError`` when the peer has gone."""
    (length,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return _receive_exactly(connection, length)


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    buffer = bytearray(num_bytes)
    view, done = memoryview(buffer), 0
    while done < num_bytes:
        got = connection.recv_into(view[done:])
        if got == 0:
            raise EOFError
        done += got
    return bytes(buffer)


def _start_comm() -> None:
    import hp_core.comm as comm

    comm.init_backend("cpu")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _answer(rank: int, work: Any) -> bytes:
    """Call ``work`` and return the pickled answer: ``("ok", result)``, or ``("failed", Failure, exception)``."""
    try:
        result = work()
        try:
            return bytes(cloudpickle.dumps(("ok", result)))
        except Exception as error:
            raise TypeError(
                f"the result of the function cannot be pickled: {type(result).__name__}: {error}"
            ) from error
    except BaseException as error:
        failure = from_exception(rank, error, own_files={__file__})
        try:
            answer = bytes(cloudpickle.dumps(("failed", failure, error)))
            pickle.loads(answer)  # noqa: S301  # some exceptions pickle, and then cannot be made again
        except Exception:
            answer = bytes(cloudpickle.dumps(("failed", failure, None)))
        return answer
    finally:
        _flush()


def main(connection_fd: int, stacks_fd: int) -> None:
    """Serve the parent at the other end of ``connection_fd`` until it goes away."""
    connection = socket.socket(fileno=connection_fd)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)
    rank = int(os.environ["RANK"])
    init_comm = os.environ.pop("HP_TEST_INIT_COMM") == "1"
    try:
        send(connection, _answer(rank, _start_comm if init_comm else lambda: None))
        while True:
            request = receive(connection)

            def work(request: bytes = request) -> Any:
                function, args, kwargs = pickle.loads(request)  # noqa: S301  # our own parent's
                return function(*args, **kwargs)

            send(connection, _answer(rank, work))
    except (EOFError, OSError):
        os._exit(0)
