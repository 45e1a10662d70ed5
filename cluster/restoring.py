"""The choice of a leader after etcd was restored from a backup, or has lost the key: from what the file of each member
says while all servers are stopped.

The key's set may be older than the truth, so no member is trusted for being in it. The one with the last record in the
newest epoch has all that was answered; it leads an epoch above all that were promised, alone in the set, and the others
join it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from staniel.cluster.durable import Fitness, Kept
from staniel.cluster.key import Key
from staniel.cluster.messages import Number
from staniel.cluster.places import ID_BYTES, Place

HexId = Annotated[str, Meta(pattern=f"^[0-9a-f]{{{2 * ID_BYTES}}}$")]


class MemberPlace(Struct, frozen=True, forbid_unknown_fields=True):
    """The place of a stopped member, as `staniel cluster place` prints it: a line of JSON. `last_epoch`, `last`: its
    last record. `revision`: the highest of the key that it has seen. `unfit`: "", SHORT or HALF.
    """

    cluster: str
    cluster_id: HexId
    id: HexId
    name: str
    address: str
    promised: Number
    revision: Number
    last_epoch: Number
    last: Number
    unfit: str

    @property
    def place(self) -> Place:
        return Place(self.last_epoch, self.last)


MISSING = "run `staniel cluster place` there, or give --without ID for one that is lost with its disk"
_decoder = msgspec.json.Decoder(MemberPlace)


def place_of(kept: Kept, cluster: str, name: str, address: str) -> MemberPlace | str:
    """Return the place of a member from its file, or why it has none."""
    if not kept.cluster_id:
        return "it has not joined a cluster yet"
    last = kept.stream.last
    unfit = "" if kept.fitness is Fitness.WHOLE else kept.fitness.name
    ids = kept.cluster_id.hex(), kept.member_id.hex()
    return MemberPlace(cluster, *ids, name, address, kept.promised, kept.revision, last.epoch, last.number, unfit)


def decode_place(line: str) -> MemberPlace | str:
    """Return a place from its line, or why it is none."""
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"not a place of this version: {error}"


class Choice(Struct, frozen=True):
    """The key to write. `above`: its `mod_revision` must become greater, or members take it for an old one."""

    leader: MemberPlace
    key: Key
    above: int


def choose_leader(places: Sequence[MemberPlace], current: Key | None, left_out: frozenset[str]) -> Choice | str:
    """Return the key to write, or why no leader can be chosen. `current`: what etcd has. `left_out`: ids of members
    that an operator says are lost.
    """
    if not places:
        return "no member's place is given"
    by_id = {place.id: place for place in places}
    if len(by_id) < len(places):
        return "a member's place is given twice"
    cluster_ids = {place.cluster_id for place in places} | (
        {current.cluster_id.hex()} if current is not None else set()
    )
    if len(cluster_ids) != 1:
        return f"the places and the key are of different clusters: {', '.join(sorted(cluster_ids))}"
    missing = {member.hex() for member in current.members} - by_id.keys() - left_out if current is not None else set()
    if missing:
        return f"the key names members whose places are not given: {', '.join(sorted(missing))}; {MISSING}"
    fit = [place for place in places if place.unfit != Fitness.HALF.name]
    if not fit:
        return "no member is whole: each is marked HALF; restore a backup into a new cluster"
    leader = max(fit, key=lambda place: (place.place, not place.unfit, place.id))
    seen = [*(place.promised for place in places), *(place.last_epoch for place in places)]
    epoch = max([*seen, current.epoch if current is not None else 0]) + 1
    leader_id = bytes.fromhex(leader.id)
    key = Key(bytes.fromhex(leader.cluster_id), epoch, leader_id, leader.address, (leader_id,))
    return Choice(leader, key, max(place.revision for place in places))
