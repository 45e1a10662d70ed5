"""The sans-IO client: what it says is what the server's parser reads, what it hears does not depend on the cuts."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.client.messages import open_request, read_item
from staniel.protocol.client.conversation import REPLY_LINE_BYTES_MAX, Conversation, ConversationState, encode, read
from staniel.protocol.client.replies import Answer, Error, Fault, Item, Items, ProtocolViolation, Reply
from staniel.protocol.client.requests import EXPIRES_MS_MIN, TTL_MS_END
from staniel.protocol.limits import Limits
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import (
    Confirm,
    Delete,
    Dialect,
    Flush,
    GetMany,
    Monitor,
    Quit,
    Request,
    Shutdown,
    Version,
)
from staniel.protocol.requests import Invalid
from tests.client.strategies import answers, kestrel_requests, memcached_requests
from tests.support.feeding import cut

cuts = st.lists(st.integers(0, 60), max_size=30)


def hear(conversation: Conversation, pieces: list[bytes]) -> list[Reply]:
    return [reply for piece in pieces for reply in conversation.receive(piece)]


def talk(said: bytes, *requests: Request) -> list[Reply]:
    """What `said` means after `requests`, heard whole and byte by byte."""
    whole, dripped = Conversation(), Conversation()
    whole.send(*requests)
    dripped.send(*requests)
    replies = whole.receive(said)
    one_by_one = hear(dripped, [said[at : at + 1] for at in range(len(said))])
    assert one_by_one == replies
    assert (dripped.state, dripped.unanswered) == (whole.state, whole.unanswered)
    return replies


@given(st.lists(memcached_requests, max_size=6), cuts)
def test_the_server_reads_the_requests_that_the_client_said(requests: list[Request], sizes: list[int]) -> None:
    parser = MemcacheParser(Dialect.MEMCACHED, Limits())
    said = Conversation().send(*requests)
    assert [request for piece in cut(said, sizes) for request in parser.feed(piece)] == requests


@given(st.lists(kestrel_requests, max_size=6), cuts)
def test_kestrel_reads_the_requests_that_it_has(requests: list[Request], sizes: list[int]) -> None:
    parser = MemcacheParser(Dialect.KESTREL, Limits())
    said = Conversation().send(*requests)
    assert [request for piece in cut(said, sizes) for request in parser.feed(piece)] == requests


@given(st.data(), st.sampled_from(Dialect), cuts)
def test_replies_cut_anywhere_mean_what_the_server_said(
    data: st.DataObject, dialect: Dialect, sizes: list[int]
) -> None:
    kind = kestrel_requests if dialect is Dialect.KESTREL else memcached_requests
    requests = data.draw(st.lists(kind, max_size=5))
    answered = [data.draw(answers(request, dialect)) for request in requests]
    conversation = Conversation()
    conversation.send(*requests)
    said = b"".join(reply for reply, _ in answered)
    assert hear(conversation, cut(said, sizes)) == [meaning for _, meanings in answered for meaning in meanings]
    assert (conversation.unanswered, conversation.pending_bytes) == (0, 0)


@given(st.lists(memcached_requests, max_size=3), st.binary(max_size=80), cuts)
def test_no_bytes_of_a_server_raise_and_no_cut_changes_what_they_mean(
    requests: list[Request], noise: bytes, sizes: list[int]
) -> None:
    whole, pieces = Conversation(), Conversation()
    whole.send(*requests)
    pieces.send(*requests)
    assert hear(pieces, cut(noise, sizes)) == whole.receive(noise)
    assert pieces.state is whole.state


@given(st.data())
def test_an_unfinished_reply_says_nothing_and_stays_unanswered(data: st.DataObject) -> None:
    request = data.draw(memcached_requests.filter(lambda request: not getattr(request, "noreply", False)))
    said, meaning = data.draw(answers(request, Dialect.MEMCACHED))
    conversation = Conversation()
    conversation.send(request)
    assert conversation.receive(said[:-1]) == meaning[:-1]
    assert conversation.unanswered == 1
    assert conversation.receive(said[-1:]) == meaning[-1:]


def test_a_pipeline_is_answered_in_order() -> None:
    requests = (Set("q", b"1"), Set("q", b"2", noreply=True), read("q", with_id=True), Flush("q"), Delete("q"))
    said = b"STORED\r\nVALUE q 7 1 42\r\n1\r\nEND\r\nEND\r\nDELETED\r\n"
    assert talk(said, *requests) == [Answer.STORED, Item(b"1", 7, 42, b"q"), Answer.END, Answer.DELETED]


def test_the_items_of_a_monitor_are_heard_as_they_come() -> None:
    conversation = Conversation()
    conversation.send(Monitor(b"q", "q", 5000, 2), Confirm("q", 1))
    assert conversation.receive(b"VALUE q 0 1\r\na\r\nEND\r\nVALUE q 0") == [Item(b"a", key=b"q")]
    assert conversation.unanswered == 2
    assert conversation.receive(b" 1\r\nb\r\nEND\r\nEND\r\nEND\r\n") == [Item(b"b", key=b"q"), Answer.END, Answer.END]


def test_items_that_came_before_a_refusal_are_not_forgotten() -> None:
    several = GetMany((read("a"), read("b")))
    replies = talk(b"VALUE a 0 1\r\n1\r\nCLIENT_ERROR b is open\r\nEND\r\n", several, several)
    assert replies == [Error(Fault.CLIENT, "b is open", (Item(b"1", key=b"a"),)), Items(())]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Set("q", b""), b"END\r\n"),
        (Set("q", b""), b"STORED\n"),
        (Set("q", b""), b"stored\r\n"),
        (read("q"), b"STORED\r\n"),
        (read("q"), b"VALUE r 0 1\r\nx\r\nEND\r\n"),
        (read("q"), b"VALUE q 0 -1\r\n"),
        (read("q"), b"VALUE q 0 2147483648\r\n"),
        (read("q"), b"VALUE q 0\r\n"),
        (read("q"), b"VALUE q 0 1\r\nxyEND\r\n!!"),
        (read("q"), b"VALUE q 0 1\r\nx\r\nVALUE"),
        (Version(), b"OK\r\n"),
        (memcache.FlushExpired("q"), b"-1\r\n"),
        (memcache.Status(), b"VALUE q 0 1\r\n"),
        (memcache.Stats(), b"items 3\r\n"),
        (Quit(), b"bye\r\n"),
        (Set("q", b"", noreply=True), b"STORED\r\n"),
    ],
)
def test_what_cannot_be_the_answer_ends_the_conversation(request_: Request, said: bytes) -> None:
    (reply,) = talk(said + b"END\r\nEND\r\n", request_)
    assert isinstance(reply, ProtocolViolation)
    conversation = Conversation()
    conversation.send(request_)
    conversation.receive(said)
    assert conversation.state is ConversationState.ERROR
    assert conversation.receive(b"END\r\n") == []


def test_a_line_that_does_not_end_is_not_kept_for_ever() -> None:
    conversation = Conversation()
    conversation.send(read("q"))
    assert conversation.receive(b"V" * REPLY_LINE_BYTES_MAX) == []
    (reply,) = conversation.receive(b"V")
    assert isinstance(reply, ProtocolViolation)


def test_a_promised_length_costs_nothing_until_it_arrives() -> None:
    conversation = Conversation()
    conversation.send(read("q"))
    assert conversation.receive(b"VALUE q 0 2147483647\r\nab") == []
    assert conversation.pending_bytes < 100


@pytest.mark.parametrize("name", ["", "a b", "a\r\nflush_all", "a\n", "a\r", "→"])
def test_a_name_that_would_end_its_word_early_is_refused(name: str) -> None:
    for request in (Set(name, b""), Delete(name), Flush(name), Confirm(name, 1), Monitor(b"q", name, 0)):
        with pytest.raises(ValueError):
            encode(request)
    with pytest.raises(ValueError):
        read(name)


def test_a_slash_in_a_name_would_be_an_option() -> None:
    with pytest.raises(ValueError):
        read("jobs/open")


@pytest.mark.parametrize(
    "request_",
    [
        Set("q", b"", flags=-1),
        Set("q", b"", flags=2**32),
        Set("q", b"", ttl_ms=TTL_MS_END),
        Set("q", b"", expires_ms=EXPIRES_MS_MIN - 1),
        Set("q", b"", expires_ms=-1),
        Monitor(b"q", "q", -1000),
        Confirm("q", 2**31),
        GetMany(()),
        GetMany((read("a"), read("b", with_id=True))),
        Invalid(b""),
    ],
)
def test_what_the_wire_cannot_say_is_refused_and_nothing_is_expected(request_: Request) -> None:
    conversation = Conversation()
    with pytest.raises(ValueError):
        conversation.send(Version(), request_)
    assert conversation.unanswered == 0


@pytest.mark.parametrize(("ttl_ms", "word"), [(1, b"1"), (1000, b"1"), (1001, b"2"), (0, b"-1"), (-5, b"-1")])
def test_a_life_is_rounded_up_to_seconds_and_an_ended_one_is_not_for_ever(ttl_ms: int, word: bytes) -> None:
    assert encode(Set("q", b"", ttl_ms=ttl_ms)) == b"set q 0 %b 0\r\n\r\n" % word


@pytest.mark.parametrize(
    "how", [{"peek": True, "open": True}, {"abort": True, "close": True}, {"peek": True, "abort": True}]
)
def test_reads_that_exclude_each_other_are_refused(how: dict[str, bool]) -> None:
    with pytest.raises(ValueError):
        read("q", **how)


def test_quit_and_shutdown_wait_for_no_answer() -> None:
    conversation = Conversation()
    assert conversation.send(Quit(), Shutdown()) == b"quit\r\nshutdown\r\n"
    assert conversation.unanswered == 0


ENDED = [b"STORED\r\n", b"NOT_STORED\r\n", b"DELETED\r\n", b"NOT_FOUND\r\n", b"END\r\n"]
MANY = [Set("q", b"a"), memcache.ConfirmItem("q", 1), memcache.AbortItem("q", 1), read("q", open=True)]


@given(st.lists(st.sampled_from(MANY), min_size=2, max_size=9), st.lists(st.sampled_from(ENDED), max_size=9))
def test_many_lines_that_are_alike_are_heard_like_each_by_itself(requests: list[Request], said: list[bytes]) -> None:
    talk(b"".join(sorted(said)), *requests)
    talk(b"".join(sorted(said))[:-3], *requests)


def test_the_replies_to_many_puts_are_heard_together() -> None:
    stored = talk(b"STORED\r\n" * 5 + b"NOT_STORED\r\nSTORED\r\n", *[Set("q", b"")] * 7)
    assert stored == [Answer.STORED] * 5 + [Answer.NOT_STORED, Answer.STORED]
    assert talk(b"STORED\r\n" * 3, *[Set("q", b"")] * 2)[:2] == [Answer.STORED] * 2


heads = st.lists(st.sampled_from([*b"VALUE q/open 0123456789+-_", *b"  \r\n\t"]), max_size=30).map(bytes)
counts = st.sampled_from(
    [b"0", b"3", b"03", b"+3", b"-7", b"1_0", b"", b"\t3", b"4294967295", b"0" * 10 + b"3", b"9" * 21]
)
item_replies = st.builds(
    lambda key, flags, length, number, data, end: (
        b"VALUE %b %b %b %b\r\n%b%b" % (key, flags, length, number, data, end)
    ),
    st.sampled_from([b"q/open", b"q", b"p/open"]),
    *(counts, counts, counts),
    st.sampled_from([b"abc", b"", b"\r\n\r\n"]),
    st.sampled_from([b"\r\nEND\r\n", b"\r\nEND\r\nEND\r\n", b"\r\nEND\n", b""]),
)


@given(heads | item_replies | st.sampled_from([b"END\r\n", b"END\r\nEND\r\n", b"SERVER_ERROR q\r\n"]))
def test_the_short_way_to_read_an_item_reads_nothing_else_than_the_conversation(said: bytes) -> None:
    request, _ = open_request("q", 0)
    short = read_item(said, request)
    if short is not None:
        assert talk(said, request) == [short]


@given(
    st.lists(
        st.sampled_from([read("q", open=True), read("q"), read("p", open=True), *MANY[:2]]), min_size=2, max_size=6
    ),
    st.lists(item_replies | st.sampled_from([*[b"VALUE q/open 1 3 5\r\nabc\r\nEND\r\n"] * 4, *ENDED]), max_size=7),
    st.integers(0, 30),
)
def test_items_that_are_read_together_are_those_that_are_read_singly(
    requests: list[Request], said: list[bytes], lacking: int
) -> None:
    together, singly = Conversation(), Conversation()
    data = b"".join(said)
    data = data[: len(data) - lacking]
    with patch.object(Conversation, "_read_items", lambda self, data, at, replies: at):
        singly.send(*requests)
        expected = singly.receive(data)
    together.send(*requests)
    assert together.receive(data) == expected
    assert together.state is singly.state and together.unanswered == singly.unanswered
    assert together.pending_bytes == singly.pending_bytes


def test_many_items_are_heard_together() -> None:
    said = b"".join(b"VALUE q/open 7 3 %d\r\nabc\r\nEND\r\n" % number for number in range(5)) + b"END\r\n"
    conversation = Conversation()
    conversation.send(*[read("q", open=True, with_id=True)] * 6)
    with patch.object(Conversation, "_read_item", None):
        replies = conversation.receive(said)
    assert replies == [*(Item(b"abc", 7, number, b"q/open") for number in range(5)), Answer.END]


def test_the_usual_item_is_read_in_the_short_way() -> None:
    request, text = open_request("q", 0)
    assert (text, Conversation().send(request)) == (b"gets q/open\r\n", text)
    assert read_item(b"VALUE q/open 7 3 12\r\nabc\r\nEND\r\n", request) == Item(b"abc", 7, 12, b"q/open")
    assert read_item(b"END\r\n", request) is None
