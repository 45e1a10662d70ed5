"""The dialect of today's clients, line by line."""

from __future__ import annotations

import pytest

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.memcache.parser import MemcacheParser, MemcacheState
from staniel.protocol.memcache.requests import (
    AbortItem,
    ClientName,
    Confirm,
    ConfirmItem,
    Delete,
    Dialect,
    DumpConfig,
    DumpStats,
    ExtendItem,
    Flush,
    FlushAll,
    FlushAllExpired,
    FlushExpired,
    GetFirst,
    GetMany,
    GetSome,
    MetaDebug,
    MetaDelete,
    MetaGet,
    MetaGetFirst,
    MetaNoop,
    MetaOpenItem,
    MetaSet,
    Monitor,
    Move,
    Pause,
    Quit,
    Reload,
    Request,
    Shutdown,
    Stats,
    Status,
    Touch,
    Verbosity,
    Version,
)
from staniel.protocol.requests import Invalid
from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import NoJournal
from staniel.queues.queue import Queue
from tests.support.feeding import SMALL, read


def client_error(why: str, hang_up: bool = False) -> Invalid:
    return Invalid(f"CLIENT_ERROR {why}\r\n".encode(), hang_up, why)


BEFORE_2001 = (
    "the expiry {} would be a date before 2001: above 2592000 (30 days) it is in seconds since 1970. For a longer life "
    "give the date on which it ends"
)
UNKNOWN = Invalid(b"ERROR\r\n", why="unknown command")

ACCEPTED: list[tuple[bytes, Request]] = [
    (b"set q 0 0 5\r\nhello\r\n", Set("q", b"hello")),
    (b"SeT q 0 0 5\r\nhello\r\n", Set("q", b"hello")),
    (b"set q 0 0 5\nhello\n", Set("q", b"hello")),
    (b"set q 0 0 5\r\nhello\n", Set("q", b"hello")),
    (b"set q 0 0 5  \r\nhello\r\n", Set("q", b"hello")),
    (b"set  q 0  0 5\r\nhello\r\n", Set("q", b"hello")),
    (b"set q 0 0 0\r\n\r\n", Set("q", b"")),
    (b"set q 0 0 0\n\n", Set("q", b"")),
    (b"set q 0 0 4\r\n\r\n\r\n\r\n", Set("q", b"\r\n\r\n")),
    (b"set q/open 0 0 1\r\nx\r\n", Set("q/open", b"x")),
    (b"set caf\xe9 0 0 1\r\nx\r\n", Set("café", b"x")),
    (b"set q 4294967295 0 1\r\nx\r\n", Set("q", b"x", flags=4294967295)),
    (b"set q 0 1 1\r\nx\r\n", Set("q", b"x", ttl_ms=1000)),
    (b"set q 0 2592000 1\r\nx\r\n", Set("q", b"x", ttl_ms=2_592_000_000)),
    (b"set q 0 978307200 1\r\nx\r\n", Set("q", b"x", expires_ms=978_307_200_000)),
    (b"set q 0 -1 1\r\nx\r\n", Set("q", b"x", ttl_ms=-1000)),
    (b"set q 0 4102444800 1\r\nx\r\n", Set("q", b"x", expires_ms=4_102_444_800_000)),
    (b"set q 0 0 1 noreply\r\nx\r\n", Set("q", b"x", noreply=True)),
    (b"set q 0 0 1 noreply \r\nx\r\n", Set("q", b"x", noreply=True)),
    (b"set q 0 0 1 something\r\nx\r\n", Set("q", b"x")),
    (b"get q\r\n", Get(b"q", "q")),
    (b"get q\n", Get(b"q", "q")),
    (b"GET q   \r\n", Get(b"q", "q")),
    (b" get q\r\n", Get(b"q", "q")),
    (b"gets q\r\n", Get(b"q", "q", with_id=True)),
    (b"get q/t=500\r\n", Get(b"q/t=500", "q", wait_ms=500)),
    (b"get q/t=-5\r\n", Get(b"q/t=-5", "q", wait_ms=-5)),
    (b"get q/t=1/t=2\r\n", Get(b"q/t=1/t=2", "q", wait_ms=2)),
    (b"get q/open\r\n", Get(b"q/open", "q", open=True)),
    (b"get q//open\r\n", Get(b"q//open", "q", open=True)),
    (b"get q/OPEN\r\n", Get(b"q/OPEN", "q")),
    (b"get q/close/t=9/open\r\n", Get(b"q/close/t=9/open", "q", wait_ms=9, open=True, close=True)),
    (b"get q/close/t=9\r\n", Get(b"q/close/t=9", "q", close=True)),
    (b"get q/abort/t=9\r\n", Get(b"q/abort/t=9", "q", abort=True)),
    (b"get q/peek/t=9\r\n", Get(b"q/peek/t=9", "q", wait_ms=9, peek=True)),
    (b"get a b\r\n", GetMany((Get(b"a", "a"), Get(b"b", "b")))),
    (b"gets a b/t=7\r\n", GetMany((Get(b"a", "a", with_id=True), Get(b"b/t=7", "b", with_id=True)))),
    (b"get a/open b/peek/t=7\r\n", GetMany((Get(b"a/open", "a", open=True), Get(b"b/peek/t=7", "b", peek=True)))),
    (b"monitor q 5\r\n", Monitor(b"q", "q", 5000)),
    (b"monitor q 5 2\r\n", Monitor(b"q", "q", 5000, 2)),
    (b"monitor q 0 -2\r\n", Monitor(b"q", "q", 0, 0)),
    (b"confirm q 2\r\n", Confirm("q", 2)),
    (b"delete q\r\n", Delete("q")),
    (b"delete q 0\r\n", Delete("q")),
    (b"delete q noreply\r\n", Delete("q", noreply=True)),
    (b"delete q noreply \r\n", Delete("q", noreply=True)),
    (b"delete q 0 noreply\r\n", Delete("q", noreply=True)),
    (b"delete noreply\r\n", Delete("noreply")),
    (b"flush q\r\n", Flush("q")),
    (b"flush_all\r\n", FlushAll()),
    (b"flush_all 0\r\n", FlushAll()),
    (b"flush_all noreply\r\n", FlushAll(noreply=True)),
    (b"flush_all 0 noreply \r\n", FlushAll(noreply=True)),
    (b"flush_expired q\r\n", FlushExpired("q")),
    (b"flush_all_expired\r\n", FlushAllExpired()),
    (b"stats\r\n", Stats()),
    (b"stats \r\n", Stats()),
    (b"stats cachedump 0 0\r\n", Stats("cachedump")),
    (b"dump_stats\r\n", DumpStats()),
    (b"dump_stats a b\r\n", DumpStats(("a", "b"))),
    (b"dump_config\r\n", DumpConfig()),
    (b"dump_config a\r\n", DumpConfig(("a",))),
    (b"status\r\n", Status()),
    (b"status ReadOnly\r\n", Status("ReadOnly")),
    (b"reload\r\n", Reload()),
    (b"version\r\n", Version()),
    (b"verbosity 1\r\n", Verbosity()),
    (b"verbosity 1 noreply\r\n", Verbosity(noreply=True)),
    (b"verbosity noreply\r\n", Verbosity(noreply=True)),
    (b"version foo bar\r\n", Version()),
    (b"quit noreply\r\n", Quit()),
    (b"quit\r\n", Quit()),
    (b"shutdown\r\n", Shutdown()),
    (b"get q/n=1\r\n", Get(b"q/n=1", "q")),
    (b"mg q/n=1 v\r\n", MetaGet(Get(b"q/n=1", "q"), Meta(b"q/n=1"), value=True)),
    (b"get q/n=10\r\n", GetSome(Get(b"q/n=10", "q"), 10)),
    (b"get q/n=2/n=1000\r\n", GetSome(Get(b"q/n=2/n=1000", "q"), 1000)),
    (b"gets q/open/n=3/t=9\r\n", GetSome(Get(b"q/open/n=3/t=9", "q", 9, open=True, with_id=True), 3)),
    (b"get q/close/n=3\r\n", Get(b"q/close/n=3", "q", close=True)),
    (b"get q/abort/n=3\r\n", Get(b"q/abort/n=3", "q", abort=True)),
    (b"get q/close/open/n=3\r\n", GetSome(Get(b"q/close/open/n=3", "q", open=True, close=True), 3)),
    (b"get q/peek/n=1\r\n", Get(b"q/peek/n=1", "q", peek=True)),
    (b"get a b/n=1\r\n", GetMany((Get(b"a", "a"), Get(b"b/n=1", "b")))),
    (b"get a/also=b\r\n", GetFirst((Get(b"a", "a"), Get(b"b", "b")))),
    (
        b"gets a/open/also=b,c/t=9/n=1/x\r\n",
        GetFirst(tuple(Get(name, name.decode(), 9, open=True, with_id=True) for name in (b"a", b"b", b"c"))),
    ),
    (b"get a/peek/also=b\r\n", GetFirst((Get(b"a", "a", peek=True), Get(b"b", "b", peek=True)))),
    (
        b"mg a/t=9/open/also=b v q\r\n",
        MetaGetFirst(
            (Get(b"a", "a", 9, open=True), Get(b"b", "b", 9, open=True)), Meta(b"a/t=9/open/also=b", quiet=True), True
        ),
    ),
    (
        b"mg a/also=b d\r\n",
        MetaGetFirst(
            (Get(b"a", "a", peek=True), Get(b"b", "b", peek=True)), Meta(b"a/also=b", shown=(b"d",)), value=False
        ),
    ),
    (b"touch q 0\r\n", Touch("q")),
    (b"touch q 60 noreply\r\n", Touch("q", noreply=True)),
    (b"touch q/id=7 60\r\n", ExtendItem("q", 7)),
    (b"touch q/id=7 60 noreply\r\n", ExtendItem("q", 7, noreply=True)),
    (b"touch q/id=7/abort 0\r\n", AbortItem("q", 7)),
    (b"touch q/abort/id=7 0\r\n", AbortItem("q", 7)),
    (b"touch q/open 0\r\n", Touch("q/open")),
    (b"delete q/id=7\r\n", ConfirmItem("q", 7)),
    (b"delete q/id=18446744073709551615 0 noreply\r\n", ConfirmItem("q", 2**64 - 1, noreply=True)),
    (b"delete q/open\r\n", Delete("q/open")),
    (b"touch q/id=7 60\r\n", ExtendItem("q", 7)),
    (b"touch q/id=7 60 noreply\r\n", ExtendItem("q", 7, noreply=True)),
    (b"touch q/id=7/abort 0\r\n", AbortItem("q", 7)),
    (b"touch q/abort/id=7 0\r\n", AbortItem("q", 7)),
    (b"touch q/open 0\r\n", Touch("q/open")),
    (b"delete q/id=7\r\n", ConfirmItem("q", 7)),
    (b"delete q/id=18446744073709551615 0 noreply\r\n", ConfirmItem("q", 2**64 - 1, noreply=True)),
    (b"delete q/open\r\n", Delete("q/open")),
    (b"move a b\r\n", Move("a", "b")),
    (b"MOVE a b 0\r\n", Move("a", "b", 0)),
    (b"requeue a b 7\r\n", Move("a", "b", 7)),
    (b"pause q\r\n", Pause("q", gets=True, puts=True, paused=True)),
    (b"pause q gets\r\n", Pause("q", gets=True, puts=False, paused=True)),
    (b"Resume q puts\r\n", Pause("q", gets=False, puts=True, paused=False)),
    (b"resume q all\r\n", Pause("q", gets=True, puts=True, paused=False)),
    (b"mn\r\n", MetaNoop()),
    (b"me q v\r\n", MetaDebug()),
    (b"ms q 5\r\nhello\r\n", MetaSet(Set("q", b"hello"), Meta(b"q"))),
    (b"ms q 5 \nhello\n", MetaSet(Set("q", b"hello"), Meta(b"q"))),
    (
        b"ms q 2 T60 F7 q Oab k s MS I S2\r\nhi\r\n",
        MetaSet(Set("q", b"hi", flags=7, ttl_ms=60_000), Meta(b"q", quiet=True, shown=(b"Oab", b"k", b"s"))),
    ),
    (b"ms cQ== 1 b\r\nx\r\n", MetaSet(Set("q", b"x"), Meta(b"cQ==", base64=True))),
    (b"mg q v\r\n", MetaGet(Get(b"q", "q"), Meta(b"q"), value=True)),
    (b"mg q\r\n", MetaGet(Get(b"q", "q", peek=True), Meta(b"q"), value=False)),
    (
        b"mg q/t=5/open v k f c t s u Ox q\r\n",
        MetaGet(
            Get(b"q/t=5/open", "q", 5, open=True),
            Meta(b"q/t=5/open", quiet=True, shown=(b"k", b"f", b"c", b"t", b"s", b"Ox")),
            value=True,
        ),
    ),
    (b"mg q/close\r\n", MetaGet(Get(b"q/close", "q", close=True), Meta(b"q/close"), value=False)),
    (b"mg q/id=7 d p\r\n", MetaOpenItem("q", 7, Meta(b"q/id=7", shown=(b"d", b"p")))),
    (b"mg cS9pZD03 b q\r\n", MetaOpenItem("q", 7, Meta(b"cS9pZD03", base64=True, quiet=True))),
    (b"client_name worker-7\r\n", ClientName("worker-7")),
    (b"client_name " + b"n" * 64 + b"\r\n", ClientName("n" * 64)),
    (b"mg cS9wZWVr b v\r\n", MetaGet(Get(b"q/peek", "q", peek=True), Meta(b"cS9wZWVr", base64=True), value=True)),
    (b"md q q k\r\n", MetaDelete("q", Meta(b"q", quiet=True, shown=(b"k",)))),
]

REFUSED: list[tuple[bytes, Invalid]] = [
    (b"\r\n", UNKNOWN),
    (b"   \r\n", UNKNOWN),
    (b"bogus words here\r\n", UNKNOWN),
    (b"set q 0 0\r\n", client_error("set needs a queue, flags, expiry and length")),
    (b"set q x 0 3\r\nabc\r\n", client_error("the flags are not a 32-bit number")),
    (b"set q -1 0 3\r\nabc\r\n", client_error("the flags are not a 32-bit number")),
    (b"set q 4294967296 0 3\r\nabc\r\n", client_error("the flags are not a 32-bit number")),
    (b"set q 0 soon 3\r\nabc\r\n", client_error("the expiry is not a number of seconds")),
    (b"set q 0 99999999999999999999 3\r\nabc\r\n", client_error("the expiry is not a number of seconds")),
    (b"set q x 0 3 noreply\r\nabc\r\n", Invalid(b"", why="the flags are not a 32-bit number")),
    (b"set q 0 0 3\r\nabcdef\r\n", client_error("bad data chunk")),
    (b"set q 0 0 3\r\nabc\rdef\r\n", client_error("bad data chunk")),
    (b"set q 0 0 3 noreply\r\nabcdef\r\n", Invalid(b"", why="bad data chunk")),
    (b"add q 0 0 3\r\nabc\r\n", client_error("add is not supported by a queue, use set")),
    (b"replace q 0 0 3\r\nabc\r\n", client_error("replace is not supported by a queue, use set")),
    (b"append q 0 0 3\r\nabc\r\n", client_error("append is not supported by a queue, use set")),
    (b"prepend q 0 0 3\r\nabc\r\n", client_error("prepend is not supported by a queue, use set")),
    (b"CAS q 0 0 3 7\r\nabc\r\n", client_error("cas is not supported by a queue, use set")),
    (b"cas q 0 0 3 7 noreply\r\nabc\r\n", Invalid(b"", why="cas is not supported by a queue, use set")),
    (b"add q 0 0 0\r\n\r\n", client_error("add is not supported by a queue, use set")),
    (b"incr q 1\r\n", client_error("incr is not supported by a queue")),
    (b"decr q 1\r\n", client_error("decr is not supported by a queue")),
    (b"touch q\r\n", client_error("touch needs a queue and an expiry")),
    (b"touch /id=7 0\r\n", client_error("the queue name is empty")),
    (b"touch q/id=x 0\r\n", client_error("id= needs the id of one item, as gets shows it")),
    (b"delete q/id=\r\n", client_error("id= needs the id of one item, as gets shows it")),
    (b"delete q/id=1/id=2\r\n", client_error("id= needs the id of one item, as gets shows it")),
    (b"delete q/id=18446744073709551616\r\n", client_error("id= needs the id of one item, as gets shows it")),
    (b"delete q/id=-1 noreply\r\n", Invalid(b"", why="id= needs the id of one item, as gets shows it")),
    (b"touch q/id=1/open 0\r\n", client_error("only abort goes with id=, not open")),
    (b"touch q/id=1/ 0\r\n", client_error("only abort goes with id=, not an empty option")),
    (b"delete q/id=1/abort\r\n", client_error("delete confirms a read, use touch to abort one")),
    (b"touch q soon\r\n", client_error("the expiry is not a number of seconds")),
    (b"touch q soon noreply\r\n", Invalid(b"", why="the expiry is not a number of seconds")),
    (b"get q/n=0\r\n", client_error("n= needs a number of items from 1 to 1000")),
    (b"get q/n=1001\r\n", client_error("n= needs a number of items from 1 to 1000")),
    (b"get q/n=\r\n", client_error("n= needs a number of items from 1 to 1000")),
    (b"get q/peek/n=2\r\n", client_error("peek shows one item, n= does not go with it")),
    (b"get a b/n=2\r\n", client_error("n= goes with one key only")),
    (b"get a b/n=x\r\n", client_error("n= goes with one key only")),
    (b"move a\r\n", client_error("move needs two queues, and perhaps a count")),
    (b"requeue a b 1 2\r\n", client_error("requeue needs two queues, and perhaps a count")),
    (b"move a b x\r\n", client_error("the count is not a number of items")),
    (b"move a b -1\r\n", client_error("the count is not a number of items")),
    (b"pause\r\n", client_error("pause needs a queue, and perhaps gets, puts or all")),
    (b"resume q now\r\n", client_error("resume needs a queue, and perhaps gets, puts or all")),
    (b"ms q\r\n", client_error("ms needs a key and a length")),
    (b"ms q 3 Fx\r\nabc\r\n", client_error("the flags are not a 32-bit number")),
    (b"ms q 3 Tx\r\nabc\r\n", client_error("the expiry is not a number of seconds")),
    (b"ms q 3 MA\r\nabc\r\n", client_error("a queue has no mode but set")),
    (b"ms q 3 C7\r\nabc\r\n", client_error("invalid flag, or none for a queue: C")),
    (b"ms q 3 k k\r\nabc\r\n", client_error("duplicate flag")),
    (b"ms ? 3 b\r\nabc\r\n", client_error("error decoding key")),
    (b"ms q 3\r\nabcdef\r\n", client_error("bad data chunk")),
    (b"mg\r\n", client_error("mg needs a key")),
    (b"mg q v N30\r\n", client_error("invalid flag, or none for a queue: N")),
    (b"mg q v O" + b"x" * 33 + b"\r\n", client_error("opaque token too long")),
    (b"mg q/n=2 v\r\n", client_error("mg answers with one item, n= above 1 does not go with it")),
    (b"mg q/open\r\n", client_error("open needs v, or the item would be lost to the client")),
    (b"mg q/open/peek v\r\n", client_error("peek and open exclude each other")),
    (b"mg q/id=x d\r\n", client_error("id= needs the id of one item, as gets shows it")),
    (b"mg q/id=7 v\r\n", client_error("mg with id= shows figures of an open read, leave out v")),
    (b"mg q/id=7/abort d\r\n", client_error("mg inspects a read, use touch to abort one")),
    (b"mg q/id=7/open d\r\n", client_error("only abort goes with id=, not open")),
    (b"client_name\r\n", client_error("client_name needs one word")),
    (b"client_name a b\r\n", client_error("client_name needs one word")),
    (b"client_name " + b"n" * 65 + b"\r\n", client_error("a client's name has at most 64 bytes")),
    (b"client_name caf\xe9\r\n", client_error("a client's name is printable ASCII")),
    (b"mg ? b v\r\n", client_error("error decoding key")),
    (b"md\r\n", client_error("md needs a key")),
    (b"md q I\r\n", client_error("invalid flag, or none for a queue: I")),
    (b"md ? b\r\n", client_error("error decoding key")),
    (b"me\r\n", client_error("me needs a key")),
    (b"ma q\r\n", client_error("ma is not supported by a queue")),
    (b"set q 0 2592001 1\r\nx\r\n", client_error(BEFORE_2001.format(2592001))),
    (b"set q 0 978307199 1 noreply\r\nx\r\n", Invalid(b"", why=BEFORE_2001.format(978307199))),
    (b"ms q 1 T2592001\r\nx\r\n", client_error(BEFORE_2001.format(2592001))),
    (b"gat 0 q\r\n", client_error("gat is not supported by a queue")),
    (b"gats 0 q\r\n", client_error("gats is not supported by a queue")),
    (b"get\r\n", client_error("no key")),
    (b"get /\r\n", client_error("the queue name is empty")),
    (b"get /open\r\n", client_error("the queue name is empty")),
    (b"get a /open\r\n", client_error("the queue name is empty")),
    (b"get q/t=abc\r\n", client_error("t= needs a number of milliseconds")),
    (b"get q/t=\r\n", client_error("t= needs a number of milliseconds")),
    (b"get q/t=1_0\r\n", client_error("t= needs a number of milliseconds")),
    (b"get q/t=2147483648\r\n", client_error("t= needs a number of milliseconds")),
    (b"get q/open/peek\r\n", client_error("peek and open exclude each other")),
    (b"get q/close/peek\r\n", client_error("peek and close exclude each other")),
    (b"get q/abort/open\r\n", client_error("abort and open exclude each other")),
    (b"get q/abort/close\r\n", client_error("abort and close exclude each other")),
    (b"get q/peek/abort\r\n", client_error("peek and abort exclude each other")),
    (b"get a q/peek/abort\r\n", client_error("peek and abort exclude each other")),
    (b"monitor q\r\n", client_error("monitor needs a queue and seconds")),
    (b"monitor q x\r\n", client_error("monitor needs numbers after the queue")),
    (b"monitor q 1 x\r\n", client_error("monitor needs numbers after the queue")),
    (b"confirm q\r\n", client_error("confirm needs a queue and a count")),
    (b"confirm q x\r\n", client_error("the count is not a number")),
    (b"delete\r\n", client_error("no queue name")),
    (b"delete q 7\r\n", client_error("delete takes a queue and noreply")),
    (b"delete q 7 noreply\r\n", Invalid(b"", why="delete takes a queue and noreply")),
    (b"flush\r\n", client_error("no queue name")),
    (b"flush_expired\r\n", client_error("no queue name")),
    (b"flush_all 5\r\n", client_error("delayed flush is not supported")),
    (b"flush_all 5 noreply\r\n", Invalid(b"", why="delayed flush is not supported")),
    (b"flush_all 0 0\r\n", client_error("delayed flush is not supported")),
    (b"stats noreply\r\n", client_error("stats without a reply say nothing")),
    (b"verbosity\r\n", client_error("verbosity needs a level")),
    (b"verbosity x\r\n", client_error("verbosity needs a level")),
    (b"verbosity 1 2\r\n", client_error("verbosity needs a level")),
    (b"verbosity x noreply\r\n", Invalid(b"", why="verbosity needs a level")),
]

HUNG_UP = [
    b"set q 0 0 x\r\n",
    b"set q 0 0 -1\r\n",
    b"set q 0 0 2147483648\r\n",
    b"set q 0 0 " + b"9" * 5000 + b"\r\n",
    b"set q 0 0 x noreply\r\n",
    b"add q 0 0 -1\r\n",
    b"ms q x\r\n",
    b"ms q -1 q\r\n",
]


@pytest.mark.parametrize(("data", "request_"), ACCEPTED, ids=lambda value: repr(value)[:50])
def test_a_good_line_becomes_its_request(data: bytes, request_: Request) -> None:
    assert read(Dialect.MEMCACHED, data) == ([request_], MemcacheState.LINE)


@pytest.mark.parametrize(("data", "invalid"), REFUSED, ids=lambda value: repr(value)[:50])
def test_a_bad_line_is_refused_once_and_the_next_is_read_in_step(data: bytes, invalid: Invalid) -> None:
    assert read(Dialect.MEMCACHED, data + b"get next\r\n") == ([invalid, Get(b"next", "next")], MemcacheState.LINE)


@pytest.mark.parametrize("data", HUNG_UP, ids=lambda value: repr(value)[:50])
def test_a_length_that_is_none_closes_because_nobody_knows_where_the_block_ends(data: bytes) -> None:
    requests, state = read(Dialect.MEMCACHED, data + b"abc\r\nget next\r\n")
    assert requests == [client_error("the length is not a number of bytes", hang_up=True)]
    assert state is MemcacheState.CLOSED


def test_a_block_over_the_item_limit_is_skipped_and_named_with_both_sizes() -> None:
    data = b"set q 0 0 17\r\n" + b"x" * 17 + b"\r\nset q 0 0 16\r\n" + b"y" * 16 + b"\r\n"
    too_large = client_error("object too large: 17 bytes, max_item_size is 16")
    assert read(Dialect.MEMCACHED, data, SMALL) == ([too_large, Set("q", b"y" * 16)], MemcacheState.LINE)


def test_a_block_of_ms_over_the_item_limit_is_skipped() -> None:
    data = b"ms q 17\r\n" + b"x" * 17 + b"\r\nmn\r\n"
    too_large = client_error("object too large: 17 bytes, max_item_size is 16")
    assert read(Dialect.MEMCACHED, data, SMALL) == ([too_large, MetaNoop()], MemcacheState.LINE)


def test_a_refused_block_longer_than_announced_is_answered_once() -> None:
    data = b"add q 0 0 3\r\nabcdef\r\nget q\r\n"
    assert read(Dialect.MEMCACHED, data)[0] == [
        client_error("add is not supported by a queue, use set"),
        Get(b"q", "q"),
    ]


def test_no_mistake_of_a_client_is_called_a_server_error() -> None:
    for data, invalid in REFUSED:
        assert not invalid.reply.startswith(b"SERVER_ERROR"), data
        assert invalid.reply.endswith(b"\r\n") or invalid.reply == b"", data


def test_the_queue_and_all_requests_for_it_share_one_name() -> None:
    """A dictionary looks such a key up by its identity."""
    name = b"".join((b"jo", b"bs"))
    data = b"set %b 0 0 1\r\nx\r\nget %b/close/open\r\n" % (name, name)
    put, get = MemcacheParser(Dialect.MEMCACHED, Limits()).feed(data)
    queue = Queue(name.decode("ascii"), QueueConfig(), NoJournal(), 0)
    assert isinstance(put, Set) and isinstance(get, Get)
    assert put.queue is queue.name and get.queue is queue.name
