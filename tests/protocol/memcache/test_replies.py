"""Answers byte for byte, in both dialects."""

from __future__ import annotations

import pytest

from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memcache.replies import Replies, replies_for
from staniel.protocol.memcache.requests import Dialect

MEMCACHED = replies_for(Dialect.MEMCACHED)
KESTREL = replies_for(Dialect.KESTREL)
OPEN = Get(b"jobs/t=500/open", "jobs", 500, open=True)
WITH_ID = Get(b"caf\xe9", "café", with_id=True)


def test_a_dialect_has_one_instance() -> None:
    assert replies_for(Dialect.KESTREL) is KESTREL
    assert KESTREL is not MEMCACHED


@pytest.mark.parametrize("replies", [MEMCACHED, KESTREL])
def test_the_words_that_both_dialects_share(replies: Replies) -> None:
    assert replies.stored == b"STORED\r\n"
    assert replies.not_stored == b"NOT_STORED\r\n"
    assert replies.end == b"END\r\n"
    assert replies.deleted == b"DELETED\r\n"
    assert replies.reloaded("") == b"Reloaded config.\r\n"
    assert replies.ok == b"OK\r\n"
    assert replies.error == b"ERROR\r\n"
    assert replies.version("2.4.1") == b"VERSION 2.4.1\r\n"
    assert replies.number(12) == b"12\r\n"
    assert replies.stat("queue_q_items", 3) == b"STAT queue_q_items 3\r\n"


def test_a_missing_queue_is_deleted_for_kestrel_and_not_found_for_memcached() -> None:
    assert MEMCACHED.not_found == b"NOT_FOUND\r\n"
    assert KESTREL.not_found == b"DELETED\r\n"


def test_flush_all_has_its_own_words_in_kestrel() -> None:
    assert MEMCACHED.flushed_all == b"OK\r\n"
    assert KESTREL.flushed_all == b"Flushed all queues.\r\n"


def test_memcached_repeats_the_key_as_asked_for_and_the_flags() -> None:
    assert MEMCACHED.value(OPEN, b"a\r\nb", 4294967295, 7) == b"VALUE jobs/t=500/open 4294967295 4\r\na\r\nb\r\n"


def test_gets_carries_the_item_id_as_its_fifth_word() -> None:
    assert MEMCACHED.value(WITH_ID, b"", 1, 7) == b"VALUE caf\xe9 1 0 7\r\n\r\n"


def test_kestrel_names_the_bare_queue_and_no_flags_and_no_id() -> None:
    assert KESTREL.value(OPEN, b"x", 5, 7) == b"VALUE jobs 0 1\r\nx\r\n"
    assert KESTREL.value(WITH_ID, b"", 1, 7) == b"VALUE caf\xe9 0 0\r\n\r\n"


def test_errors_have_a_reason_for_memcached_and_none_for_kestrel() -> None:
    assert MEMCACHED.client_error("no") == b"CLIENT_ERROR no\r\n"
    assert MEMCACHED.server_error("disk full") == b"SERVER_ERROR disk full\r\n"
    assert KESTREL.client_error("no") == b"CLIENT_ERROR\r\n"
    assert KESTREL.server_error("disk full") == b"SERVER_ERROR\r\n"


def test_what_would_end_a_line_or_a_word_is_escaped_and_memcacheds_replies_are_ascii() -> None:
    assert MEMCACHED.client_error("→é\r\nSTORED 1%") == b"CLIENT_ERROR %E2%86%92%E9%0D%0ASTORED 1%\r\n"
    assert MEMCACHED.stat("queue_a b\rc_é%_items", "a b\n") == b"STAT queue_a%20b%0Dc_%E9%25_items a b%0A\r\n"
    assert KESTREL.stat("queue_a b\rc_é%_items", "a b\n") == b"STAT queue_a%20b%0Dc_\xe9%_items a b%0A\r\n"


def test_a_block_keeps_names_and_values_within_their_lines() -> None:
    values = [("children", "a+b c,a+é\r\nEND"), ("items", 1)]
    assert MEMCACHED.block("a\r\nEND é'", values) == (
        b"queue 'a%0D%0AEND%20%E9'' {\r\n  children=a+b c,a+%E9%0D%0AEND\r\n  items=1\r\n}\r\n"
    )
    assert KESTREL.block("a\r\nEND é'", values) == (
        b"queue 'a%0D%0AEND%20\xe9'' {\r\n  children=a+b c,a+\xe9%0D%0AEND\r\n  items=1\r\n}\r\n"
    )
    assert KESTREL.block("q", []) == b"queue 'q' {\r\n  \r\n}\r\n"


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("with_id", [False, True])
def test_an_answer_in_pieces_is_the_same_answer(dialect: Dialect, with_id: bool) -> None:
    replies = replies_for(dialect)
    get = Get(b"jobs", "jobs", with_id=with_id)
    pieces: list[bytes] = []
    replies.append_item(pieces, get, b"data", 7, 99)
    assert b"".join(pieces) == replies.value(get, b"data", 7, 99) + b"END\r\n"
    assert b"".join(replies.value_in_pieces(get, b"data", 7, 99)) == replies.value(get, b"data", 7, 99)
