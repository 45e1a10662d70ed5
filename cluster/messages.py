"""The messages of the replication stream, and their frames on the wire.

A stream begins with GREETING, which has the version; frames follow (frames.py). A payload is one Message in
MessagePack. Every message names its cluster, its sender and the sender's epoch. What a peer sends never raises:
`MessageDecoder` stops and says why. It holds no more than one frame, and never reserves what a length claims.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from staniel.cluster.frames import HEAD, frame, read_frame
from staniel.cluster.key import Id
from staniel.cluster.places import Place
from staniel.cluster.stream import Record, RecordKind, Run

VERSION = 1
GREETING = b"staniel-cluster %d\n" % VERSION
RUNS_MAX = 1000
"""Runs of a message: the newest. A member that shares none of these with the leader is repaired."""
RECORD_BYTES_MAX = 1 << 20
RECORDS_BYTES_MAX = 1 << 20
"""The records of one message hold about so many bytes, one record at least."""
RECORDS_MAX = 1000
PIECE_BYTES_MAX = 1 << 20

Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Data = Annotated[bytes, Meta(max_length=RECORD_BYTES_MAX)]


class Body(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag_field="kind"):
    """A message without its head."""


class Hello(Body, frozen=True, tag=1):
    """A follower's first words. `fixed`: records up to here are in its files and cannot be cut off. `is_half_copied`:
    its files are of different moments.
    """

    runs: Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=RUNS_MAX)]
    last: Number
    fixed: Number
    is_half_copied: bool


class Welcome(Body, frozen=True, tag=2):
    """The leader's consent: cut what is behind `common`, the stream goes on there. `last`: the leader's last number
    now; a member that lacks answered records is whole when it has synced up to it.
    """

    common: Number
    last: Number


class NeedsRepair(Body, frozen=True, tag=3):
    """The leader's refusal: behind `common` the follower has what cannot be cut off, or the leader no longer has the
    stream. The follower is out of the set.
    """

    common: Number


class CopyBegins(Body, frozen=True, tag=4):
    """The place at which the copy of files begins, and the epochs up to it. The stream is kept from here."""

    epoch: Number
    number: Number
    runs: Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=RUNS_MAX)]


class Piece(Body, frozen=True, tag=5):
    """A piece of the leader's files, as they were when it was read."""

    data: Annotated[bytes, Meta(max_length=PIECE_BYTES_MAX)]


class CopyEnds(Body, frozen=True, tag=6):
    """The number of the last record that a piece may have the effect of."""

    number: Number


class Records(Body, frozen=True, tag=7):
    """Records behind the one at (`epoch`, `number`), and up to where the leader has answered. Each record: epoch, kind,
    data; the numbers follow from the first.
    """

    epoch: Number
    number: Number
    records: Annotated[tuple[tuple[Number, RecordKind, Data], ...], Meta(max_length=RECORDS_MAX)]
    answered: Number

    def places(self) -> tuple[Record, ...]:
        """Return the records with their places."""
        return tuple(
            Record(Place(epoch, self.number + at), kind, data)
            for at, (epoch, kind, data) in enumerate(self.records, start=1)
        )


class Acknowledge(Body, frozen=True, tag=8):
    """Statement of a follower that it has synced all up to this place."""

    epoch: Number
    number: Number


class TellFiles(Body, frozen=True, tag=9):
    """The leader's question to a member that it repairs: which files it has."""


class OwnFiles(Body, frozen=True, tag=10):
    """A piece of the member's reply, which may say nothing yet."""

    data: Annotated[bytes, Meta(max_length=PIECE_BYTES_MAX)]
    is_last: bool


Bodies = Hello | Welcome | NeedsRepair | CopyBegins | Piece | CopyEnds | Records | Acknowledge | TellFiles | OwnFiles


class Message(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message with its head. `epoch`: the highest that its sender has promised."""

    cluster_id: Id
    sender: Id
    epoch: Number
    body: Bodies


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Return the message in its frame."""
    return frame(_encoder.encode(message))


def newest_runs(runs: list[Run]) -> tuple[tuple[int, int], ...]:
    """Return as many runs as a message takes, the newest."""
    return tuple((run.epoch, run.first) for run in runs[-RUNS_MAX:])


class MessageDecoder:
    """The messages of one connection. `failure`: why nothing is decoded any more, or ""."""

    def __init__(self) -> None:
        self.failure = ""
        self._data = bytearray()
        self._is_greeted = False

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete with these bytes."""
        messages: list[Message] = []
        if self.failure:
            return messages
        self._data += data
        at = self._read_greeting()
        while not self.failure and self._is_greeted:
            payload = read_frame(self._data, at)
            if payload is None:
                break
            if isinstance(payload, str):
                self.failure = payload
                break
            at += HEAD.size + len(payload)
            try:
                messages.append(_decoder.decode(payload))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                self.failure = f"not a message of version {VERSION}: {error}"
        if at:
            del self._data[:at]
        if self.failure:
            self._data.clear()
        return messages

    def _read_greeting(self) -> int:
        """Return how many bytes of the greeting can be dropped."""
        if self._is_greeted:
            return 0
        begun = bytes(self._data[: len(GREETING)])
        if not GREETING.startswith(begun):
            self.failure = f"the peer does not speak version {VERSION} of the replication protocol"
        self._is_greeted = begun == GREETING
        return len(GREETING) if self._is_greeted else 0
