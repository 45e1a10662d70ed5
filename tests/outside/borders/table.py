"""The notation of the tables: bytes in hexadecimal, and numbers at the ends of their fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Files = dict[str, bytes]
State = dict[str, object]

# The ends of the fields, as they stand in little-endian files.
I32 = {
    0: "00000000",
    1: "01000000",
    255: "ff000000",
    2**31 - 1: "ffffff7f",
    -1: "ffffffff",
    -(2**31): "00000080",
}
I64 = {
    0: "0000000000000000",
    1: "0100000000000000",
    2**31 - 1: "ffffff7f00000000",
    2**31: "0000008000000000",
    2**32: "0000000001000000",
    2**63 - 1: "ffffffffffffff7f",
    -1: "ffffffffffffffff",
    -2: "feffffffffffffff",
    -(2**63): "0000000000000080",
}


class Border(NamedTuple):
    """`files`: what lies in the folder; `wanted`: what it says. `why`: by which decision, where the document is silent
    or the server differs from it. `is_bounded`: a number claims far more than the file has.
    """

    format: str
    opcode: str
    name: str
    files: Files
    wanted: State
    why: str = ""
    is_bounded: bool = False

    @property
    def title(self) -> str:
        return f"{self.format}-{self.opcode}-{self.name}".replace(" ", "_")


def data(text: str) -> bytes:
    """Bytes written in hexadecimal, with blanks where fields end."""
    return bytes.fromhex(text)


def cuts(text: str) -> Iterable[tuple[int, str]]:
    """Of a record every beginning that is not the whole: (bytes, the beginning)."""
    whole = data(text)
    return [(count, whole[:count].hex()) for count in range(len(whole))]
