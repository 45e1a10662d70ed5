"""The key in etcd: which member leads which epoch, and the in-sync set."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from staniel.cluster.places import ID_BYTES

KEY_BYTES_MAX = 16 << 10
MEMBERS_MAX = 16
ADDRESS_MAX = 300
MISSING_REVISION = 0
"""The `mod_revision` that etcd compares for a key that does not exist."""

Epoch = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]


class Key(Struct, frozen=True, forbid_unknown_fields=True):
    """The value of the key. It has no lease: it stays when members or etcd restart. `leader_id` leads `epoch` once it
    has promised it; `address` is where its clients go. `members`: the in-sync set, sorted. Ids are made with a
    spool, so a new disk is another member, whatever the machine is called.
    """

    cluster_id: Id
    epoch: Epoch
    leader_id: Id
    address: Annotated[str, Meta(max_length=ADDRESS_MAX)]
    members: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=MEMBERS_MAX)]

    def with_members(self, members: frozenset[bytes]) -> Key:
        """Return the same epoch and leader with another set."""
        return msgspec.structs.replace(self, members=tuple(sorted(members)))

    def led_by(self, leader_id: bytes, address: str) -> Key:
        """Return the next epoch, with the set unchanged."""
        return msgspec.structs.replace(self, epoch=self.epoch + 1, leader_id=leader_id, address=address)


_decoder = msgspec.json.Decoder(Key)


def prefix_of(cluster: str) -> bytes:
    """Return how all keys of a cluster in etcd begin. `leader` behind it is the key of this file; `members/` and a
    member's id stand before what that member says of itself while it is alive.
    """
    return f"/staniel/{cluster}/".encode()


def encode_key(key: Key) -> bytes:
    """Return the key's value as JSON."""
    return msgspec.json.encode(key)


def decode_key(value: bytes) -> Key | str:
    """Return the key, or why the value is not one of this version."""
    if len(value) > KEY_BYTES_MAX:
        return f"the value has {len(value)} bytes, more than {KEY_BYTES_MAX}"
    try:
        key = _decoder.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return f"not a key of this version: {error}"
    if tuple(sorted(set(key.members))) != key.members:
        return "the set is not sorted, or has a member twice"
    if key.leader_id not in key.members:
        return "the leader is not in the set"
    return key
