"""The output of the commands: sizes and durations for people, tables, and text that cannot control a terminal."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import stat
import sys
import termios
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import TextIO

SIZE_UNITS = ("B", "KB", "MB", "GB", "TB")
DURATION_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
OTHER_VERSION = "this command does not understand the server's reply: use the command of the server's version"
READ_WAIT_S = 2.0
PAYLOADS = ("none", "text", "hex", "base64")
ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


class PipeReader:
    """A watcher of the reader of the pipe `out`. All waits together take at most READ_WAIT_S; they take no time if
    `out` is no pipe.
    """

    def __init__(self, out: TextIO | None) -> None:
        self._left_s = READ_WAIT_S
        self._fd = -1
        try:
            if out is not None and stat.S_ISFIFO(os.fstat(out.fileno()).st_mode):
                self._fd = out.fileno()
        except (OSError, ValueError):
            pass  # a stream in memory

    def wait(self) -> None:
        """Wait until all output has been read. Raises BrokenPipeError if no reader is left for the rest."""
        if self._fd < 0:
            return
        flag = select.poll()
        flag.register(self._fd, 0)  # errors alone: the other end is closed
        began = monotonic()
        is_closed = False
        while int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder):
            if is_closed:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            if monotonic() - began > self._left_s:
                break
            is_closed = bool(flag.poll(1))  # bytes read before the close count as read
        self._left_s = max(0.0, self._left_s - (monotonic() - began))


def tolerate() -> None:
    """Print letters that the terminal's encoding lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printable(text: str) -> str:
    """Return `text` on one line, with unprintable characters as escapes: control characters, line ends, marks that
    change the direction of writing. Names and payloads come from clients, and a terminal executes control sequences.
    """
    if text.isprintable():
        return text
    return "".join([letter if letter.isprintable() else _escape(letter) for letter in text])


def _escape(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"  # a byte that is not UTF-8
    if letter in ESCAPES:
        return ESCAPES[letter]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable_bytes(data: bytes) -> str:
    """Return bytes that should be UTF-8 as `printable` text."""
    return printable(data.decode("utf-8", "surrogateescape"))


def human_size(size: int) -> str:
    """Return bytes in units of 1024: "0 B", "1.5 KB", "12 MB"."""
    amount, unit = float(size), 0
    while amount >= 1023.5 and unit < len(SIZE_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {SIZE_UNITS[unit]}" if unit and amount < 9.95 else f"{amount:.0f} {SIZE_UNITS[unit]}"


def human_duration(duration_ms: int) -> str:
    """Return the two largest units: "120 ms", "14 s", "2 h 14 m", "3 d 0 h"."""
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    left_s = duration_ms // 1000
    at = next(at for at, (_, factor) in enumerate(DURATION_UNITS) if left_s >= factor)
    unit, factor = DURATION_UNITS[at]
    whole, rest_s = divmod(left_s, factor)
    if factor == 1:
        return f"{whole} {unit}"
    smaller, smaller_factor = DURATION_UNITS[at + 1]
    return f"{whole} {unit} {rest_s // smaller_factor} {smaller}"


def utc_text(at_ms: int, form: str = "%Y-%m-%d %H:%M:%SZ") -> str:
    """Return a time in UTC; `journal at` accepts the default form. A time outside the calendar is a number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


def payload_text(data: bytes, form: str) -> str:
    """Return a payload in a form of PAYLOADS other than "none"."""
    if form == "text":
        return printable_bytes(data)
    return data.hex(" ") if form == "hex" else b64encode(data).decode()


def counted(count: int, one: str, several: str = "") -> str:
    """Return "1 item", "1,200 items"."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[str]) -> list[str]:
    """Return the lines of a table, with two blanks between columns; those in `left` are aligned left, others right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.ljust(width) if head in left else cell.rjust(width)
            for head, cell, width in zip(heads, cells, widths, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return [line(heads), *map(line, rows)]
