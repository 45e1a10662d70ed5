"""The kinds of value that a setting can have: the accepted values, their name in an error, the text of a default. Also
sizes and durations as people write them ("1.5GB", "30s").
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from staniel.broker.config.addresses import PORT_MAX, Address, TcpAddress, format_address, is_host, parse_address
from staniel.broker.rights import Role
from staniel.journal.redo.log import CHECKSUMS_ONLY
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.config import SYNC_ALWAYS, SYNC_OS, UNLIMITED_BYTES, UNLIMITED_ITEMS, Format, JournalDialect, Values
from staniel.queues.names import NAME_BYTES_MAX, name_error

# A journal record's length has 31 bits, and an item is in memory several times while it is received and written.
ITEM_BYTES_CEILING = 1 << 30
# Durations are added to the clock and written in 64 bits; no wait is longer.
DURATION_MS_MAX = 36_500 * 86_400_000
DELAYS_MAX = 20  # of retry_delay: a longer list is a mistake
NONE = "none"
SIZE_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# Digits are bounded because Fraction would otherwise build numbers as long as the file.
_AMOUNT = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) *([A-Za-z]+)")
_SIZE = 'a size such as 65536 or "64KB"'
_REDO_LOG = '"checksums", a size such as "64MB", or "none"'


def parse_size(text: str) -> int:
    """Parse a size in bytes. Units are powers of 1024, in any case; a fraction of a byte is rounded up. Raises
    ValueError.
    """
    return _parse_amount(text, SIZE_UNITS, text.upper())


def parse_duration(text: str) -> int:
    """Parse a duration in milliseconds. A fraction of one is rounded up, so that no duration becomes 0, "none". Raises
    ValueError.
    """
    return _parse_amount(text, DURATION_UNITS, text)


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text: 16777216 is "16MB", 1025 is "1025B"."""
    return _format_amount(size_bytes, SIZE_UNITS)


def format_duration(duration_ms: int) -> str:
    """Return the shortest exact text: 60000 is "1m", 1500 is "1500ms"."""
    return _format_amount(duration_ms, DURATION_UNITS)


def _parse_amount(text: str, units: dict[str, int], folded: str) -> int:
    match = _AMOUNT.fullmatch(folded)
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not a number with one of the units {' '.join(units)}")
    from fractions import Fraction  # startup without a configuration reads no amounts

    return math.ceil(Fraction(match[1]) * units[match[2]])


def _format_amount(amount: int, units: dict[str, int]) -> str:
    unit = max((unit for unit, factor in units.items() if amount % factor == 0 and amount >= factor),
               key=units.__getitem__, default=next(iter(units)))  # fmt: skip
    return f"{amount // units[unit]}{unit}"


class ValueMismatch(ValueError):
    """The error for a value that is not of its kind. `expected` completes the sentence "expected ..."; `at` is an index
    such as "[1]".
    """

    def __init__(self, expected: str, found: object, at: str = "") -> None:
        super().__init__(expected)
        self.expected, self.found, self.at = expected, found, at


class SettingKind(Struct, frozen=True):
    """A kind of value. `word` names it in the documentation. `read` converts a TOML value or raises ValueMismatch;
    `show` does the reverse.
    """

    word: str
    read: Callable[[object], Any]
    show: Callable[[Any], str]


def quoted(value: str | tuple[str, ...]) -> str:
    """Return `value` as TOML and JSON write it."""
    import json  # only needed for messages and documentation

    return json.dumps(value, ensure_ascii=False)


class Hidden(str):
    """A text that replaces a secret value in a message."""


def shown(value: object) -> str:
    """Return a TOML value as an error message quotes it, cut to the length of a line."""
    match value:
        case Hidden():
            return str(value)
        case bool():
            return "true" if value else "false"
        case str():
            text = quoted(value)
            return text if len(text) <= 60 else f'{text[:56]}..."'
        case dict():
            return "a table"
        case list():
            return "an array"
        case _:
            return str(value)[:60]


def optional(kind: SettingKind, absent: object) -> SettingKind:
    """Return a kind for `kind` or "none", which reads as `absent`."""

    def read(value: object) -> Any:
        return absent if value == NONE else kind.read(value)

    def show(value: object) -> str:
        return shown(NONE) if value == absent else kind.show(value)

    return SettingKind(f"{kind.word} or none", read, show)


def or_word(word: str, meaning: object, kind: SettingKind) -> SettingKind:
    """Return a kind for `kind` or `word`, which reads as `meaning`."""

    def read(value: object) -> Any:
        return meaning if value == word else kind.read(value)

    def show(value: object) -> str:
        return shown(word) if value == meaning else kind.show(value)

    return SettingKind(f"{word}, {kind.word}", read, show)


def count(least: int = 0, most: int = UNLIMITED_ITEMS) -> SettingKind:
    """Return a kind for whole numbers in [least, most]."""

    def read(value: object) -> int:
        if type(value) is not int or value < least:
            raise ValueMismatch(f"a whole number >= {least}", value)
        if value > most:
            raise ValueMismatch(f"a whole number <= {most}", value)
        return value

    return SettingKind("number", read, str)


def size(least_bytes: int = 0, most_bytes: int = UNLIMITED_BYTES, expected: str = _SIZE) -> SettingKind:
    """Return a kind for sizes in [least_bytes, most_bytes]."""

    def read(value: object) -> int:
        size_bytes = _amount(value, parse_size, expected)
        if size_bytes < least_bytes:
            raise ValueMismatch(f"a size of at least {format_size(least_bytes)}", value)
        if size_bytes > most_bytes:
            raise ValueMismatch(f"a size of at most {format_size(most_bytes)}", value)
        return size_bytes

    return SettingKind("size", read, _show_size)


def choice(values: dict[str, object]) -> SettingKind:
    """Return a kind for one of a few words; case and `_` do not matter, so Kestrel's spellings ("WriteAvoid") are
    accepted.
    """
    words = [f'"{word}"' for word in values]  # of plain letters
    expected = ", ".join(words[:-1]) + " or " + words[-1]
    known = {word.replace("_", ""): meaning for word, meaning in values.items()}

    def read(value: object) -> object:
        folded = value.lower().replace("_", "") if isinstance(value, str) else ""
        if folded not in known:
            raise ValueMismatch(expected, value)
        return known[folded]

    def show(value: object) -> str:
        return next(shown(word) for word, meaning in values.items() if meaning == value)

    return SettingKind(" / ".join(words), read, show)


def words(*values: str) -> SettingKind:
    return choice({value: value for value in values})


def _amount(value: object, parse: Callable[[str], int], expected: str) -> int:
    if type(value) is int and value >= 0:
        return value
    if isinstance(value, str):
        try:
            return parse(value)
        except ValueError:
            pass
    raise ValueMismatch(expected, value)


def _show_size(size_bytes: int) -> str:
    return shown(format_size(size_bytes))


def _show_duration(duration_ms: int) -> str:
    return shown(format_duration(duration_ms))


def _read_duration(value: object) -> int:
    expected = 'a duration such as 1500, "30s" or "none"'
    return _within(_amount(value, parse_duration, expected), value)


def duration_from(least_ms: int) -> SettingKind:
    """Return a kind for durations of at least `least_ms`, or none."""

    def read(value: object) -> int:
        duration_ms = _read_duration(value)
        if 0 < duration_ms < least_ms:
            raise ValueMismatch(f'a duration of at least {format_duration(least_ms)}, or "none"', value)
        return duration_ms

    return optional(SettingKind("duration", read, _show_duration), 0)


def _within(duration_ms: int, value: object) -> int:
    if duration_ms > DURATION_MS_MAX:
        raise ValueMismatch(f"a duration of at most {format_duration(DURATION_MS_MAX)}", value)
    return duration_ms


def _read_delays(value: object) -> tuple[int, ...]:
    """Read delays in ms; () for a delay of 0."""
    given = value if isinstance(value, list) else [value]
    if not 0 < len(given) <= DELAYS_MAX:
        raise ValueMismatch(f"1 to {DELAYS_MAX} durations", value)
    delays_ms = tuple(_read_duration(delay) for delay in given)
    return delays_ms if any(delays_ms) else ()


def _show_delays(delays_ms: tuple[int, ...]) -> str:
    shown_each = [_show_duration(delay_ms) for delay_ms in delays_ms]
    return shown_each[0] if len(shown_each) == 1 else f"[{', '.join(shown_each)}]"


def _read_sync(value: object) -> int:
    match value:
        case "always":
            return SYNC_ALWAYS
        case "os" | "none":
            return SYNC_OS
    return _within(_amount(value, parse_duration, '"always", "os" or a duration such as "50ms"'), value)


def _show_sync(sync_ms: int) -> str:
    return {SYNC_ALWAYS: shown("always"), SYNC_OS: shown("os")}.get(sync_ms) or _show_duration(sync_ms)


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueMismatch("true or false", value)
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueMismatch("a text that is not empty", value)
    return value


def _read_host(value: object) -> str:
    if not isinstance(value, str) or not is_host(value):
        raise ValueMismatch("a host name or an address without a port", value)
    return value


def _read_port(value: object) -> int:
    if type(value) is not int or not 0 <= value <= PORT_MAX:
        raise ValueMismatch(f"a port from 0 to {PORT_MAX}", value)
    return value


def _read_file_mode(value: object) -> int:
    if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
        raise ValueMismatch('three octal digits such as "0660"', value)
    return int(value, 8)


def _read_queue_name(value: object) -> str:
    if not isinstance(value, str) or name_error(value):
        raise ValueMismatch(f'a queue name without blanks, ".", "/" and "~", at most {NAME_BYTES_MAX} bytes', value)
    return value


def _read_address(value: object) -> Address:
    expected = '"HOST:PORT", "[::1]:PORT" or "unix:PATH"'
    if not isinstance(value, str):
        raise ValueMismatch(expected, value)
    try:
        return parse_address(value)
    except ValueError:
        raise ValueMismatch(expected, value) from None


def _read_tcp_address(value: object) -> str:
    """Read the address of a machine, as text."""
    expected = '"HOST:PORT" or "[::1]:PORT"'
    try:
        address = parse_address(value) if isinstance(value, str) else None
    except ValueError:
        address = None
    if not isinstance(address, TcpAddress) or not address.port:
        raise ValueMismatch(expected, value)
    return format_address(address)


def _read_etcd_url(value: object) -> str:
    """Read the URL of an etcd."""
    try:
        if isinstance(value, str) and value.startswith(("http://", "https://")):
            scheme, _, address = value.partition("://")
            return f"{scheme}://{_read_tcp_address(address.rstrip('/'))}"
    except ValueMismatch:
        pass
    raise ValueMismatch('"http://HOST:PORT" or "https://HOST:PORT"', value)


def _array(read: Callable[[object], Any], what: str) -> Callable[[object], tuple[Any, ...]]:
    def read_all(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueMismatch(f"an array of {what}", value)
        return tuple(read_one(at, element) for at, element in enumerate(value))

    def read_one(at: int, element: object) -> Any:
        try:
            return read(element)
        except ValueMismatch as wrong:
            raise ValueMismatch(wrong.expected, wrong.found, f"[{at}]") from None

    return read_all


def _read_pattern(value: object) -> str:
    """Read a pattern: a queue's name, or the beginning of names."""
    expected = 'a queue name, or the beginning of one and a "*"'
    if not isinstance(value, str) or not value or "*" in value[:-1]:
        raise ValueMismatch(expected, value)
    if value != "*" and name_error(value.removesuffix("*")):
        raise ValueMismatch(expected, value)
    return value


def _read_uid(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**32 - 1:
        raise ValueMismatch("the uid of a user", value)
    return value


def _read_password_hash(value: object) -> str:
    """Read a password hash. The error does not show the value."""
    from staniel.broker.passwords import parse_hash  # loads OpenSSL

    try:
        parse_hash(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueMismatch("what `staniel user hash` prints", Hidden(str(error))) from None
    return str(value)


def _show_addresses(addresses: tuple[Address, ...]) -> str:
    return "[" + ", ".join(shown(format_address(address)) for address in addresses) + "]"


FLAG = SettingKind("true / false", _read_flag, shown)
OPPOSITE_FLAG = SettingKind("true / false", lambda value: not _read_flag(value), lambda value: shown(not value))
TEXT = SettingKind("text", _read_text, shown)
HOST = SettingKind("host", _read_host, shown)
PORT = SettingKind("port", _read_port, str)
FILE_MODE = SettingKind("mode", _read_file_mode, lambda value: shown(f"{value:04o}"))
QUEUE_NAME = SettingKind("queue name", _read_queue_name, shown)
QUEUE_NAMES = SettingKind("array of queue names", _array(_read_queue_name, "queue names"), quoted)
HOSTS = SettingKind("array of hosts", _array(_read_host, "hosts"), quoted)
ADDRESSES = SettingKind("array of addresses", _array(_read_address, "addresses"), _show_addresses)
TCP_ADDRESS = SettingKind("address", _read_tcp_address, shown)
ETCD_URLS = SettingKind("array of URLs", _array(_read_etcd_url, "URLs"), quoted)
DURATION = SettingKind("duration", _read_duration, _show_duration)
SYNC = SettingKind('"always" / "os" / duration', _read_sync, _show_sync)
MEMCACHE_DIALECT = choice({dialect.value: dialect for dialect in Dialect})
ROLE = choice({role.value: role for role in Role})
ROLES = SettingKind(
    "array of roles", _array(ROLE.read, "roles"), lambda roles: quoted(tuple(role.value for role in roles))
)
REFUSED_REQUEST = words("noreply", "multi_get", "delete", "flush_all")
REFUSED_REQUESTS = SettingKind("array of requests", _array(REFUSED_REQUEST.read, "requests"), quoted)
PATTERNS = SettingKind("array of queue names", _array(_read_pattern, "queue names"), quoted)
TEXTS = SettingKind("array of texts", _array(_read_text, "texts"), quoted)
UIDS = SettingKind("array of numbers", _array(_read_uid, "numbers"), lambda uids: str(list(uids)))
PASSWORD_HASH = optional(SettingKind("hash", _read_password_hash, lambda value: shown("(hidden)")), "")
JOURNAL_FORMAT = choice({format_.value: format_ for format_ in Format})
JOURNAL_DIALECT = choice({dialect.value: dialect for dialect in JournalDialect})

MAYBE_FLAG = optional(FLAG, None)
MAYBE_COUNT = optional(count(), None)
MAYBE_PORT = optional(PORT, None)
MAYBE_TEXT = optional(TEXT, "")
MAYBE_TCP_ADDRESS = optional(TCP_ADDRESS, "")
RETRY_DELAYS = optional(SettingKind("duration, array of durations", _read_delays, _show_delays), ())
PERCENT = count(0, 100)
MAYBE_QUEUE_NAME = optional(QUEUE_NAME, "")
MAYBE_DURATION = optional(DURATION, 0)
MAYBE_ITEMS = optional(count(), UNLIMITED_ITEMS)
REDO_LOG = or_word("checksums", CHECKSUMS_ONLY, optional(size(32 << 10, 4 << 30, _REDO_LOG), 0))
AUDIT_LOG = optional(size(64 << 10, 1 << 30, 'a size such as "4MB" or "none"'), 0)
MAYBE_BYTES = optional(size(expected='a size such as 65536, "64KB" or "none"'), UNLIMITED_BYTES)
ITEM_BYTES = optional(size(most_bytes=ITEM_BYTES_CEILING), ITEM_BYTES_CEILING)

KINDS = {
    Values.ITEMS: MAYBE_ITEMS,
    Values.DELIVERIES: optional(count(1), 0),
    Values.PERCENT: PERCENT,
    Values.SIZE: MAYBE_BYTES,
    Values.ITEM_SIZE: ITEM_BYTES,
    Values.DURATION: MAYBE_DURATION,
    Values.DELAYS: RETRY_DELAYS,
    Values.SYNC: SYNC,
    Values.FLAG: FLAG,
    Values.OPPOSITE_FLAG: OPPOSITE_FLAG,
    Values.QUEUE_NAME: MAYBE_QUEUE_NAME,
    Values.TEXT: MAYBE_TEXT,
    Values.FORMAT: JOURNAL_FORMAT,
    Values.DIALECT: JOURNAL_DIALECT,
}
"""The kind of each of the Values of QueueConfig."""
