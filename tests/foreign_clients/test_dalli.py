"""The bytes that Dalli 3.2.8 and 5.0.6 send, and what they make of the answers.

Source: lib/dalli/protocol/request_formatter.rb and response_processor.rb of those versions. Dalli raises for every
first word that it does not expect; but `set_multi` reads on until MN and looks at nothing before it.
"""

from __future__ import annotations

import pytest

from tests.support.process import Server
from tests.support.wire import Wire, drain

OF_A_SET = (b"HD", b"NS", b"NF", b"EX")
OF_A_GET = (b"VA", b"EN", b"HD")


def test_a_set_is_stored(server: Server) -> None:
    with Wire(server.address) as wire:
        for request in (
            b"ms jobs 3 c F0 T60 MS\r\none",
            b"ms jobs 3 c F0 MS\r\ntwo",
            b"ms am9icw== 5 c b F0 MS\r\nthree",
        ):
            assert wire.ask(request) == b"HD c0"
    assert drain(server.address, "jobs") == [b"one", b"two", b"three"]


def test_set_multi_of_dalli_5_stores_all_it_says_it_stores(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"ms a 1 c F0 T0 MS q\r\n1\r\nms b 1 c F0 T0 MS q\r\n2\r\nms Yw== 1 c b F0 MS q\r\n3\r\nmn\r\n")
        assert wire.line() == b"MN"
    assert [drain(server.address, name) for name in "abc"] == [[b"1"], [b"2"], [b"3"]]


def test_get_multi_and_gets_give_what_dalli_takes_apart(server: Server) -> None:
    with Wire(server.address) as wire:
        for name in ("a", "b"):
            wire.put(name, b"item", b"2 0")
        wire.say(b"mg a v f k q s\r\nmg none v f k q s\r\nmg b v f c k q s\r\nmn\r\n")
        assert [wire.line(), wire.line()] == [b"VA 4 f2 ka s4", b"item"]
        words = wire.line().split()
        assert words[:3] == [b"VA", b"4", b"f2"] and int(words[3][1:]) > 0 and words[4:] == [b"kb", b"s4"]
        assert [wire.line(), wire.line()] == [b"item", b"MN"]


def test_a_get_with_metadata_is_answered(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"item", b"0 100")
        wire.put("jobs", b"next")
        wire.say(b"mg jobs/open v f c h l t u\r\n")
        head, block = wire.line().split(), wire.line()
        assert block == b"item" and [word[:1] for word in head[2:]] == [b"f", b"c", b"h", b"l", b"t"]
        assert head[4] == b"h0" and int(head[5][1:]) < 10 and 90 <= int(head[6][1:]) <= 100
        wire.get("jobs/abort")
        for key in (b"jobs/peek", b"jobs/open", b"jobs/close/open"):
            wire.say(b"mg %b v h t l\r\n" % key)
            expected = b"h0 t-1" if key == b"jobs/close/open" else b"h1 t"
            assert expected in wire.line(), key
            wire.line()


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"ms jobs 1 c F0 ME\r\nx", OF_A_SET),
        (b"ms jobs 1 c F0 MR\r\nx", OF_A_SET),
        (b"ms jobs 1 MA\r\nx", OF_A_SET),
        (b"ms jobs 1 MP\r\nx", OF_A_SET),
        (b"ms jobs 1 c F0 C5 T60 MS\r\nx", OF_A_SET),
        (b"ms d2l0aCBibGFuaw== 1 c b F0 MS\r\nx", OF_A_SET),
        (b"mg jobs v f T60", OF_A_GET),
        (b"mg jobs T60", OF_A_GET),
        (b"mg jobs v f c N30 R10", OF_A_GET),
        (b"md jobs T60 I", (b"HD", b"NF", b"EX")),
        (b"md jobs C5", (b"HD", b"NF", b"EX")),
        (b"ma n v D1 MI", (b"VA", b"NF", b"NS", b"EX")),
    ],
)
def test_what_a_queue_cannot_do_is_an_answer_that_dalli_raises_for(
    server: Server, request_: bytes, expected: tuple[bytes, ...]
) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"kept")
        assert wire.ask(request_).split()[0] not in (*expected, b"SERVER_ERROR")
        assert wire.ask(b"mn") == b"MN"
    assert drain(server.address, "jobs") == [b"kept"]
