"""The state of a spool in the cluster that it belongs to. A server without `[cluster]`, and a tool that changes
journals, must leave such a spool alone: what they write would not be in the stream that other members have.

The member's file is cluster/durable.py's, which a server that stands alone does not load. Of its entries only two are
read here, the cluster's id and the mark *unfit*; tests/cluster compares the two readers.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct as Layout

import msgspec
from msgspec import Struct

from staniel.journal.disk.fs import MISSING, Fs, is_there
from staniel.journal.kestrel.files import OWN_FOLDER

FILE = "member"
PLACE_FILE = "follower"
MAGIC = b"staniel-member 1\n"
PAYLOAD_BYTES_MAX = 4 << 20  # as in cluster/frames.py
SMALL_BYTES_MAX = 100  # of an entry that says something here
_HEAD = Layout(">II")
_LENGTH = Layout(">I")
_JOINED, _MARKED = 2, 5  # tags of entries


class Standing(Enum):
    """The state of a spool in its cluster. Each text is what a message says of it."""

    ALONE = "it belongs to no cluster"
    MEMBER = "it belongs to a cluster"
    FOLLOWER = "it is a follower's, and its files may be behind its leader's"
    SHORT = "it is marked SHORT: changes that were acknowledged may be missing at its end"
    HALF = "it is marked HALF: its files are half copied, and of different moments"
    DAMAGED = "its member's file cannot be read"


FITNESS = {1: Standing.MEMBER, 2: Standing.SHORT, 3: Standing.HALF}


class Membership(Struct, frozen=True):
    """The state of a spool in its cluster, and the file that shows it."""

    standing: Standing
    path: str

    @property
    def is_alone(self) -> bool:
        return self.standing is Standing.ALONE

    @property
    def may_be_copied(self) -> bool:
        """True if a copy of the journals, without the member's file, is a spool with everything that is served."""
        return self.standing in (Standing.ALONE, Standing.MEMBER)

    @property
    def advice(self) -> str:
        """The steps to take instead of what was refused."""
        match self.standing:
            case Standing.FOLLOWER | Standing.SHORT | Standing.HALF:
                return "its server follows the leader and completes it; use the leader's spool, or a backup of that"
            case Standing.DAMAGED:
                return f"start its server, which says what is wrong with {self.path}"
        return "use a server with its [cluster] section; to use its items elsewhere, make a backup and restore that"

    def refusal(self, folder: str) -> str:
        """Return the text of a refusal to change the spool."""
        return f"{folder} cannot be used: {self.standing.value}, as {self.path} says. To do: {self.advice}"


def membership(fs: Fs, folder: str) -> Membership:
    """Return the state of the spool `folder` in its cluster. Raises OSError if a file cannot be read."""
    own = f"{folder}/{OWN_FOLDER}"
    path, place = f"{own}/{FILE}", f"{own}/{PLACE_FILE}"
    is_follower = is_there(fs, place)
    try:
        data = fs.read(path, 0, len(MAGIC))
    except MISSING:
        return Membership(Standing.FOLLOWER, place) if is_follower else Membership(Standing.ALONE, "")
    standing = _standing(fs, path) if data == MAGIC else Standing.DAMAGED
    if is_follower and standing in (Standing.ALONE, Standing.MEMBER):
        return Membership(Standing.FOLLOWER, place)
    return Membership(standing, path)


def _standing(fs: Fs, path: str) -> Standing:
    """Return what the entries of a member's file say, up to the first one that is not whole. If the cluster's id may be
    in what cannot be read, the file counts as damaged.
    """
    standing, at = Standing.ALONE, len(MAGIC)
    while len(head := fs.read(path, at, _HEAD.size)) == _HEAD.size:
        length, expected = _HEAD.unpack(head)
        payload = fs.read(path, at + _HEAD.size, length) if length <= PAYLOAD_BYTES_MAX else b""
        if not payload or _checksum(length, payload) != expected:
            return Standing.DAMAGED if standing is Standing.ALONE else standing
        if length <= SMALL_BYTES_MAX:
            standing = _after(standing, payload)
        at += _HEAD.size + length
    return standing


def _checksum(length: int, payload: bytes) -> int:
    from google_crc32c import extend, value  # imported here: a server alone does not load it

    return int(extend(value(_LENGTH.pack(length)), payload))


def _after(standing: Standing, payload: bytes) -> Standing:
    """Return the standing after an entry."""
    try:
        tag, *fields = msgspec.msgpack.decode(payload, type=list[object])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Standing.DAMAGED
    if tag == _JOINED:
        return Standing.MEMBER if standing is Standing.ALONE else standing
    if tag == _MARKED and fields:
        return FITNESS.get(fields[0], Standing.DAMAGED) if isinstance(fields[0], int) else Standing.DAMAGED
    return standing
