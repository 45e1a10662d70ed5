"""What members send, keep and put into etcd is read back as it was; hostile bytes end in a reason, soon and cheaply."""

from __future__ import annotations

import tracemalloc
from struct import pack
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.cluster import durable, messages
from staniel.cluster.durable import (
    MAGIC,
    Appended,
    Copied,
    Cut,
    Entries,
    Fitness,
    Fixed,
    Joined,
    Kept,
    Marked,
    Promised,
    Seen,
    Trimmed,
    Unsynced,
    compacted,
    encode_entry,
    new_file,
    read_file,
)
from staniel.cluster.frames import HEAD, PAYLOAD_BYTES_MAX, checksum, frame, read_frame
from staniel.cluster.key import Key, decode_key, encode_key
from staniel.cluster.messages import GREETING, Acknowledge, Bodies, Message, MessageDecoder, Records, encode_message
from staniel.cluster.places import Place
from staniel.cluster.stream import Record, RecordKind, Run, Stream, last_common

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
NUMBERS = st.integers(0, (1 << 63) - 1)
IDS = st.binary(min_size=16, max_size=16)
RUNS = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5).map(tuple)
DATA = st.binary(max_size=100)
ROWS = st.lists(st.tuples(NUMBERS, st.sampled_from(RecordKind), DATA), max_size=5).map(tuple)
BODIES: st.SearchStrategy[Any] = st.one_of(
    st.builds(messages.Hello, RUNS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(messages.Welcome, NUMBERS, NUMBERS),
    st.builds(messages.NeedsRepair, NUMBERS),
    st.builds(messages.CopyBegins, NUMBERS, NUMBERS, RUNS),
    st.builds(messages.Piece, DATA),
    st.builds(messages.CopyEnds, NUMBERS),
    st.builds(messages.Records, NUMBERS, NUMBERS, ROWS, NUMBERS),
    st.builds(messages.Acknowledge, NUMBERS, NUMBERS),
    st.builds(messages.TellFiles),
    st.builds(messages.OwnFiles, DATA, st.booleans()),
)
MESSAGES = st.builds(Message, IDS, IDS, NUMBERS, BODIES)
KEYS = st.builds(
    lambda cluster, epoch, address, ids: Key(cluster, epoch, sorted(ids)[0], address, tuple(sorted(ids))),
    IDS, st.integers(1, 1 << 60), st.text(max_size=40), st.sets(IDS, min_size=1, max_size=5),
)  # fmt: skip


def test_every_kind_of_message_is_drawn() -> None:
    drawn = {Bodies.__args__.index(kind) for kind in Bodies.__args__}
    assert len(drawn) == 10, "draw the new kind in BODIES of this file"


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(1, 60), max_size=20))
def test_messages_are_read_back_in_whatever_pieces_they_come(sent: list[Message], cuts: list[int]) -> None:
    wire = GREETING + b"".join(map(encode_message, sent))
    decoder, received = MessageDecoder(), []
    for size in cuts:
        received += decoder.feed(wire[:size])
        wire = wire[size:]
    received += decoder.feed(wire)
    assert received == sent and decoder.failure == ""


@given(st.binary(max_size=300), st.booleans())
def test_hostile_bytes_never_raise_and_end_the_stream_for_good(data: bytes, is_greeted: bool) -> None:
    decoder = MessageDecoder()
    decoder.feed(GREETING * is_greeted)
    decoder.feed(data)
    if decoder.failure:
        assert decoder.feed(encode_message(Message(A, B, 1, Acknowledge(1, 1)))) == []


@given(st.recursive(st.none() | st.booleans() | st.integers(-5, 9) | st.binary(max_size=20) | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=6), max_leaves=30))  # fmt: skip
def test_a_whole_frame_of_anything_is_a_message_or_a_failure(value: object) -> None:
    decoder = MessageDecoder()
    received = decoder.feed(GREETING + frame(msgspec.msgpack.encode(value)))
    assert bool(received) is not bool(decoder.failure)


@given(MESSAGES, st.data())
def test_a_changed_byte_is_noticed(message: Message, data: st.DataObject) -> None:
    wire = bytearray(encode_message(message))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] ^= data.draw(st.integers(1, 255))
    decoder = MessageDecoder()
    assert decoder.feed(GREETING + wire) == []


@pytest.mark.parametrize("length", [0, PAYLOAD_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_length_that_no_frame_has_is_refused_at_once(length: int) -> None:
    decoder = MessageDecoder()
    assert decoder.feed(GREETING + pack(">II", length, 0)) == [] and "claims" in decoder.failure


def test_nothing_is_reserved_for_what_a_length_claims() -> None:
    claims = pack(">II", PAYLOAD_BYTES_MAX, 0) + b"few bytes"
    inner = b"\x94" + b"\xc4\x10" + A + b"\xc4\x10" + B + b"\x01" + b"\x95\x07\x01\x01" + b"\xdd\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        first, second = MessageDecoder(), MessageDecoder()
        first.feed(GREETING + claims)
        second.feed(GREETING + frame(inner))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert second.failure


def test_a_peer_of_another_version_is_refused_with_a_reason() -> None:
    decoder = MessageDecoder()
    decoder.feed(b"staniel-cluster 2\n")
    assert "version 1" in decoder.failure


def test_a_long_stream_takes_time_that_grows_with_its_length() -> None:
    message = encode_message(Message(A, B, 1, Records(1, 1, ((1, RecordKind.PUT, b"x" * 1000),) * 900, 1)))
    decoder = MessageDecoder()
    decoder.feed(GREETING)
    received = [got for at in range(len(message)) for got in decoder.feed(message[at : at + 1])]  # byte by byte
    assert len(received) == 1


@given(KEYS)
def test_a_key_is_read_back(key: Key) -> None:
    assert decode_key(encode_key(key)) == key


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_a_foreign_value_of_the_key_is_refused_with_a_reason(value: bytes) -> None:
    assert isinstance(decode_key(value), str)


@pytest.mark.parametrize(
    "key",
    [
        Key(C, 1, A, "a:1", (B, A)),
        Key(C, 1, A, "a:1", (A, A)),
        Key(C, 1, B, "a:1", (A,)),
        Key(C, 0, A, "a:1", (A,)),
        Key(C, 1, A, "a:1", ()),
        Key(b"short", 1, A, "a:1", (A,)),
    ],
)
def test_a_key_that_cannot_be_is_refused(key: Key) -> None:
    assert isinstance(decode_key(encode_key(key)), str)


def test_a_key_with_unknown_fields_is_refused() -> None:
    value = encode_key(Key(C, 1, A, "a:1", (A,)))
    assert isinstance(decode_key(value[:-1] + b',"more":1}'), str)
    assert isinstance(decode_key(b"[" * 100_000), str) and isinstance(decode_key(b"[" * 10_000), str)


HISTORY: list[Entries] = [
    Joined(C, 1),
    Promised(3),
    Seen(9),
    *(Appended(3, number, RecordKind.PUT, b"%d" % number) for number in range(2, 8)),
    Cut(6),
    Fixed(4),
    Trimmed(3),
    Appended(4, 7, RecordKind.EPOCH, b""),
    Marked(Fitness.SHORT),
    Unsynced(b"boot"),
]


def test_a_file_adds_up_to_its_entries() -> None:
    data = new_file(A) + b"".join(map(encode_entry, HISTORY))
    content = read_file(data)
    assert not isinstance(content, str)
    kept, whole, damage = content
    assert (whole, damage) == (len(data), "") and (kept.member_id, kept.cluster_id, kept.promised, kept.revision) == (
        A,
        C,
        3,
        9,
    )
    assert (kept.fitness, kept.fixed, kept.stream.base, kept.stream.last) == (
        Fitness.SHORT,
        4,
        Place(3, 3),
        Place(4, 7),
    )
    assert kept.stream.runs == [Run(3, 2), Run(4, 7)]
    assert [record.place.number for record in kept.stream.behind(4)] == [5, 6, 7]


@given(st.integers(0, 700), st.binary(max_size=40))
def test_a_torn_file_is_read_up_to_the_last_whole_entry(cut: int, garbage: bytes) -> None:
    pieces = [new_file(A), *map(encode_entry, HISTORY)]
    data = b"".join(pieces)
    cut = max(len(pieces[0]), min(cut, len(data)))
    content = read_file(data[:cut] + garbage)
    assert not isinstance(content, str)
    ends = [sum(map(len, pieces[:count])) for count in range(1, len(pieces) + 1)]
    assert content.whole == max(end for end in ends if end <= cut) or data[:cut] + garbage == data[: cut + len(garbage)]
    assert not content.damage


def described(kept: Kept) -> object:
    """All of what a file says."""
    stream = kept.stream
    fields = kept.member_id, kept.cluster_id, kept.promised, kept.revision, kept.fitness, kept.fixed, kept.unsynced
    return fields, stream.base, stream.runs, stream.records


@given(st.integers(0, len(HISTORY)))
def test_a_compacted_file_says_the_same_and_can_be_compacted_again(count: int) -> None:
    content = read_file(new_file(A) + b"".join(map(encode_entry, HISTORY[:count])))
    assert not isinstance(content, str)
    small = compacted(content.kept)
    again = read_file(small)
    assert not isinstance(again, str)
    assert described(again.kept) == described(content.kept) and again.whole == len(small)
    assert compacted(again.kept) == small


def test_a_compacted_file_of_a_copied_member_has_its_runs() -> None:
    entries: list[Entries] = [Joined(C, 0), Promised(9), Copied(7, 40, ((2, 1), (7, 30))), Trimmed(40)]
    entries += [Appended(7, 41, RecordKind.PUT, b"a"), Appended(9, 42, RecordKind.EPOCH, b""), Fixed(durable.ALL_FIXED)]
    content = read_file(new_file(A) + b"".join(map(encode_entry, entries)))
    assert not isinstance(content, str)
    again = read_file(compacted(content.kept))
    assert not isinstance(again, str) and described(again.kept) == described(content.kept)
    assert content.kept.stream.runs == [Run(2, 1), Run(7, 30), Run(9, 42)]


@given(st.data())
def test_damage_before_a_whole_entry_is_never_taken_for_a_torn_end(data: st.DataObject) -> None:
    pieces = [new_file(A), *map(encode_entry, HISTORY)]
    whole, last = b"".join(pieces), len(pieces[-1])
    at = data.draw(st.integers(len(pieces[0]) + len(pieces[1]), len(whole) - last - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    torn = data.draw(st.binary(max_size=20))
    content = read_file(bytes(damaged) + torn)
    assert not isinstance(content, str), content
    assert content.damage and content.kept.fitness is Fitness.HALF and content.whole <= at


@pytest.mark.parametrize("at", [len(MAGIC) + 3, len(new_file(A)) + 12])
def test_a_file_that_does_not_say_who_it_is_of_is_refused(at: int) -> None:
    data = bytearray(new_file(A) + b"".join(map(encode_entry, HISTORY)))
    data[at] ^= 1
    refused = read_file(bytes(data))
    assert isinstance(refused, str) and "which member of which cluster" in refused


def test_looking_for_what_follows_a_torn_end_takes_time_that_grows_with_it() -> None:
    data = new_file(A) + encode_entry(Joined(C, 1)) + encode_entry(Promised(1))
    for head, is_damage in ((b"\xff\xff\xff\xff", False), (b"\x00\x00\x00\x90", False), (b"\x00\x07\xff\xff", True)):
        torn = encode_entry(Appended(1, 2, RecordKind.PUT, (head + b"sums\x95\x06") * 100_000))[:-1]
        content = read_file(data + torn)
        assert not isinstance(content, str)
        assert content.whole == len(data) and bool(content.damage) is is_damage


@given(st.binary(max_size=300))
def test_hostile_bytes_in_a_file_never_raise(data: bytes) -> None:
    read_file(data)
    read_file(MAGIC + data)
    read_file(new_file(A) + data)
    read_file(new_file(A) + frame(data or b"x"))


@pytest.mark.parametrize(
    "entry",
    [Appended(1, 5, RecordKind.PUT, b""), Appended(0, 1, RecordKind.PUT, b""), Cut(3), Trimmed(3)],
)
def test_an_entry_that_contradicts_those_before_it_is_a_reason(entry: Entries) -> None:
    assert isinstance(read_file(new_file(A) + encode_entry(entry)), str)


def test_a_file_without_an_id_or_of_another_version_is_a_reason() -> None:
    assert isinstance(read_file(b"staniel-member 2\n"), str) and isinstance(read_file(MAGIC), str)
    assert isinstance(read_file(MAGIC + frame(msgspec.msgpack.encode([99, 1]))), str)
    assert durable.read_file(new_file(A) + encode_entry(Copied(2, 9, ((1, 1), (2, 5))))) != ""


def test_a_frame_says_what_is_missing_and_what_is_wrong() -> None:
    whole = frame(b"payload")
    assert read_frame(whole, 0) == b"payload" and read_frame(whole[:-1], 0) is None and read_frame(b"", 0) is None
    assert isinstance(read_frame(HEAD.pack(7, checksum(b"payloae")) + b"payload", 0), str)


def stream_of(*epochs: int, base: int = 0) -> Stream:
    stream = Stream()
    for number, epoch in enumerate(epochs, start=1):
        stream.append(Record(Place(epoch, number), RecordKind.PUT, b""))
    stream.forget(base)
    return stream


@given(st.lists(st.integers(1, 4), max_size=8).map(sorted), st.lists(st.integers(1, 4), max_size=8).map(sorted))
def test_the_last_common_place_is_the_last_number_of_one_epoch(ours: list[int], theirs: list[int]) -> None:
    expected = max((at for at, pair in enumerate(zip(ours, theirs, strict=False), 1) if pair[0] == pair[1]), default=0)
    other = stream_of(*theirs)
    assert last_common(stream_of(*ours), other.runs, other.last.number) == expected


def test_a_stream_that_forgets_knows_its_epochs_and_what_it_has() -> None:
    stream = stream_of(1, 1, 2, 2, 5, base=3)
    assert [stream.epoch_of(number) for number in range(7)] == [0, 1, 1, 2, 2, 5, 0]
    assert (stream.base, stream.last) == (Place(2, 3), Place(5, 5))
    assert [stream.has_behind(number) for number in range(7)] == [False, False, False, True, True, True, False]
    stream.cut(4)
    assert stream.last == Place(2, 4) and stream.runs == [Run(1, 1), Run(2, 3)]
