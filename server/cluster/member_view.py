"""The state of a member, as operators see it (cluster/status.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from staniel.broker.config.schema import ClusterSettings
from staniel.cluster.durable import Fitness
from staniel.cluster.follower import FollowerState
from staniel.cluster.leader import Leader, LeaderState, PeerState
from staniel.cluster.member import Member, RoleState
from staniel.cluster.status import FollowerStatus, MemberStatus, Role

if TYPE_CHECKING:
    from staniel.server.cluster.driver import Driver
    from staniel.server.cluster.etcd_link import EtcdLink, MemberEntry

UNFIT = {
    Fitness.WHOLE: "",
    Fitness.SHORT: "answered records may be missing at its end",
    Fitness.HALF: "its files must be copied from the leader's",
}


def status_of(
    settings: ClusterSettings,
    driver: Driver,
    entries: dict[bytes, MemberEntry],
    etcd: EtcdLink,
    lack_of_room: str,
    *,
    is_handing_over: bool,
) -> MemberStatus:
    """Return the status of this member. `entries`: the members that are alive. `lack_of_room`: why it could not begin
    to follow now, or "".
    """
    member, kept = driver.member, driver.kept
    key = member.core.key
    role = Role.HANDING_OVER if is_handing_over and member.leader is not None else role_of(member)
    answered = member.follower.answered if member.follower is not None else 0
    return MemberStatus(
        cluster=settings.name,
        cluster_id=kept.cluster_id.hex(),
        id=kept.member_id.hex(),
        name=settings.member,
        role=role,
        epoch=kept.promised,
        leader_id=key.leader_id.hex() if key is not None else "",
        leader_address=key.address if key is not None else "",
        in_sync=[member_id.hex() for member_id in key.members] if key is not None else [],
        min_in_sync=settings.min_in_sync,
        last=member.core.last,
        answered=member.leader.answered if member.leader is not None else answered,
        unfit=UNFIT[kept.fitness],
        why=why_waiting(member, lack_of_room),
        disk_full=lack_of_room if member.leader is None else "",
        leader_name=name_of(key.leader_id, entries) if key is not None else "",
        etcd=etcd.trouble,
        etcd_restored=etcd.restored,
        held_replies=driver.gate.held_count,
        copies=copies_of(member.leader) if member.leader is not None else 0,
        certificate_ends_ms=driver.links.security.ends_ms if driver.links.security is not None else 0,
        followers=(
            followers_of(driver, member.leader, entries, etcd.known)
            if member.leader is not None
            else others_of(driver, entries, etcd.known)
        ),
    )


def name_of(member_id: bytes, entries: dict[bytes, MemberEntry]) -> str:
    """Return the name of a member that is alive; "" if it is not."""
    entry = entries.get(member_id)
    return entry.name if entry is not None else ""


def role_of(member: Member) -> Role:
    """Return the role as operators see it."""
    if member.role is RoleState.STOPPED:
        return Role.STOPPED
    if member.leader is not None:
        serves = member.leader.state in (LeaderState.SERVING, LeaderState.HANDING_OVER)
        return Role.LEADING if serves else Role.TAKING_OVER
    if member.follower is None or member.follower.state is not FollowerState.FOLLOWING:
        is_copying = member.follower is not None and member.follower.state is FollowerState.COPYING
        return Role.COPYING if is_copying else Role.WAITING
    return Role.FOLLOWING


def why_waiting(member: Member, lack_of_room: str) -> str:
    """Return why a member neither leads nor follows; "" if it does."""
    if role_of(member) is not Role.WAITING:
        return ""
    if member.core.key is None:
        has_cluster = bool(member.core.kept.cluster_id)
        return (
            "the key in etcd has not been read" if has_cluster else "there is no cluster yet: see staniel cluster init"
        )
    if member.follower is None:
        return "no leader may be followed"
    return lack_of_room or "its leader is not reached"


def copies_of(leader: Leader) -> int:
    """Return how many members a leader copies its spool to."""
    return sum([peer.state is PeerState.COPYING for peer in leader.peers.values()])


def heirs_of(leader: Leader, entries: dict[bytes, MemberEntry]) -> dict[bytes, MemberEntry]:
    """Return the members that an order to hand the lead over may name: in the set and not about to leave it, connected,
    and in etcd with the address that clients are told.
    """
    following = {peer.id for peer in leader.peers.values() if peer.state is PeerState.FOLLOWING}
    staying = leader.members - leader.leaving
    return {id: entries[id] for id in sorted(staying & following) if id in entries}


def expected_of(known: dict[bytes, MemberEntry], entries: dict[bytes, MemberEntry]) -> dict[bytes, MemberEntry]:
    """Return the members that are expected and not alive, but for those in whose name another one lives: their disks
    were replaced.
    """
    names = {entry.name for entry in entries.values()}
    return {id: entry for id, entry in known.items() if id not in entries and entry.name not in names}


def followers_of(
    driver: Driver, leader: Leader, entries: dict[bytes, MemberEntry], known: dict[bytes, MemberEntry]
) -> list[FollowerStatus]:
    """Return what a leader knows of the other members. `known`: those that are expected."""
    peers = {peer.id: peer for peer in leader.peers.values()}
    heirs = heirs_of(leader, entries)
    listed = {**expected_of(known, entries), **entries}
    ids = (set(listed) | leader.members | set(peers)) - {driver.kept.member_id}
    views = []
    for member_id in sorted(ids):
        peer = peers.get(member_id)
        receives = peer is not None and peer.state in (PeerState.FOLLOWING, PeerState.COPYING)
        lag = driver.lag_of(leader.needed_by(peer)) if peer is not None and receives else (None, None, None)
        state = peer.state.value if peer is not None else ""
        view = view_of(member_id, listed.get(member_id), state, in_set=member_id in leader.members)
        views.append(
            structs.replace(view, lag_records=lag[0], lag_bytes=lag[1], lag_ms=lag[2], may_lead=member_id in heirs)
        )
    return views


def others_of(
    driver: Driver, entries: dict[bytes, MemberEntry], known: dict[bytes, MemberEntry]
) -> list[FollowerStatus]:
    """Return the other members as one that does not lead knows them: what etcd has, the leader first. `known`: those
    that are expected.
    """
    key = driver.member.core.key
    if key is None:
        return []
    listed = {**expected_of(known, entries), **entries}
    ids = (set(listed) | set(key.members)) - {driver.kept.member_id}
    states = {member_id: "leads" if member_id == key.leader_id else "in etcd" for member_id in entries}
    return [
        view_of(member_id, listed.get(member_id), states.get(member_id, ""), in_set=member_id in key.members)
        for member_id in sorted(ids, key=lambda member_id: (member_id != key.leader_id, member_id))
    ]


def view_of(member_id: bytes, entry: MemberEntry | None, state: str, *, in_set: bool) -> FollowerStatus:
    """Return what is told of another member. `state`: "" if it is not connected, or not in etcd."""
    return FollowerStatus(
        id=member_id.hex(),
        name=entry.name if entry is not None else "",
        address=entry.clients if entry is not None else "",
        in_set=in_set,
        is_connected=bool(state),
        state=state or "gone",
    )
