"""Kestrel records by hand, journals of random queue histories, and how a file is fed to the reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from hypothesis import strategies as st

from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.replay import Replay
from staniel.queues.changes import Aborted, Added, Change, Cleared, Confirmed, Opened, Removed
from staniel.queues.config import JournalDialect, QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.item import Delivery, Item, item_with, past_bytes
from staniel.queues.queue import Queue
from tests.support.judge import Content

NOW_MS = 1_700_000_000_000


def add(data: bytes, expires_s: int = 0) -> bytes:
    return struct.pack("<Bii", 0, len(data) + 4, expires_s) + data


def addx(data: bytes, added_ms: int = NOW_MS, expires_ms: int = 0) -> bytes:
    return struct.pack("<Biqq", 2, len(data) + 16, added_ms, expires_ms) + data


def named(opcode: int, xid: int, data: bytes, added_ms: int = NOW_MS, expires_ms: int = 0) -> bytes:
    """ADD_XID (7), or CONTINUE (8)."""
    return struct.pack("<Biiqq", opcode, xid, len(data) + 16, added_ms, expires_ms) + data


def with_xid(opcode: int, xid: int) -> bytes:
    return struct.pack("<Bi", opcode, xid)


def state_dump(xid: int, listed: list[tuple[int, bytes]]) -> bytes:
    return struct.pack("<Bii", 8, xid, len(listed)) + b"".join(named(7, each, data) + b"\3" for each, data in listed)


DATA = st.binary(max_size=6)
XIDS = st.one_of(st.integers(-3, 4), st.sampled_from([2**31 - 1, -(2**31)]))
TIMES = st.one_of(st.just(NOW_MS), st.integers(-(2**63), 2**63 - 1))
RECORDS = st.one_of(
    st.builds(add, DATA, st.integers(-(2**31), 2**31 - 1)),
    st.builds(addx, DATA, TIMES, TIMES),
    st.builds(addx, DATA),
    st.builds(named, st.sampled_from([7, 7, 8]), XIDS, DATA),
    st.builds(lambda xid, data: named(7, xid, data) + b"\3", XIDS, DATA),
    st.builds(with_xid, st.sampled_from([4, 5, 6, 9]), XIDS),
    st.sampled_from([b"\1", b"\3", b"\3"]),
    st.builds(state_dump, XIDS, st.lists(st.tuples(XIDS, DATA), max_size=3)),
    st.builds(state_dump, XIDS, st.lists(st.tuples(XIDS, DATA), min_size=16, max_size=17)),
    st.builds(lambda flags, back: with_xid(4, flags) + with_xid(4, back), XIDS, XIDS),
)
FOREIGN = st.lists(RECORDS, max_size=25).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A journal with bytes changed, or cut, or with anything behind it."""
    data = bytearray(draw(FOREIGN))
    for at, value in draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3)):
        if at < len(data):
            data[at] = value
    return bytes(data[: draw(st.integers(0, 400))] if draw(st.booleans()) else data) + draw(st.binary(max_size=12))


DAMAGED = st.one_of(FOREIGN, damaged(), st.binary(max_size=60), st.lists(st.integers(0, 10), max_size=60).map(bytes))

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.binary(max_size=5), st.sampled_from([0, 0, 1, 2**31, 2**32 - 1])),
        st.tuples(st.just("add"), st.binary(max_size=5), st.sampled_from([0, 7]), st.binary(min_size=1, max_size=9)),
        st.tuples(st.sampled_from(["remove_head", "open", "open", "flush"])),
        st.tuples(st.sampled_from(["confirm", "abort", "abort"]), st.integers(0, 5)),
        st.tuples(st.just("jump"), st.sampled_from([0, -3, 2**31 - 3, 77])),
    ),
    max_size=40,
)
Operations = list[tuple[str, *tuple[object, ...]]]


def record_of(encoder: Encoder, change: Change) -> bytes:
    """What a Kestrel journal's log writes for one change."""
    return encoder.addx(change.item) if isinstance(change, Added) else encoder.encode(change)


class Scribe(Journal):
    """A queue whose changes are encoded as they happen; `ends` are the lengths after each whole change."""

    batch = 0

    def __init__(self, dialect: JournalDialect) -> None:
        self.encoder = Encoder(dialect)
        self.data = b""
        self.ends = [0]
        self.queue = Queue("q", QueueConfig(), self, NOW_MS)
        self.ids: list[int] = []

    def record(self, change: Change) -> None:
        assert isinstance(change, Added | Removed | Cleared | Opened | Confirmed | Aborted)
        self.data += record_of(self.encoder, change)
        self.ends.append(len(self.data))

    def run(self, operations: Operations) -> None:
        for at, (verb, *rest) in enumerate(operations):
            self.step(NOW_MS + at % 3, verb, *rest)

    def step(self, now_ms: int, verb: str, *rest: object) -> None:
        queue = self.queue
        if verb == "add":
            data, flags, *pasts = rest
            assert isinstance(data, bytes) and isinstance(flags, int)
            past = pasts[0] if pasts else b""
            assert isinstance(past, bytes)
            queue.add(item_with(past, data, now_ms, now_ms * 2, flags), now_ms)
        elif verb == "jump":
            (xid,) = rest
            assert isinstance(xid, int)
            queue.last_xid = xid
        elif verb in ("confirm", "abort"):
            (which,) = rest
            held = list(queue.open_reads.values())
            assert isinstance(which, int)
            if held:
                taken = held[which % len(held)]
                assert queue.confirm(taken) if verb == "confirm" else queue.abort(taken, now_ms)
        elif verb == "remove_head":
            queue.remove_head(now_ms)
        elif verb == "flush":
            queue.flush()
        else:
            assert verb == "open", verb
            queue.open(now_ms)

    def state(self) -> tuple[list[Content], dict[int, Content]]:
        """What a reader must find."""
        items = [content(item) for item in self.queue.line.items()]
        return items, {xid: content(taken.item) for xid, taken in self.queue.open_reads.items()}


def pasts(items: Iterable[Item]) -> list[bytes]:
    """The encoded past of each item."""
    return [past_bytes(item) for item in items]


def content(item: Item) -> Content:
    return item.data, item.added_ms, item.expires_ms, item.flags


def state(replay: Replay) -> tuple[list[Content], dict[int, Content], int]:
    """The real reader's state in the judge's words."""
    items = [content(item) for item in replay.line.items()]
    opened: dict[int, Delivery] = replay.open
    return items, {xid: content(taken.item) for xid, taken in opened.items()}, replay.counter


def feed(replay: Replay, data: bytes, piece_bytes: int = 1 << 20) -> int:
    """One file in pieces, read as recovery reads it; the length of its valid prefix."""
    replay.begin_file()
    at, want = 0, piece_bytes
    while at < len(data):
        piece = data[at : at + want]
        try:
            used = replay.consume(piece, len(data) - at - len(piece))
        except CorruptRecord as error:
            return at + error.at
        assert 0 <= used <= len(piece)
        at += used
        want = piece_bytes if used else 2 * want
    return at
