# SPDX-License-Identifier: Apache-2.0
"""Where the job's store is, and what is said when it cannot be reached; the same whatever it is made of."""

from __future__ import annotations

from hp_core.comm.backend import Launch
from hp_core.errors import CommError


def store_address(launch: Launch) -> tuple[str, int]:
    """Return the host and port of the job's store.

    Raises:
        CommError: nobody said where it is.
    """
    if launch.master_addr is None or launch.master_port is None:
        missing = "MASTER_ADDR" if launch.master_addr is None else "MASTER_PORT"
        raise CommError(
            f"{missing} is not set for a world of {launch.world_size} ranks; start the job with 'hp run' or "
            "torchrun, or set it to the address (port) of rank 0 on every rank"
        )
    return launch.master_addr, launch.master_port


def port_is_taken(launch: Launch) -> CommError:
    """Return the error of the rank that hosts the store, where another program listens at its port."""
    return CommError(
        f"rank {launch.rank}: address already in use: the job's store cannot listen at port {launch.master_port}; "
        "choose another with MASTER_PORT, or leave it to 'hp run'"
    )


def cannot_listen(launch: Launch, why: str) -> CommError:
    """Return the error of the rank that hosts the store, where it cannot listen for another reason."""
    return CommError(
        f"rank {launch.rank}: the job's store cannot listen at {launch.master_addr}:{launch.master_port} ({why}); "
        "MASTER_ADDR must be an address of the host of rank 0"
    )


def no_answer(launch: Launch) -> CommError:
    """Return the error of a rank that does not reach the store."""
    who = "the launcher" if launch.agent_store else "rank 0"
    return CommError(
        f"rank {launch.rank}: no answer from the job's store at {launch.master_addr}:{launch.master_port} within "
        f"{launch.timeout_s:g} s (missing: {who}); check that {who} is running and that MASTER_ADDR and MASTER_PORT "
        "are right on this host"
    )
