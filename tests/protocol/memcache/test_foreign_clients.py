"""What the clients people use put on the wire, each followed by a `version` that must be read in step."""

from __future__ import annotations

import pytest

from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.memcache.parser import MemcacheState
from staniel.protocol.memcache.requests import (
    Delete,
    Dialect,
    FlushAll,
    GetMany,
    MetaGet,
    MetaNoop,
    MetaSet,
    Quit,
    Request,
    Stats,
    Touch,
    Verbosity,
    Version,
)
from staniel.protocol.requests import Invalid
from tests.support.feeding import read


def refused(why: str, reply: bool = True) -> Invalid:
    return Invalid(f"CLIENT_ERROR {why}\r\n".encode() if reply else b"", why=why)


SAID: dict[str, tuple[bytes, list[Request]]] = {
    "pymemcache sets without waiting for an answer": (
        b"set k 0 0 5 noreply\r\nhello\r\n",
        [Set("k", b"hello", noreply=True)],
    ),
    "pymemcache reads options": (b"get jobs/t=500/open\r\n", [Get(b"jobs/t=500/open", "jobs", 500, open=True)]),
    "pymemcache get_many": (b"get a b\r\n", [GetMany((Get(b"a", "a"), Get(b"b", "b")))]),
    "pymemcache gets": (b"gets a\r\n", [Get(b"a", "a", with_id=True)]),
    "pymemcache flush_all": (b"flush_all 0 noreply\r\n", [FlushAll(noreply=True)]),
    "pymemcache delete": (b"delete k noreply\r\n", [Delete("k", noreply=True)]),
    "pymemcache touch": (b"touch k 0 noreply\r\n", [Touch("k", noreply=True)]),
    "pymemcache incr": (b"incr k 1\r\n", [refused("incr is not supported by a queue")]),
    "pymemcache cas": (
        b"cas k 0 0 1 7\r\nx\r\n",
        [refused("cas is not supported by a queue, use set")],
    ),
    "python-memcached ends lines with a space": (b"set k 16 0 2 \r\nhi\r\n", [Set("k", b"hi", flags=16)]),
    "python-memcached without an answer": (b"set k 1 0 1 noreply \r\nx\r\n", [Set("k", b"x", 1, noreply=True)]),
    "pylibmc stats": (b"stats \r\n", [Stats()]),
    "pylibmc flush_all": (b"flush_all \r\n", [FlushAll()]),
    "aiomcache multi_get": (b"gets a b\r\n", [GetMany((Get(b"a", "a", with_id=True), Get(b"b", "b", with_id=True)))]),
    "perl Cache::Memcached get": (b"get k \r\n", [Get(b"k", "k")]),
    "perl Cache::Memcached stats": (b"stats malloc\r\n", [Stats("malloc")]),
    "php flags for types": (b"set k 1 0 2\r\n42\r\n", [Set("k", b"42", flags=1)]),
    "npm memcache-client expires": (b"set k 0 60 1\r\nx\r\n", [Set("k", b"x", ttl_ms=60_000)]),
    "memcexist asks with an add": (
        b"add f1 0 2678400 0\r\n\r\n",
        [refused("add is not supported by a queue, use set")],
    ),
    "memcdump": (b"stats cachedump 0 0\r\n", [Stats("cachedump")]),
    "memcaslap keys": (b"get \x10\x10ab\r\n", [Get(b"\x10\x10ab", "\x10\x10ab")]),
    "memcache puts": (b"ms k 2 F16 T0 \r\nhi\r\n", [MetaSet(Set("k", b"hi", 16), Meta(b"k"))]),
    "memcache gets": (b"mg k v f \r\n", [MetaGet(Get(b"k", "k"), Meta(b"k", shown=(b"f",)), value=True)]),
    "dalli 3.2 gets": (
        b"mg k v f q\r\nmn\r\n",
        [MetaGet(Get(b"k", "k"), Meta(b"k", quiet=True, shown=(b"f",)), value=True), MetaNoop()],
    ),
    "memcached-tool": (b"stats items\r\nstats slabs\r\n", [Stats("items"), Stats("slabs")]),
    "old clients delete with a time": (b"delete k 0\r\n", [Delete("k")]),
    "memccapable version": (b"version foo bar\r\nversion noreply\r\n", [Version(), Version()]),
    "memccapable get": (b"get\r\n", [refused("no key")]),
    "memccapable flush_all": (b"flush_all noreply\r\n", [FlushAll(noreply=True)]),
    "memccapable verbosity": (
        b"verbosity\r\nverbosity foo bar my\r\nverbosity noreply\r\nverbosity 0 noreply\r\nverbosity 1\r\n",
        [
            refused("verbosity needs a level"),
            refused("verbosity needs a level"),
            Verbosity(noreply=True),
            Verbosity(noreply=True),
            Verbosity(),
        ],
    ),
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
def test_a_client_is_understood_and_stays_in_step(said: tuple[bytes, list[Request]]) -> None:
    data, requests = said
    assert read(Dialect.MEMCACHED, data + b"version\r\n") == ([*requests, Version()], MemcacheState.LINE)


@pytest.mark.parametrize("client", ["python-binary-memcached", "memjs", "dalli"])
def test_a_binary_client_is_cut_off_at_its_first_byte(client: str) -> None:
    first = {"python-binary-memcached": b"\x80\x00", "memjs": b"\x80\x01", "dalli": b"\x80\x0b"}[client]
    requests, state = read(Dialect.MEMCACHED, first + bytes(22))
    assert requests == [Invalid(b"", hang_up=True, why="binary protocol")]
    assert state is MemcacheState.CLOSED


def test_libmemcached_says_quit_when_it_leaves() -> None:
    assert read(Dialect.MEMCACHED, b"quit\r\n")[0] == [Quit()]


def test_memccapable_leaves_even_when_it_says_more_than_quit() -> None:
    assert read(Dialect.MEMCACHED, b"quit foo bar\r\n")[0] == [Quit()]
