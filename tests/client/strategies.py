"""Requests that can be said, each with a reply and what that reply means. Made for hypothesis."""

from __future__ import annotations

import binascii

import msgspec
from hypothesis import strategies as st

from staniel.protocol import escaping
from staniel.protocol.client.conversation import read
from staniel.protocol.client.replies import (
    Answer,
    Dump,
    Error,
    Fault,
    History,
    Item,
    Items,
    Number,
    Past,
    Reply,
    StatsReply,
    Text,
)
from staniel.protocol.client.requests import EXPIRES_MS_MIN, TTL_MS_END, history_request, read_first
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memcache.keys import DELAY_MS_MAX
from staniel.protocol.memcache.replies import Replies, replies_for
from staniel.protocol.memcache.requests import Dialect, Request

KESTREL_DATE_MS_MAX = (2**31 - 1) * 1000

letters = st.characters(max_codepoint=255, exclude_characters=" \r\n/")
names = st.text(letters, min_size=1, max_size=12)
blocks = st.binary(max_size=40) | st.sampled_from([b"\r\n", b"END\r\n", b"VALUE q 0 3\r\nabc\r\nEND\r\n", b"x" * 5000])
flags = st.integers(0, 2**32 - 1)
whys = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=20)


def dates(max_ms: int) -> st.SearchStrategy[int]:
    return st.just(0) | st.integers(EXPIRES_MS_MIN // 1000, max_ms // 1000).map(lambda s: s * 1000)


lives = st.just(-1000) | st.integers(1, TTL_MS_END // 1000 - 1).map(lambda s: s * 1000)

sets = st.builds(memcache.Set, names, blocks, flags, lives, noreply=st.booleans()) | st.builds(
    memcache.Set, names, blocks, flags, st.none(), dates(2**49), st.booleans()
)
words = st.text(st.characters(max_codepoint=255, exclude_characters=" \r\n"), min_size=1, max_size=250)
keyed_sets = st.builds(memcache.KeyedSet, sets, words)
delayed_sets = st.builds(memcache.DelayedSet, sets, st.integers(1, DELAY_MS_MAX), st.just("") | words)
kestrel_sets = st.builds(memcache.Set, names, blocks, st.just(0), lives) | st.builds(
    memcache.Set, names, blocks, st.just(0), st.none(), dates(KESTREL_DATE_MS_MAX)
)

HOW: tuple[dict[str, bool], ...] = (
    {},
    {"open": True},
    {"close": True},
    {"open": True, "close": True},
    {"abort": True},
    {"peek": True},
)


@st.composite
def gets(draw: st.DrawFn, with_id: bool | None = None, waits: bool = True) -> Get:
    ids = draw(st.booleans()) if with_id is None else with_id
    wait_ms = draw(st.integers(0, 2**31 - 1)) if waits else 0
    return read(draw(names), wait_ms, with_id=ids, **draw(st.sampled_from(HOW)))


many = st.booleans().flatmap(
    lambda ids: st.lists(gets(ids, waits=False), min_size=2, max_size=4).map(
        lambda found: memcache.GetMany(tuple(found))
    )
)
firsts = st.builds(
    lambda queues, wait_ms, how: read_first(tuple(queues), wait_ms, **how),
    st.lists(names.filter(lambda name: "," not in name), min_size=2, max_size=4, unique=True),
    st.integers(0, 2**31 - 1),
    st.sampled_from([{}, {"open": True}, {"peek": True}]),
)
monitors = st.builds(
    lambda name, seconds, most: memcache.Monitor(name.encode("latin-1"), name, seconds * 1000, most),
    names,
    st.integers(0, 10**6),
    st.none() | st.integers(0, 1000),
)
queue_commands = (
    st.builds(memcache.Flush, names) | st.builds(memcache.FlushExpired, names) | st.builds(memcache.Delete, names)
)
plain = st.sampled_from(
    [
        memcache.FlushAll(),
        memcache.FlushAllExpired(),
        memcache.Stats(),
        memcache.Reload(),
        memcache.Version(),
        memcache.Status(),
    ]
)
by_id = st.sampled_from([memcache.ConfirmItem, memcache.AbortItem, memcache.ExtendItem]).flatmap(
    lambda kind: st.builds(kind, names, st.integers(0, 2**64 - 1))
)
confirms = st.builds(memcache.Confirm, names, st.integers(0, 1000))
dumps = st.builds(memcache.DumpStats, st.lists(names, max_size=3).map(tuple))

shared = gets(with_id=False) | monitors | queue_commands | plain | confirms | dumps | st.builds(memcache.Status, names)
kestrel_requests: st.SearchStrategy[Request] = shared | kestrel_sets
memcached_requests: st.SearchStrategy[Request] = (
    shared
    | sets
    | keyed_sets
    | delayed_sets
    | gets()
    | many
    | firsts
    | st.builds(memcache.Delete, names, st.just(True))
    | st.builds(memcache.FlushAll, st.just(True))
    | by_id
    | st.builds(memcache.Verbosity, st.booleans())
    | st.builds(memcache.ClientName, st.sampled_from(["worker-7", "!", "n" * 64]))
    | st.builds(history_request, names, st.integers(0, 2**64 - 1))
    | st.builds(memcache.Stats, names.filter(lambda name: name != "noreply"))
    | st.builds(memcache.DumpConfig, st.lists(names, max_size=3).map(tuple))
)


@st.composite
def histories(draw: st.DrawFn, replies: Replies, request: memcache.MetaOpenItem) -> tuple[bytes, list[Reply]]:
    """What a server could say of an open item: it is not open, or how often it was delivered, and its past."""
    count = draw(st.integers(1, 10**6))
    past = draw(
        st.none() | st.builds(Past, names, st.just("dead"), *[st.integers(0, 2**60)] * 3, names, st.integers(1))
    )
    word = b"-" if past is None else binascii.b2a_base64(msgspec.json.encode(past), newline=False)
    told = replies.meta(b"HD", request.meta, {b"d": count, b"p": word})
    return draw(st.sampled_from([(told, [History(count, past)]), (replies.meta_miss, [Answer.NOT_FOUND])]))


@st.composite
def answers(draw: st.DrawFn, request: Request, dialect: Dialect) -> tuple[bytes, list[Reply]]:
    """What a server of `dialect` could say to `request`, written by its own replies, and what that means."""
    replies = replies_for(dialect)
    if getattr(request, "noreply", False):
        return b"", []
    if draw(st.integers(0, 9)) == 0:
        return draw(refusals(replies))
    match request:
        case memcache.Set():
            return draw(st.sampled_from([(replies.stored, [Answer.STORED]), (replies.not_stored, [Answer.NOT_STORED])]))
        case memcache.KeyedSet() | memcache.DelayedSet():
            return draw(st.sampled_from([(replies.stored, [Answer.STORED]), (replies.exists, [Answer.EXISTS])]))
        case memcache.Delete():
            return replies.not_found, [Answer.NOT_FOUND if dialect is Dialect.MEMCACHED else Answer.DELETED]
        case memcache.ConfirmItem():
            return draw(st.sampled_from([(replies.deleted, [Answer.DELETED]), (replies.not_found, [Answer.NOT_FOUND])]))
        case memcache.AbortItem() | memcache.ExtendItem():
            return draw(st.sampled_from([(replies.touched, [Answer.TOUCHED]), (replies.not_found, [Answer.NOT_FOUND])]))
        case memcache.FlushAll():
            return replies.flushed_all, [Answer.OK]
        case memcache.MetaOpenItem():
            return draw(histories(replies, request))
        case memcache.Verbosity() | memcache.ClientName():
            return replies.ok, [Answer.OK]
        case memcache.Reload():
            return replies.reloaded(draw(st.sampled_from(["", "server.spool"]))), [Answer.OK]
        case memcache.FlushExpired() | memcache.FlushAllExpired():
            count = draw(st.integers(0, 10**6))
            return replies.number(count), [Number(count)]
        case memcache.Version():
            why = draw(whys)
            return replies.version(why), [Text(why)]
        case memcache.Status(name=None):
            return b"READONLY\r\n", [Text("READONLY")]
        case memcache.Stats():
            return draw(tables(replies))
        case memcache.DumpStats() | memcache.DumpConfig():
            return b"queue 'q' {\r\n  items=1\r\n}\r\n" + replies.end, [Dump(("queue 'q' {", "  items=1", "}"))]
        case memcache.Get() | memcache.GetMany() | memcache.GetFirst() | memcache.Monitor():
            return draw(reads(request, dialect, replies))
        case _:
            return replies.end, [Answer.END]


@st.composite
def refusals(draw: st.DrawFn, replies: Replies) -> tuple[bytes, list[Reply]]:
    why = draw(whys)
    said = {
        Fault.CLIENT: replies.client_error(why),
        Fault.SERVER: replies.server_error(why),
        Fault.COMMAND: b"ERROR\r\n",
    }
    fault = draw(st.sampled_from(list(Fault)))
    text = "" if replies is replies_for(Dialect.KESTREL) or fault is Fault.COMMAND else why
    return said[fault], [Error(fault, text)]


@st.composite
def tables(draw: st.DrawFn, replies: Replies) -> tuple[bytes, list[Reply]]:
    rows = draw(st.dictionaries(names, whys, max_size=3))
    lines = b"".join(replies.stat(name, value) for name, value in rows.items())
    if replies is replies_for(Dialect.KESTREL):
        return lines + replies.end, [StatsReply({escaping.word(name): value for name, value in rows.items()})]
    shown = {escaping.ascii_word(name): escaping.ascii_text(value) for name, value in rows.items()}
    return lines + replies.end, [StatsReply(shown)]


@st.composite
def reads(
    draw: st.DrawFn,
    request: Get | memcache.GetMany | memcache.GetFirst | memcache.Monitor,
    dialect: Dialect,
    replies: Replies,
) -> tuple[bytes, list[Reply]]:
    asked = request.gets if isinstance(request, memcache.GetMany | memcache.GetFirst) else (_as_get(request),)
    if isinstance(request, memcache.GetFirst):
        asked = draw(st.sampled_from([(), *((get,) for get in asked)]))
    elif isinstance(request, memcache.Monitor):
        asked *= draw(st.integers(0, 3))
    elif draw(st.booleans()):
        asked = asked[1:]
    said, items = b"", []
    for get in asked:
        item = draw(items_of(get, dialect))
        said += replies.value(get, item.data, item.flags, item.id or 0)
        if not isinstance(request, memcache.GetMany):
            said += replies.end  # after each item
        items.append(item)
    if isinstance(request, memcache.GetMany):
        return said + replies.end, [Items(tuple(items))]
    if items and isinstance(request, memcache.Get | memcache.GetFirst):
        return said, [*items]
    return said + replies.end, [*items, Answer.END]


def _as_get(request: Get | memcache.Monitor) -> Get:
    return request if isinstance(request, Get) else Get(request.key, request.queue)


@st.composite
def items_of(draw: st.DrawFn, get: Get, dialect: Dialect) -> Item:
    if dialect is Dialect.KESTREL:
        return Item(draw(blocks), key=get.queue.encode("latin-1"))
    item_id = draw(st.integers(0, 2**63 - 1)) if get.with_id else None
    return Item(draw(blocks), draw(flags), item_id, get.key)
