"""The replies of the thrift service as whole frames. Importing this file imports thriftpy2.

Every reply repeats the sequence number of its call and, after an upgrade, begins with finagle's header.
"""

from __future__ import annotations

from collections.abc import Iterable

from thriftpy2.thrift import TApplicationException, TMessageType, TPayload

from staniel.protocol.thrift.frames import LENGTH_BYTES, frame_length, framed
from staniel.protocol.thrift.requests import (
    ThriftAbort,
    ThriftCall,
    ThriftConfirm,
    ThriftCurrentStatus,
    ThriftGet,
    ThriftPeek,
    ThriftPut,
    ThriftStatus,
    ThriftVersion,
)
from staniel.protocol.thrift.service import (
    MalformedStruct,
    application_exception,
    declaration,
    read_head,
    service,
    write_message,
)

CAN_UPGRADE = "__can__finagle__trace__v3__"
UNKNOWN_METHOD = TApplicationException.UNKNOWN_METHOD
INVALID_MESSAGE_TYPE = TApplicationException.INVALID_MESSAGE_TYPE
INTERNAL_ERROR = TApplicationException.INTERNAL_ERROR
PROTOCOL_ERROR = TApplicationException.PROTOCOL_ERROR

_EMPTY_STRUCT = b"\0"


def _frame(message: bytes, upgraded: bool) -> bytes:
    """Put a message into a frame. On an upgraded connection finagle's response header goes first; ours has no fields,
    so it is the stop byte.
    """
    return framed(_EMPTY_STRUCT + message if upgraded else message)


def exception(method: str, seqid: int, upgraded: bool, kind: int, why: str) -> bytes:
    """Return a TApplicationException; `kind` is its type."""
    payload = application_exception(kind, why)
    return _frame(write_message(method, TMessageType.EXCEPTION, seqid, payload), upgraded)


def internal_error(method: str, seqid: int, upgraded: bool, why: str) -> bytes:
    """Return the exception of type 6, as Kestrel did for every refusal."""
    return exception(method, seqid, upgraded, INTERNAL_ERROR, f"Internal error processing {method}: {why}")


def refusal(asked: bytes, why: str) -> tuple[bytes, bool] | None:
    """Return the reply to the first call in `asked`, what a client that is not served has sent so far, and whether
    nothing follows it; None while its head is not whole. Finagle's question is answered as by a server that does not
    know it: the call follows then. Bytes that are no call have no reply.
    """
    words, at = b"", 0
    while len(asked) - at > LENGTH_BYTES:
        size, begin = frame_length(asked, at), at + LENGTH_BYTES
        message = asked[begin : begin + max(0, size)]
        try:
            head = read_head(message, 0)
        except MalformedStruct:
            return None if len(message) < size else (words, True)
        if head.method != CAN_UPGRADE:
            return words + internal_error(head.method, head.seqid, False, why), True
        words += exception(head.method, head.seqid, False, UNKNOWN_METHOD, f"Invalid method name: '{head.method}'")
        at = begin + size
    return (words, False) if words and at >= len(asked) else None


def _reply(call: ThriftCall, **success: object) -> bytes:
    payload: TPayload = getattr(service, f"{call.method}_result")(**success)
    return _frame(write_message(call.method, TMessageType.REPLY, call.seqid, payload), call.upgraded)


class ThriftReplies:
    """The replies, one for each kind of result; `failure` replies to any call."""

    upgrade = _frame(write_message(CAN_UPGRADE, TMessageType.REPLY, 0, service.flush_all_queues_result()), False)
    """The reply to ThriftUpgrade: the last frame without a header."""

    @staticmethod
    def number(call: ThriftPut | ThriftConfirm | ThriftAbort, n: int) -> bytes:
        """Return the number of items stored, or still open."""
        return _reply(call, success=n)

    @staticmethod
    def items(call: ThriftGet, items: Iterable[tuple[bytes, int]]) -> bytes:
        """Return each item's data and id; the id is 0 if the item is already removed."""
        return _reply(call, success=[declaration.Item(data, item_id) for data, item_id in items])

    @staticmethod
    def queue_info(
        call: ThriftPeek,
        *,
        head: bytes | None,
        items: int,
        size_bytes: int,
        journal_bytes: int,
        age_ms: int,
        waiters: int,
        open_reads: int,
    ) -> bytes:
        """Return a queue's figures; `head` is None if the queue is empty."""
        info = declaration.QueueInfo(head, items, size_bytes, journal_bytes, age_ms, waiters, open_reads)
        return _reply(call, success=info)

    @staticmethod
    def status(call: ThriftCurrentStatus, status: ThriftStatus) -> bytes:
        return _reply(call, success=status.value)

    @staticmethod
    def version(call: ThriftVersion, text: str) -> bytes:
        return _reply(call, success=text)

    @staticmethod
    def done(call: ThriftCall) -> bytes:
        """Reply to flush_queue, flush_all_queues, delete_queue and set_status."""
        return _reply(call)

    @staticmethod
    def failure(call: ThriftCall, why: str) -> bytes:
        """Refuse the call; the connection stays open."""
        return internal_error(call.method, call.seqid, call.upgraded, why)
