"""The structs and messages of the thrift service, read and written with thriftpy2's binary protocol.

The service is declared in `kestrel.thrift`. thriftpy2 trusts every length that it reads: it returns a truncated string
as it is, counts to two billion where elements have no width, and reads a string as a list if a list is declared. So
`end_of_struct` walks over a struct before it is decoded, and refuses it if a length, a type or the depth is out of
bounds.

Importing this file imports thriftpy2 and reads the declaration (together some 70 ms): only a server with a thrift
listener does so.
"""

from __future__ import annotations

import os.path
import struct
from functools import cache
from io import BytesIO
from typing import Any

import thriftpy2
from msgspec import Struct
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TPayload, TType

METHOD_CHARACTERS_MAX = 64
"""The longest method name accepted. The longest known one has 26; an unknown one is repeated in the reply."""

DEPTH_MAX = 16
"""The deepest nesting. Our own structs need three; skipped fields may hold a little more."""

ELEMENTS_MAX = 1 << 13
"""The most fields and elements of one struct, all levels together: some 10 ms of decoding. A client with more to put
sends several calls.
"""

NESTED_ELEMENTS = 16
"""The count of a struct, list or map inside another one: the library takes 15 us to build or to skip one."""

_WIDTHS = {TType.BOOL: 1, TType.BYTE: 1, TType.I16: 2, TType.I32: 4, TType.I64: 8, TType.DOUBLE: 8}
_BYTE = struct.Struct("!b")
_FIELD_ID = struct.Struct("!h")
_SIZE = struct.Struct("!i")
_ELEMENTS = struct.Struct("!bi")
_PAIRS = struct.Struct("!bbi")

declaration: Any = thriftpy2.load(os.path.join(os.path.dirname(__file__), "kestrel.thrift"))
service: Any = declaration.Kestrel

_WIRE_TYPES = {TType.BINARY: TType.STRING}

Declared = dict[int, tuple[int, int]]
"""The declared types of each decoded field: its type on the wire and, of a list or set, its elements' type (else 0)."""


class MalformedStruct(ValueError):
    """Bytes that are no struct, or not the declared one. The parser catches this error."""


class MessageHead(Struct, frozen=True, gc=False):
    """The beginning of a message; `end` is where its struct begins. `kind` is a number of thriftpy2's TMessageType."""

    method: str
    kind: int
    seqid: int
    end: int


def read_head(data: bytes, at: int) -> MessageHead:
    """Return the head of the message at `at`, strict or not. Raises MalformedStruct: without a head there is no call to
    reply to.
    """
    source = BytesIO(data)
    source.seek(at)
    try:
        method, kind, seqid = TBinaryProtocol(source, strict_read=False).read_message_begin()
    except (TProtocolException, struct.error, UnicodeDecodeError):
        raise MalformedStruct("not a thrift message") from None
    if len(method) > METHOD_CHARACTERS_MAX:
        raise MalformedStruct(f"a method name longer than {METHOD_CHARACTERS_MAX}")
    return MessageHead(method, kind, seqid, source.tell())


def read_struct(kind: type[TPayload], data: bytes, at: int) -> tuple[Any, int]:
    """Return the struct of that type at `at`, and where it ends. Raises MalformedStruct."""
    end = end_of_struct(data, at, _declared(kind))
    source = BytesIO(data)
    source.seek(at)
    payload = kind()
    TBinaryProtocol(source).read_struct(payload)
    assert source.tell() == end
    return payload, end


@cache
def _declared(kind: type[TPayload]) -> Declared:
    """Return the wire types of a struct's fields."""
    declared = {}
    for field_id, (field_type, _, *nested, _) in kind.thrift_spec.items():
        elements = nested[0] if nested and field_type in (TType.LIST, TType.SET) else 0
        declared[field_id] = _wire_type(field_type), _wire_type(elements)
    return declared


def _wire_type(kind: int) -> int:
    return _WIRE_TYPES.get(kind, kind)


def write_message(method: str, kind: int, seqid: int, payload: TPayload) -> bytes:
    """Return a strict message, without a frame."""
    sink = BytesIO()
    protocol = TBinaryProtocol(sink)
    protocol.write_message_begin(method, kind, seqid)
    protocol.write_struct(payload)
    return sink.getvalue()


def application_exception(kind: int, why: str) -> TPayload:
    """Return an exception to write; `kind` is a number of TApplicationException."""
    return TApplicationException(kind, why)


def end_of_struct(data: bytes, at: int, declared: Declared) -> int:
    """Return where the struct that begins at `at` ends. Raises MalformedStruct."""
    try:
        return _Walk(data).struct(at, 0, declared)
    except struct.error:
        raise MalformedStruct("cut short") from None


class _Walk:
    """A walk over encoded values. Each method skips one value and returns where the next one begins.

    That may be beyond the end: every struct still has its stop byte, and reading that raises struct.error.
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
        raise MalformedStruct(f"unknown type {kind}")

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
        """Skip strings in a loop without calls: a put of many items runs it thousands of times."""
        data, unpack = self._data, _SIZE.unpack_from
        for _ in range(count):
            (size,) = unpack(data, at)
            if size < 0:
                raise MalformedStruct(f"a string of {size} bytes")
            at += _SIZE.size + size
        return at

    def _compare(self, at: int, kind: int, declared: tuple[int, int] | None) -> None:
        """Check the declared type of a field that will be decoded. The elements' type of an empty list is not
        checked.
        """
        if declared is None:
            return
        type_wanted, elements_wanted = declared
        if kind != type_wanted:
            raise MalformedStruct(f"a field of type {kind}, not {type_wanted}")
        if not elements_wanted:
            return
        elements, count = _ELEMENTS.unpack_from(self._data, at)
        if count and elements != elements_wanted:
            raise MalformedStruct(f"elements of type {elements}, not {elements_wanted}")

    def _count(self, count: int) -> None:
        self._elements += count
        if count < 0 or self._elements > ELEMENTS_MAX:
            raise MalformedStruct(f"more than {ELEMENTS_MAX} elements" if count >= 0 else f"{count} elements")

    def _descend(self, depth: int) -> None:
        if depth:
            self._count(NESTED_ELEMENTS)
        if depth > DEPTH_MAX:
            raise MalformedStruct(f"nested deeper than {DEPTH_MAX}")
