# SPDX-License-Identifier: Apache-2.0
"""TCP ports for the rendezvous of a job."""

from __future__ import annotations

import contextlib
import os
import random
import socket

# [Note: Ports below the ephemeral range]
# A port found by binding to 0 lies in the kernel's ephemeral range, so any outgoing connection (gloo alone
# makes several per rank) can take it between our check and the store's bind. Ports below that range are only
# taken by servers that ask for them by number.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000


def port_is_free(port: int, host: str = "") -> bool:
    """Return whether a server could listen on ``port`` of ``host`` (all interfaces by default) now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port of this host that nothing listens on.

    Nothing reserves it: whoever binds first has it, so callers retry when the bind fails.
    """
    # Not the global generator: users seed it, and two jobs with one seed would then meet at one port.
    draw = random.Random(os.urandom(8))
    for _ in range(200):
        port = draw.randrange(_FIRST_PORT, _LAST_PORT)
        if port_is_free(port):
            return port
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
