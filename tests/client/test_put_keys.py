"""Clients that put with a key, and again when the answer is lost: the item is stored once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staniel.client import ConnectionLost, Full, Outcome, PutOutcome, Refused, connect
from staniel.client import TrioClient as OlderClient
from staniel.protocol.client.requests import encode
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import Dialect, KeyedSet
from tests.client.fake_server import HANG_UP, playing
from tests.client.kinds import each_kind, play
from tests.support.process import Server, running
from tests.support.wire import drain

Make = Callable[..., Any]
STORED, ALREADY_STORED = PutOutcome.STORED, PutOutcome.ALREADY_STORED


@each_kind
def test_a_put_tells_whether_its_key_was_known(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            assert await client.put("jobs", b"plain") is STORED
            assert await client.put("jobs", b"a", key="order-17", ttl_s=60, flags=3) is STORED
            assert await client.put("jobs", b"b", key="order-17") is ALREADY_STORED
            assert await client.put("jobs", b"c", key="a/b?\xff") is STORED
            assert (await client.get("jobs")).data == b"plain"
            assert (await client.get("jobs")).flags == 3

    play(kind, body)
    assert drain(server.address, "jobs") == [b"c"]


@each_kind
def test_a_put_that_was_answered_is_known_by_its_key_after_a_kill(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        for number in range(4):
            async with make(*server.address) as client:
                for before in range(number):
                    assert await client.put("jobs", b"%d" % before, key=f"{before}") is ALREADY_STORED
                assert await client.put("jobs", b"%d" % number, key=f"{number}") is STORED
            server.restart()

    with running(tmp_path) as server:
        play(kind, body)
        assert drain(server.address, "jobs") == [b"0", b"1", b"2", b"3"]


def test_a_server_that_is_killed_among_puts_that_are_repeated_has_each_item_once(tmp_path: Path) -> None:
    """The connection is cut off at an unknown moment; the program only goes on until each put has an outcome."""
    rng = random.Random(1)
    keys = [f"{number}" for number in range(60)]

    async def body(make: Make) -> None:
        left = list(keys)
        while left:
            try:
                async with make(*server.address) as client:
                    while left:
                        await client.put("jobs", left[0].encode(), key=left[0])
                        del left[0]
                        if rng.random() < 0.15:
                            server.kill()
            except ConnectionLost:
                server.restart()

    with running(tmp_path) as server:
        play("asyncio", body)
        assert drain(server.address, "jobs") == [key.encode() for key in keys]


@each_kind
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"NOT_STORED\r\n", Full),
        (b"SERVER_ERROR no\r\n", Refused),
        (b"END\r\n", ConnectionLost),
        (HANG_UP, ConnectionLost),
    ],
)
def test_other_answers_are_those_to_any_put(answer: Any, error: type[Exception], kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            with pytest.raises(error) as raised:
                await client.put("q", b"a", key="k")
        assert raised.value.outcome is (Outcome.UNKNOWN if error is ConnectionLost else Outcome.NOT_DONE)  # type: ignore[attr-defined]

    with playing(answer) as server:
        play(kind, body)


@each_kind
def test_an_answer_to_a_key_is_none_to_a_put_without_one(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            with pytest.raises(ConnectionLost):
                await client.put("q", b"a")

    with playing(b"EXISTS\r\n") as server:
        play(kind, body)


@each_kind
@pytest.mark.parametrize("key", ["a b", "a\n", "k" * 251, "\N{SNOWMAN}"])
def test_a_key_that_is_no_word_is_refused_before_anything_is_sent(server: Server, kind: str, key: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            with pytest.raises(ValueError, match=r"key|word|ISO"):
                await client.put("jobs", b"a", key=key)
            assert await client.put("jobs", b"b") is STORED

    play(kind, body)


@pytest.mark.parametrize("put", [Set("q", b"a\r\n", 7, ttl_ms=5000), Set("q", b"", noreply=True)])
@pytest.mark.parametrize("key", ["k", "a/b/key=c", "\x01\xff" * 125])
def test_the_server_reads_what_the_client_writes(put: Set, key: str) -> None:
    parser = MemcacheParser(Dialect.MEMCACHED, Limits())
    assert parser.feed(encode(KeyedSet(put, key))) == [KeyedSet(put, key)]


def test_the_older_client_has_keys_too(server: Server) -> None:
    import trio

    async def body() -> None:
        async with connect(*server.address) as client:
            assert isinstance(client, OlderClient)
            assert [await client.put("jobs", b"a", key="k") for _ in range(2)] == [STORED, ALREADY_STORED]

    trio.run(body)
