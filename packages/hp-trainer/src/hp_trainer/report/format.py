# SPDX-License-Identifier: Apache-2.0
"""Numbers written for people: ``1,234``, ``3 min 12 s``, ``1.9 GiB``. A missing number is a dash, NaN is "NaN"."""

from __future__ import annotations

import math

MISSING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"


def _not_finite(value: float | None) -> str | None:
    if value is None:
        return MISSING
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return None


def count(value: float | None) -> str:
    """Return a whole number with thousands separators: ``12,345``."""
    return _not_finite(value) or f"{value:,.0f}".replace("-", MINUS)


def big_count(value: float | None) -> str:
    """Return a large count with three digits and a letter: ``134.5 M``; below 10,000 in full."""
    special = _not_finite(value)
    if special or value is None:
        return special or MISSING
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and abs(value) >= 1e4:
            return f"{significant(value / size, 4)} {letter}"
    return count(value)


def significant(value: float | None, digits: int = 3) -> str:
    """Return ``value`` with ``digits`` significant digits and no exponent between 1e-3 and 1e6."""
    special = _not_finite(value)
    if special or value is None:
        return special or MISSING
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -3 or exponent >= 6:
        mantissa, _, power = f"{value:.{max(0, digits - 1)}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}{TIMES}10{superscript(int(power))}".replace("-", MINUS)
    return f"{value:,.{max(0, digits - 1 - exponent)}f}".replace("-", MINUS)


def superscript(power: int) -> str:
    """Return a whole number in superscript digits, for powers of ten."""
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def loss(value: float | None) -> str:
    """Return a loss with three decimals, or with three significant digits when it is huge or tiny."""
    special = _not_finite(value)
    if special or value is None:
        return special or MISSING
    return f"{value:.3f}".replace("-", MINUS) if 0.01 <= abs(value) < 1000 or value == 0 else significant(value)


def signed(value: float | None, text: str) -> str:
    """Return ``text`` (the absolute value, formatted) with the sign of ``value``; ``±`` for zero."""
    if value is None or not math.isfinite(value):
        return text
    return f"{'+' if value > 0 else MINUS if value < 0 else '±'}{text}"


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share of one as a percentage: ``0.42`` is ``42 %``; a share that rounds to nothing is ``< 1 %``."""
    special = _not_finite(share)
    if special or share is None:
        return special or MISSING
    if 0 < share < 0.5 * 10 ** (-digits - 2):
        return f"< {10**-digits:g} %"
    return f"{100 * share:.{digits}f} %".replace("-", MINUS)


def duration(seconds: float | None) -> str:
    """Return a duration in the two units that matter: ``0.84 s``, ``12.3 s``, ``3 min 12 s``, ``2 h 05 min``."""
    special = _not_finite(seconds)
    if special or seconds is None:
        return special or MISSING
    if seconds < 0:
        return MINUS + duration(-seconds)
    if seconds < 0.9995:
        return (
            f"{1000 * seconds:.0f} ms" if seconds >= 0.00995 or seconds == 0 else f"{significant(1000 * seconds, 2)} ms"
        )
    if seconds < 9.95:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


_BINARY_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def byte_unit(num_bytes: float) -> tuple[str, int]:
    """Return the binary unit in which ``num_bytes`` reads best, and its size in bytes."""
    for unit, size in _BINARY_UNITS:
        if abs(num_bytes) >= size:
            return unit, size
    return "B", 1


def bytes_(num_bytes: float | None) -> str:
    """Return a size in a binary unit with three significant digits: ``1.93 GiB``, ``512 MiB``."""
    special = _not_finite(num_bytes)
    if special or num_bytes is None:
        return special or MISSING
    unit, size = byte_unit(num_bytes)
    scaled = num_bytes / size
    return f"{scaled:,.0f} {unit}" if size == 1 or scaled >= 100 else f"{significant(scaled)} {unit}"
