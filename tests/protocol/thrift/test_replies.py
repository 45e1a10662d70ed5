"""Each reply byte for byte as Kestrel's, and as a client reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from staniel.protocol.limits import Limits
from staniel.protocol.requests import Invalid
from staniel.protocol.thrift.parser import ThriftParser
from staniel.protocol.thrift.replies import ThriftReplies
from staniel.protocol.thrift.requests import (
    ThriftAbort,
    ThriftCall,
    ThriftConfirm,
    ThriftCurrentStatus,
    ThriftDelete,
    ThriftFlush,
    ThriftFlushAll,
    ThriftGet,
    ThriftPeek,
    ThriftPut,
    ThriftSetStatus,
    ThriftStatus,
    ThriftVersion,
)
from staniel.protocol.thrift.service import declaration
from tests.support.thrift_calls import hear

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "thrift_conversations.json").read_text())
CALL = (7, "", False)


def reply_again(call: ThriftCall, result: Any) -> bytes:
    """Our answer with what a client read in Kestrel's."""
    if isinstance(call, ThriftPut | ThriftConfirm | ThriftAbort):
        return ThriftReplies.number(call, result.success)
    if isinstance(call, ThriftGet):
        return ThriftReplies.items(call, [(item.data, item.id) for item in result.success])
    return ThriftReplies.done(call)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_conversation_is_read_as_kestrel_read_it_and_answered_in_the_same_bytes(case: dict[str, Any]) -> None:
    parser = ThriftParser(Limits())
    for step in case["steps"]:
        sent = step["send"].encode("latin-1")
        (call,) = [request for byte in sent for request in parser.feed(bytes([byte]))]
        assert isinstance(call, ThriftCall)
        if "expect" in step:
            wire = step["expect"].encode("latin-1")
            method, seqid, result = hear(wire)
            assert (method, seqid) == (call.method, call.seqid)
            assert reply_again(call, result) == wire


def test_the_conversations_hold_replies_of_every_kind_but_three() -> None:
    methods = {
        request.method
        for case in CASES
        for step in case["steps"]
        for request in ThriftParser(Limits()).feed(step["send"].encode("latin-1"))
        if isinstance(request, ThriftCall)
    }
    every = {kind.method for kind in ThriftCall.__subclasses__()}
    assert every - methods == {"abort", "current_status"}
    assert len(every) == 11


INFO = b"\x80\x01\x00\x02\x00\x00\x00\x04peek\x00\x00\x00\x07\x0c\x00\x00"
TAIL = (
    *(b"\x0a\x00\x02" + (2).to_bytes(8, "big"), b"\x0a\x00\x03" + (5).to_bytes(8, "big")),
    *(b"\x0a\x00\x04" + (47).to_bytes(8, "big"), b"\x0a\x00\x05" + (9).to_bytes(8, "big")),
    *(b"\x08\x00\x06\x00\x00\x00\x01", b"\x08\x00\x07\x00\x00\x00\x03", b"\x00\x00"),
)


def peek_reply(head: bytes | None) -> bytes:
    return ThriftReplies.queue_info(
        ThriftPeek(*CALL, "q"),
        head=head,
        items=2,
        size_bytes=5,
        journal_bytes=47,
        age_ms=9,
        waiters=1,
        open_reads=3,
    )


def test_the_head_of_an_empty_queue_is_absent_and_an_empty_head_is_not() -> None:
    assert peek_reply(None)[4:] == INFO + b"".join(TAIL)
    assert peek_reply(b"")[4:] == INFO + b"\x0b\x00\x01\x00\x00\x00\x00" + b"".join(TAIL)
    assert peek_reply(b"abc")[4:] == INFO + b"\x0b\x00\x01\x00\x00\x00\x03abc" + b"".join(TAIL)
    assert hear(peek_reply(b"abc"))[2].success == declaration.QueueInfo(b"abc", 2, 5, 47, 9, 1, 3)


@pytest.mark.parametrize("status", list(ThriftStatus))
def test_a_status_is_answered_with_its_number(status: ThriftStatus) -> None:
    reply = ThriftReplies.status(ThriftCurrentStatus(*CALL), status)
    assert reply[4:] == b"\x80\x01\x00\x02\x00\x00\x00\x0ecurrent_status\x00\x00\x00\x07\x08\x00\x00" + bytes(
        [0, 0, 0, status.value, 0]
    )
    assert declaration.Status._VALUES_TO_NAMES[status.value] == status.name


def test_the_version_is_answered_as_text() -> None:
    wire = b"\x80\x01\x00\x02\x00\x00\x00\x0bget_version\x00\x00\x00\x07\x0b\x00\x00\x00\x00\x00\x050.1.0\x00"
    assert ThriftReplies.version(ThriftVersion(*CALL), "0.1.0")[4:] == wire


@pytest.mark.parametrize(
    "call",
    [
        *(ThriftFlush(*CALL, "q"), ThriftFlushAll(*CALL), ThriftDelete(*CALL, "q")),
        ThriftSetStatus(*CALL, ThriftStatus.UP),
    ],
)
def test_a_void_method_is_answered_with_an_empty_result(call: ThriftCall) -> None:
    name = call.method.encode()
    message = b"\x80\x01\x00\x02" + len(name).to_bytes(4, "big") + name + b"\x00\x00\x00\x07\x00"
    assert ThriftReplies.done(call) == len(message).to_bytes(4, "big") + message


def test_items_of_any_bytes_and_the_largest_ids_come_back() -> None:
    items = [(bytes(range(256)), 0), (b"", 2**63 - 1), (b"\xff", -(2**63))]
    _, _, result = hear(ThriftReplies.items(ThriftGet(*CALL, "q", 3, 0, 1), items))
    assert [(item.data, item.id) for item in result.success] == items


def test_a_failure_is_an_exception_of_type_six_with_kestrels_words() -> None:
    call = ThriftPut(-1, "", False, "q", (b"x",), None)
    method, seqid, exception = hear(ThriftReplies.failure(call, "no \u00e9"))
    assert (method, seqid, exception.type) == ("put", -1, 6)
    assert exception.message == "Internal error processing put: no \u00e9"
    assert ThriftReplies.failure(call, "x").endswith(b"\x08\x00\x02\x00\x00\x00\x06\x00")


def test_an_upgraded_client_gets_a_header_before_every_reply_and_the_upgrade_itself_has_none() -> None:
    call = ThriftPeek(7, "me", True, "q")
    assert hear(ThriftReplies.failure(call, "x"), upgraded=True)[0] == "peek"
    assert hear(ThriftReplies.done(ThriftFlushAll(7, "me", True)), upgraded=True)[0] == "flush_all_queues"
    name = b"__can__finagle__trace__v3__"
    message = b"\x80\x01\x00\x02\x00\x00\x00\x1b" + name + b"\x00\x00\x00\x00\x00"
    assert ThriftReplies.upgrade == len(message).to_bytes(4, "big") + message


def test_an_unknown_method_is_answered_in_kestrels_bytes() -> None:
    (invalid,) = ThriftParser(Limits()).feed(b"\0\0\0\x11\x80\x01\x00\x01\x00\x00\x00\x04nope\x00\x00\x00\x07\x00")
    message = (
        b"\x80\x01\x00\x03\x00\x00\x00\x04nope\x00\x00\x00\x07"
        b"\x0b\x00\x01\x00\x00\x00\x1bInvalid method name: 'nope'\x08\x00\x02\x00\x00\x00\x01\x00"
    )
    assert isinstance(invalid, Invalid)
    assert invalid.reply == len(message).to_bytes(4, "big") + message
