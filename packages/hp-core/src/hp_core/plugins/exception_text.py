# SPDX-License-Identifier: Apache-2.0
"""What an exception of somebody else's code says, even where its own ``__str__`` fails."""

from __future__ import annotations


def exception_text(exc: BaseException) -> str:
    """Return ``"ValueError: the message"``, or the class's name alone; never raises for what the exception does.

    A foreign exception may raise in ``__str__``, or return something that is no text.
    """
    kind = type(exc).__name__
    try:
        text = str(exc)
    except BaseException as error:  # whatever it is: the message of a message is not worth an end
        return f"{kind} (no message: its __str__ raised {type(error).__name__})"
    return f"{kind}: {text}" if text else kind
