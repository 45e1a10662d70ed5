"""Sizes and durations as people write them: "1.5GB", "64 KB", "30s", and back.

Knows units and exact arithmetic. Refuses to know settings, limits and what "none" means.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

SIZE_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# Digits are bounded because Fraction would otherwise build numbers as long as the file.
_AMOUNT = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) *([A-Za-z]+)")


def parse_size(text: str) -> int:
    """Bytes; units count in 1024 and in any case; a fraction of a byte counts as one. Raises ValueError."""
    return _parse(text, SIZE_UNITS, text.upper())


def parse_duration(text: str) -> int:
    """Milliseconds. A fraction of one counts as one, so that no duration becomes 0, "none". Raises ValueError."""
    return _parse(text, DURATION_UNITS, text)


def format_size(size_bytes: int) -> str:
    """The shortest exact text: 16777216 is "16MB", 1025 is "1025B"."""
    return _format(size_bytes, SIZE_UNITS)


def format_duration(duration_ms: int) -> str:
    """The shortest exact text: 60000 is "1m", 1500 is "1500ms"."""
    return _format(duration_ms, DURATION_UNITS)


def _parse(text: str, units: dict[str, int], folded: str) -> int:
    match = _AMOUNT.fullmatch(folded)
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not a number with one of the units {' '.join(units)}")
    return math.ceil(Fraction(match[1]) * units[match[2]])


def _format(amount: int, units: dict[str, int]) -> str:
    unit = max((unit for unit, factor in units.items() if amount % factor == 0 and amount >= factor),
               key=units.__getitem__, default=next(iter(units)))  # fmt: skip
    return f"{amount // units[unit]}{unit}"
