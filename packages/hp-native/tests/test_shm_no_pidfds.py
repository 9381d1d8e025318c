# SPDX-License-Identifier: Apache-2.0
"""Where the system has no pidfds (old kernels, sandboxes), a rank that ends is seen as well, and as soon."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from pathlib import Path

import pytest

from hp_core.testing import RankError, ranks

PIDFD_OPEN = 434  # on every architecture


pytestmark = pytest.mark.skipif(
    ctypes.CDLL(None).prctl(21, 0, 0, 0, 0) < 0,  # PR_GET_SECCOMP
    reason="this kernel has no seccomp, with which a system without pidfds is acted here",
)


def _forbid_pidfds() -> None:
    """Let ``pidfd_open`` fail in this process from here on, as on a system that does not know it."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    fail, allow = 0x00050000 | 38, 0x7FFF0000  # ENOSYS
    rules = [(load, 0, 0, 0), (jump_if_equal, 0, 1, PIDFD_OPEN), (give, 0, 0, fail), (give, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if prctl(set_no_new_privileges, 1, 0, 0, 0) or prctl(set_seccomp, filter_mode, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")
    with pytest.raises(OSError, match="Function not implemented"):
        os.pidfd_open(os.getpid())


def _look(path: str, how: str) -> None:
    """Rank 1 ends; rank 0 writes down how it was told, and after how many seconds."""
    import torch

    import hp_core.comm as comm
    import hp_native.host
    from hp_core.errors import CommError

    _forbid_pidfds()
    if how == "while it starts" and os.environ["RANK"] == "1":
        hp_native.host.share_memory = lambda *_: os._exit(3)  # type: ignore[assignment]
    began = time.monotonic()
    try:
        comm.init_backend("cpu")
        assert comm.world().backend == "shm"
        assert comm.all_reduce(torch.ones(1)).item() == comm.world_size()
        if how == "never":
            return
        if comm.rank() == 1:
            os._exit(3)
        began = time.monotonic()
        work = comm.all_reduce(torch.ones(100_000), async_op=True)
        while how == "asked for" and not work.is_done():
            pass
        work.wait()
        text = "nothing"
    except CommError as exc:
        text = str(exc)
    Path(path).write_text(f"{time.monotonic() - began:.3f} {text}")


@pytest.mark.parametrize("how", ["while it starts", "waited for", "asked for"])
def test_a_rank_that_ends_is_seen(how: str, tmp_path: Path) -> None:
    path = tmp_path / "told"
    with pytest.raises(RankError) as caught:
        ranks(2, init_comm=False).run(_look, str(path), how)
    assert caught.value.rank == 1
    took_s, text = path.read_text().split(" ", 1)
    assert "rank 1" in text
    assert "has ended" in text or "is gone" in text
    assert float(took_s) < 10, text


def test_ranks_communicate(tmp_path: Path) -> None:
    pool = ranks(2, init_comm=False)
    try:
        pool.run(_look, str(tmp_path / "told"), "never")
    finally:
        pool.close()
