# SPDX-License-Identifier: Apache-2.0
"""The exceptions of HyperParallel.

Each message says what was given, what was expected and the fix. The command line prints an
``HPError`` as one line and exits non-zero; everything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HPError(Exception):
    """Base of every error that a user can cause and mend."""


class PluginError(HPError, ImportError):
    """A plugin, or a name that a plugin offers, cannot be used.

    Attributes:
        fix: The command that mends it, for ``hp doctor``; empty where no single one does.
    """

    fix: str = ""


class ConflictError(PluginError):
    """Two distributions offer the same name and nothing says which one is meant."""


class PlatformError(HPError, RuntimeError):
    """The framework or the device that was asked for is not there."""


class MeshError(HPError, ValueError):
    """A device mesh cannot be built or sliced as asked."""


class CommError(HPError, RuntimeError):
    """A collective failed on this rank, or communication could not be brought up.

    Attributes:
        at_start: Whether it was not brought up: the environment, the port or a missing rank is at fault, and the
            message says all that there is to know.
    """

    at_start: bool = False


class CommTimeoutError(CommError, TimeoutError):
    """A collective did not complete in time; the message names the ranks that never came."""


class LaunchError(HPError, RuntimeError):
    """A distributed job could not be started."""


class ConfigError(HPError, ValueError):
    """A configuration file or option is wrong."""


class PluginWarning(UserWarning):
    """A plugin is installed but not used; the message says which and why."""


def did_you_mean(name: str, options: Iterable[str], *, limit: int = 3) -> str:
    """Return ``"; did you mean 'a' or 'b'?"`` for the options nearest to ``name``, or ``""``."""
    near = difflib.get_close_matches(name, list(options), n=limit, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(option) for option in near)}?" if near else ""
