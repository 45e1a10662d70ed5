"""What each line of the text protocol asks for, what each error says, and what the replies look like."""

from __future__ import annotations

import pytest

from staniel.protocol.memcache.requests import Delete, Flush, Quit, Shutdown, Status, Version
from staniel.protocol.requests import Invalid
from staniel.protocol.text.commands import parse
from staniel.protocol.text.replies import TextReplies
from staniel.protocol.text.requests import TextConfirm, TextGet, TextMonitor, TextPeek, TextPut, TextRequest

NO_NAME = b"-Queue name required.\n"
BAD_TIMEOUT = b"-Error parsing timeout.\n"


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (b"put q", TextPut("q", ())),
        (b"put q 0", TextPut("q", (), 0)),
        (b"put q 300", TextPut("q", (), 300)),
        (b"put q -5", TextPut("q", (), -5)),
        (b"PuT Q 2147483647 more words", TextPut("Q", (), 2147483647)),
        (b"get q", TextGet("q")),
        (b"get q ", TextGet("q")),
        (b"get q 250", TextGet("q", 250)),
        (b"get q -1", TextGet("q", -1)),
        (b"get q/open", TextGet("q/open")),
        (b"get caf\xe9", TextGet("caf\u00e9")),
        (b"peek q", TextPeek("q")),
        (b"peek q 7", TextPeek("q", 7)),
        (b"monitor q 400", TextMonitor("q", 400)),
        (b"monitor q 0 9", TextMonitor("q", 0)),
        (b"confirm q 2", TextConfirm("q", 2)),
        (b"confirm q -2", TextConfirm("q", -2)),
        (b"flush q", Flush("q")),
        (b"delete q x", Delete("q")),
        (b"status", Status()),
        (b"status ReadOnly", Status("ReadOnly")),
        (b"version", Version()),
        (b"QUIT", Quit()),
        (b"shutdown", Shutdown()),
    ],
)
def test_a_line_asks_for(line: bytes, request_: TextRequest) -> None:
    assert parse(line) == request_


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        *((line, NO_NAME) for line in (b"put", b"get", b"peek", b"flush", b"delete", b"get ", b"get  q", b"put  q 5")),
        *((b"%b q %b" % (verb, word), BAD_TIMEOUT) for verb in (b"get", b"peek") for word in (b"x", b"1_0", b"9" * 99)),
        (b"get q  5", BAD_TIMEOUT),
        (b"put q soon", b"-Error parsing expiration time.\n"),
        (b"put q 2147483648", b"-Error parsing expiration time.\n"),
        (b"monitor", b"-Queue name & timeout required.\n"),
        (b"monitor q", b"-Queue name & timeout required.\n"),
        (b"confirm", b"-Queue name & count required.\n"),
        (b"confirm q", b"-Queue name & count required.\n"),
        (b"", b"-Unknown command: \n"),
        (b"   ", b"-Unknown command: \n"),
        (b" get q", b"-Unknown command: \n"),
        (b"Frobnicate Now", b"-Unknown command: frobnicate\n"),
        (b"get\tq", b"-Unknown command: get\tq\n"),
        (b"f\xe9\r", b"-Unknown command: f\xe9?\n"),
    ],
)
def test_an_error_says_what_is_wrong_and_leaves_the_connection_open(line: bytes, reply: bytes) -> None:
    invalid = parse(line)
    assert isinstance(invalid, Invalid)
    assert invalid.reply == reply
    assert not invalid.hang_up


@pytest.mark.parametrize(
    ("line", "reply"),
    [(b"monitor q soon", BAD_TIMEOUT), (b"monitor q ", None), (b"confirm q all", b"-Error parsing count.\n")],
)
def test_a_bad_number_closes_only_after_monitor_and_confirm(line: bytes, reply: bytes | None) -> None:
    invalid = parse(line)
    assert isinstance(invalid, Invalid)
    assert invalid.hang_up == (reply is not None)
    assert invalid.reply == (reply or b"-Queue name & timeout required.\n")


@pytest.mark.parametrize(
    ("reply", "wire"),
    [
        (TextReplies.number(3), b"+3\n"),
        (TextReplies.done, b"+0\n"),
        (TextReplies.none, b"*\n"),
        (TextReplies.item(b""), b":\n"),
        (TextReplies.item(b"caf\xe9"), b":caf\xe9\n"),
        (TextReplies.show("READONLY"), b":READONLY\n"),
        (TextReplies.error("a\r\nb \u65e5 \u00e9"), b"-a??b ? \xe9\n"),
        (TextReplies.not_that_many, b"-Not that many transactions open.\n"),
        (TextReplies.unknown_status, b"-Unknown status.\n"),
        (TextReplies.status_forbidden, b"-Status forbidden.\n"),
        (TextReplies.too_many_open(0), b"-Too many open transactions; limit=0\n"),
        (TextReplies.not_available("setItem"), b"-Server not available for operation setItem\n"),
    ],
)
def test_a_reply_is_one_line_that_ends_with_a_bare_line_feed(reply: bytes, wire: bytes) -> None:
    assert reply == wire


def test_an_item_with_line_feeds_is_shown_unchanged_on_several_lines() -> None:
    assert TextReplies.item(b"a\nb\r\n") == b":a\nb\r\n\n"
