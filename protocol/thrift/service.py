"""The structs and messages of the thrift service, read and written with thriftpy2's binary protocol.

Knows the declaration in `kestrel.thrift` and how its structs become bytes. Refuses to know what the methods mean, and
frames. Importing this file imports thriftpy2 and reads the declaration (together some 70 ms): only a server that
listens for thrift does so.
"""

from __future__ import annotations

import os.path
from functools import cache
from io import BytesIO
from struct import error as CutShort
from typing import Any

import thriftpy2
from msgspec import Struct
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TApplicationException, TPayload, TType

from staniel.protocol.thrift.bounds import Declared, Malformed, end_of_struct

METHOD_CHARACTERS_MAX = 64
"""The longest name has 26; an unknown one is repeated in the answer."""

declaration: Any = thriftpy2.load(os.path.join(os.path.dirname(__file__), "kestrel.thrift"))
service: Any = declaration.Kestrel

_WIRE_TYPES = {TType.BINARY: TType.STRING}


class MessageHead(Struct, frozen=True, gc=False):
    """The beginning of a message; `end` is where its struct begins. `kind` is a number of thriftpy2's TMessageType."""

    method: str
    kind: int
    seqid: int
    end: int


def read_head(data: bytes, at: int) -> MessageHead:
    """The head of the message at `at`, strict or not. Raises Malformed: without a head nobody can be answered."""
    source = BytesIO(data)
    source.seek(at)
    try:
        method, kind, seqid = TBinaryProtocol(source, strict_read=False).read_message_begin()
    except (TProtocolException, CutShort, UnicodeDecodeError):
        raise Malformed("not a thrift message") from None
    if len(method) > METHOD_CHARACTERS_MAX:
        raise Malformed(f"a method name longer than {METHOD_CHARACTERS_MAX}")
    return MessageHead(method, kind, seqid, source.tell())


def read_struct(kind: type[TPayload], data: bytes, at: int) -> tuple[Any, int]:
    """The struct of that type at `at`, and where it ends. Raises Malformed."""
    end = end_of_struct(data, at, _declared(kind))
    source = BytesIO(data)
    source.seek(at)
    payload = kind()
    TBinaryProtocol(source).read_struct(payload)
    assert source.tell() == end
    return payload, end


@cache
def _declared(kind: type[TPayload]) -> Declared:
    """The wire types of a struct's fields."""
    declared = {}
    for field_id, (field_type, _, *nested, _) in kind.thrift_spec.items():
        elements = nested[0] if nested and field_type in (TType.LIST, TType.SET) else 0
        declared[field_id] = _wire_type(field_type), _wire_type(elements)
    return declared


def _wire_type(kind: int) -> int:
    return _WIRE_TYPES.get(kind, kind)


def write_message(method: str, kind: int, seqid: int, payload: TPayload) -> bytes:
    """A strict message, without a frame."""
    sink = BytesIO()
    protocol = TBinaryProtocol(sink)
    protocol.write_message_begin(method, kind, seqid)
    protocol.write_struct(payload)
    return sink.getvalue()


def application_exception(kind: int, why: str) -> TPayload:
    """`kind` is a number of TApplicationException."""
    return TApplicationException(kind, why)
