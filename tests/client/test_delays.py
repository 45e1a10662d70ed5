"""Clients that put with a delay: no reader gets the item before it is due, and one that waits gets it then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from staniel.client import MultiClient, PutOutcome
from staniel.protocol.client.requests import encode
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.keys import DELAY_MS_MAX
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import DelayedSet, Dialect
from tests.client.kinds import each_kind, play
from tests.support.process import Server

Make = Callable[..., Any]
LONG_S = 3600.0  # longer than a test takes on any machine
ROUNDED_S = 0.001  # the server counts whole milliseconds


@each_kind
def test_a_reader_that_waits_gets_a_delayed_item_when_it_is_due(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            began_s = time.monotonic()
            assert await client.put("jobs", b"late", delay_s=0.25, key="k", ttl_s=60, flags=3) is PutOutcome.STORED
            await client.put_many("jobs", [b"later"] * 2, delay_s=0.5)
            item = await client.get("jobs", wait_s=60)
            assert (item.data, item.flags) == (b"late", 3) and time.monotonic() - began_s >= 0.25 - ROUNDED_S
            assert [(await client.get("jobs", wait_s=60)).data for _ in range(2)] == [b"later"] * 2
            assert time.monotonic() - began_s >= 0.5 - ROUNDED_S
            assert await client.put("jobs", b"late", delay_s=0.25, key="k") is PutOutcome.ALREADY_STORED

    play(kind, body)


@each_kind
def test_a_delayed_item_keeps_no_reader_from_those_behind_it(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            await client.put("jobs", b"late", delay_s=LONG_S)
            await client.put_many("jobs", [b"later"] * 2, delay_s=LONG_S)
            await client.put("jobs", b"now", delay_s=0)
            assert (await client.get("jobs")).data == b"now"
            assert await client.get("jobs") is None

    play(kind, body)


@each_kind
@pytest.mark.parametrize("delay_s", [-1, float("nan"), float("inf"), DELAY_MS_MAX])
def test_an_impossible_delay_is_refused_before_anything_is_sent(server: Server, kind: str, delay_s: float) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as client:
            for call in (client.put("jobs", b"a", delay_s=delay_s), client.put_many("jobs", [b"a"], delay_s=delay_s)):
                with pytest.raises(ValueError, match="a delay is a number of seconds from 0 to 31622400"):
                    await call
            assert await client.get("jobs") is None

    play(kind, body)


def test_a_client_of_several_servers_puts_with_a_delay(server: Server) -> None:
    with MultiClient([server.address]) as client:
        client.put("held", b"a", delay_s=LONG_S)
        client.put_many("held", [b"b"], delay_s=LONG_S)
        assert client.get("held") is None
        began_s = time.monotonic()
        client.put("jobs", b"a", delay_s=0.2)
        client.put_many("jobs", [b"b"], delay_s=0.2)
        got = [client.get("jobs", wait_s=60) for _ in range(2)]
        assert [each.data for each in got if each is not None] == [b"a", b"b"]
        assert time.monotonic() - began_s >= 0.2 - ROUNDED_S


@pytest.mark.parametrize("put", [Set("q", b"a\r\n", 7, ttl_ms=5000), Set("q", b"", noreply=True)])
@pytest.mark.parametrize("key", ["", "k", "a/b/delay=5/key=c"])
def test_the_server_reads_what_the_client_writes(put: Set, key: str) -> None:
    parser = MemcacheParser(Dialect.MEMCACHED, Limits())
    assert parser.feed(encode(DelayedSet(put, 5000, key))) == [DelayedSet(put, 5000, key)]
