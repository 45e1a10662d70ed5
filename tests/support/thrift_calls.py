"""How the tests speak thrift: calls written by thriftpy2's own client half, and its reading of replies."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType

from staniel.protocol.limits import Limits
from staniel.protocol.thrift.frames import framed
from staniel.protocol.thrift.parser import ThriftParser, ThriftState
from staniel.protocol.thrift.requests import ThriftRequest
from staniel.protocol.thrift.service import declaration, service

UPGRADE = "__can__finagle__trace__v3__"
SMALL = Limits(line_bytes_max=64, item_bytes_max=16)
SMALL_FRAME = 300


def message(
    method: str, *, seqid: int = 7, kind: int = TMessageType.CALL, strict: bool = True, **arguments: object
) -> bytes:
    """A call without a frame; a method that the service does not have goes without arguments."""
    sink = BytesIO()
    protocol = TBinaryProtocol(sink, strict_write=strict)
    protocol.write_message_begin(method, kind, seqid)
    protocol.write_struct(getattr(service, f"{method}_args", service.get_version_args)(**arguments))
    return sink.getvalue()


def call(method: str, **arguments: Any) -> bytes:
    """A call as a frame."""
    return framed(message(method, **arguments))


def header(client_id: str | None) -> bytes:
    """Finagle's request header, with a trace and a span that nobody reads."""
    sink = BytesIO()
    name = None if client_id is None else declaration.ClientId(client_id)
    TBinaryProtocol(sink).write_struct(declaration.RequestHeader(name))
    traced = b"\x0a\x00\x01" + bytes(8) + b"\x0a\x00\x02" + bytes(8) + b"\x02\x00\x05\x01"
    return traced + sink.getvalue()


def parse(data: bytes, limits: Limits = SMALL) -> tuple[list[ThriftRequest], ThriftState]:
    """The requests in `data` and the state they leave, fed whole and byte by byte, in frames of SMALL_FRAME bytes."""
    whole, dripped = ThriftParser(limits, SMALL_FRAME), ThriftParser(limits, SMALL_FRAME)
    requests = whole.feed(data)
    assert [request for byte in data for request in dripped.feed(bytes([byte]))] == requests
    assert dripped.state is whole.state
    assert dripped.pending_bytes == whole.pending_bytes
    return requests, whole.state


def hear(frame: bytes, upgraded: bool = False) -> tuple[str, int, Any]:
    """A reply as a client reads it: method, sequence number, and the result or the exception."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    source = BytesIO(frame[4:])
    if upgraded:
        assert source.read(1) == b"\0"
    protocol = TBinaryProtocol(source)
    method, kind, seqid = protocol.read_message_begin()
    if kind == TMessageType.EXCEPTION:
        result = TApplicationException()
    else:
        assert kind == TMessageType.REPLY
        result = getattr(service, f"{method}_result")()
    protocol.read_struct(result)
    assert source.read() == b""
    return method, seqid, result
