"""How far a struct in thrift's binary protocol reaches, and whether it may be decoded at all.

Knows the widths of the types, and that a peer lies. Refuses to know what the fields are for. The library that decodes
believes every length: it returns what is left where a string is cut short, counts to two billion where elements have no
width, and reads a string as a list where a list is declared. So nothing is decoded that has not been walked over here.
"""

from __future__ import annotations

from struct import Struct
from struct import error as CutShort

from thriftpy2.thrift import TType

DEPTH_MAX = 16
"""Our own structs need three; fields that we skip may hold a little more."""

ELEMENTS_MAX = 1 << 13
"""Fields and elements of one struct, all levels together: some 10 ms of decoding. Who has more to put sends several
calls.
"""

NESTED_ELEMENTS = 16
"""A struct, list or map inside another one counts as so many: the library takes 15 us to build or to skip one."""

_WIDTHS = {TType.BOOL: 1, TType.BYTE: 1, TType.I16: 2, TType.I32: 4, TType.I64: 8, TType.DOUBLE: 8}
_BYTE = Struct("!b")
_FIELD_ID = Struct("!h")
_SIZE = Struct("!i")
_ELEMENTS = Struct("!bi")
_PAIRS = Struct("!bbi")

Declared = dict[int, tuple[int, int]]
"""Of each field that will be decoded: its type on the wire and, of a list or set, its elements' type (else 0)."""


class Malformed(ValueError):
    """Bytes that are no struct, or not the declared one. Never leaves the parser."""


def end_of_struct(data: bytes, at: int, declared: Declared) -> int:
    """Where the struct that begins at `at` ends. Raises Malformed."""
    try:
        return _Walk(data).struct(at, 0, declared)
    except CutShort:
        raise Malformed("cut short") from None


class _Walk:
    """Each method goes over one value and returns where the next one begins.

    That may be beyond the end: every struct still has its stop byte to come, and reading that raises CutShort.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._elements = 0

    def struct(self, at: int, depth: int, declared: Declared) -> int:
        self._descend(depth)
        while True:
            (kind,) = _BYTE.unpack_from(self._data, at)
            if kind == TType.STOP:
                return at + 1
            (field_id,) = _FIELD_ID.unpack_from(self._data, at + 1)
            at += 3
            self._count(1)
            self._compare(at, kind, declared.get(field_id))
            at = self._value(kind, at, depth + 1)

    def _value(self, kind: int, at: int, depth: int) -> int:
        width = _WIDTHS.get(kind)
        if width is not None:
            return at + width
        if kind == TType.STRING:
            return self._strings(at, 1)
        if kind == TType.STRUCT:
            return self.struct(at, depth, {})
        if kind in (TType.LIST, TType.SET):
            return self._list(at, depth)
        if kind == TType.MAP:
            return self._map(at, depth)
        raise Malformed(f"unknown type {kind}")

    def _list(self, at: int, depth: int) -> int:
        self._descend(depth)
        kind: int
        count: int
        kind, count = _ELEMENTS.unpack_from(self._data, at)
        at += _ELEMENTS.size
        self._count(count)
        width = _WIDTHS.get(kind)
        if width is not None:
            return at + width * count
        if kind == TType.STRING:
            return self._strings(at, count)
        for _ in range(count):
            at = self._value(kind, at, depth + 1)
        return at

    def _map(self, at: int, depth: int) -> int:
        self._descend(depth)
        key_kind, kind, count = _PAIRS.unpack_from(self._data, at)
        at += _PAIRS.size
        self._count(count)
        for _ in range(count):
            at = self._value(key_kind, at, depth + 1)
            at = self._value(kind, at, depth + 1)
        return at

    def _strings(self, at: int, count: int) -> int:
        """The one loop that an honest put runs thousands of times."""
        data, unpack = self._data, _SIZE.unpack_from
        for _ in range(count):
            (size,) = unpack(data, at)
            if size < 0:
                raise Malformed(f"a string of {size} bytes")
            at += _SIZE.size + size
        return at

    def _compare(self, at: int, kind: int, declared: tuple[int, int] | None) -> None:
        """A field to be decoded must be what it is declared to be; an empty list may call its elements anything."""
        if declared is None:
            return
        wanted, elements_wanted = declared
        if kind != wanted:
            raise Malformed(f"a field of type {kind}, not {wanted}")
        if not elements_wanted:
            return
        elements, count = _ELEMENTS.unpack_from(self._data, at)
        if count and elements != elements_wanted:
            raise Malformed(f"elements of type {elements}, not {elements_wanted}")

    def _count(self, count: int) -> None:
        self._elements += count
        if count < 0 or self._elements > ELEMENTS_MAX:
            raise Malformed(f"more than {ELEMENTS_MAX} elements" if count >= 0 else f"{count} elements")

    def _descend(self, depth: int) -> None:
        if depth:
            self._count(NESTED_ELEMENTS)
        if depth > DEPTH_MAX:
            raise Malformed(f"nested deeper than {DEPTH_MAX}")
