"""Fields of the lines of the workq protocol: ids, names, numbers, flags, times."""

from __future__ import annotations

import re
from datetime import date

from staniel.protocol.workq.job_texts import is_job_id as is_job_id
from staniel.protocol.workq.job_texts import read_id as read_id
from staniel.protocol.workq.job_texts import show_id as show_id

NS_A_SECOND = 1_000_000_000
DIGITS_MAX = 20  # of a number of 64 bits, without leading zeros
_NAME = re.compile(rb"[A-Za-z0-9_.\-]{1,255}")
_TIME = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?Z")
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DAYS_0_TO_3 = 1461  # Python has no year 0; the year 4 is as long


def is_name(word: bytes) -> bool:
    return _NAME.fullmatch(word) is not None


def unsigned(word: bytes, most: int) -> int | None:
    """Return a number from 0 to `most`, digits only, else None. Any number of zeros may lead."""
    if not word.isdigit():
        return None
    digits = word.lstrip(b"0")
    if len(digits) > DIGITS_MAX:
        return None
    number = int(digits or b"0")
    return number if number <= most else None


def signed(word: bytes, least: int, most: int) -> int | None:
    """Return a number that may have a sign, also a plus; None if it is none or out of range."""
    sign = word[:1]
    size = unsigned(word[1:] if sign in (b"+", b"-") else word, max(-least, most))
    if size is None:
        return None
    number = -size if sign == b"-" else size
    return number if least <= number <= most else None


def read_flags(words: list[bytes]) -> tuple[list[bytes], dict[bytes, bytes] | None]:
    """Return (arguments, flags) of the words behind a command.

    A flag begins with `-` and holds `=`; a second `=` and what follows it are dropped. `flags` is None if one has no
    key, no value, or comes twice.
    """
    arguments: list[bytes] = []
    flags: dict[bytes, bytes] = {}
    is_valid = True
    for word in words:
        if word[:1] != b"-" or b"=" not in word:
            arguments.append(word)
            continue
        key, value = word[1:].split(b"=")[:2]
        is_valid = is_valid and bool(key) and bool(value) and key not in flags
        flags[key] = value
    return arguments, flags if is_valid else None


def read_time(word: bytes) -> int | None:
    """Return `2006-01-02T15:04:05Z` as nanoseconds since 1970; nine digits of a fraction count."""
    match = _TIME.fullmatch(word)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if hour > 23 or minute > 59 or second > 59:
        return None
    try:
        ordinal = date(year or 4, month, day).toordinal()
    except ValueError:
        return None
    days = ordinal - _EPOCH_DAY - (0 if year else _DAYS_0_TO_3)
    fraction = int((match[7] or b"0")[:9].ljust(9, b"0"))
    return (days * 86_400 + hour * 3_600 + minute * 60 + second) * NS_A_SECOND + fraction


def show_time(at_ns: int) -> bytes:
    """Return the inverse of `read_time`, without the fraction, for the years 1 to 9999."""
    seconds = at_ns // NS_A_SECOND
    days, second = divmod(seconds, 86_400)
    ordinal = min(max(days + _EPOCH_DAY, 1), date.max.toordinal())
    day = date.fromordinal(ordinal)
    return b"%bT%02d:%02d:%02dZ" % (day.isoformat().encode(), second // 3_600, second // 60 % 60, second % 60)
