"""The state of a member as its admin listener tells it, in every role, and the orders that it takes. All bodies are
JSON.

    GET  /cluster            200 with MemberStatus
    POST /cluster/init       make the cluster, with this member alone in its set; no body. 200 with Accepted
    POST /cluster/remove     Remove: a member that is stopped is expected no more. 202 with Accepted
    POST /cluster/handover   HandOver; 202 with Accepted: the lead moves once all is answered, GET /cluster tells when

A refusal is 409 with Refused; 404: the server stands alone. The numbers of records are those of docs/replication.md.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Role(Enum):
    """The role of a member, as operators see it."""

    WAITING = "waiting"  # no leader is known that it may follow
    FOLLOWING = "following"
    COPYING = "copying"  # it follows, and its files are being copied
    TAKING_OVER = "taking over"  # the key names it, and it recovers its spool
    LEADING = "leading"
    HANDING_OVER = "handing over"  # it leads, and takes no requests
    STOPPED = "stopped"


class FollowerStatus(Struct, frozen=True):
    """A member as another one knows it. `is_connected`: to the leader; in etcd, where it is not the leader that tells.
    `lag_*`: what it has not acknowledged of the leader's records: how many, how many bytes, and for how long the oldest
    has waited; None if it gets no records, or the leader is not asked. `may_lead`: only the leader knows.
    """

    id: str
    name: str
    address: str
    in_set: bool
    is_connected: bool
    state: str
    lag_records: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    may_lead: bool = False


class MemberStatus(Struct, frozen=True):
    """The state of a member. `epoch`: the highest that it has promised. `cluster_id` "": it belongs to no cluster
    yet. `leader_address`: where clients go, "" if no leader is known. `in_sync`: ids of the set. `last`,
    `answered`: numbers of records. `unfit`: "" or why it cannot lead. `why`: what it waits for, or why it stopped.
    `etcd`: why the last call to etcd failed; `etcd_restored`: how this member knows that etcd got an older state
    while it ran. `held_replies` of a leader wait for records to be answered; `copies` of its files are under way.
    `followers`: the other members that a leader has heard of, or that etcd has told another one of.
    `certificate_ends_ms`: when the certificate that it shows other members expires, in epoch milliseconds; 0: it
    has none. `disk_full`: why one that does not lead has no room for records.
    """

    cluster: str
    cluster_id: str
    id: str
    name: str
    role: Role
    epoch: int
    leader_id: str
    leader_address: str
    in_sync: list[str]
    min_in_sync: int
    last: int
    answered: int
    unfit: str = ""
    why: str = ""
    etcd: str = ""
    etcd_restored: str = ""
    leader_name: str = ""
    held_replies: int = 0
    copies: int = 0
    certificate_ends_ms: int = 0
    disk_full: str = ""
    followers: list[FollowerStatus] = []


class HandOver(Struct, frozen=True, forbid_unknown_fields=True):
    """An order to move the lead. `to`: a member's name or id; "": any member of the set."""

    to: str = ""


class Remove(Struct, frozen=True, forbid_unknown_fields=True):
    """An order to expect a member no more. `member`: its name or id."""

    member: str


class Accepted(Struct, frozen=True):
    """An order that was taken. `member`: the one it is about."""

    member: str


class Refused(Struct, frozen=True):
    """An order that was refused; nothing has changed."""

    error: str
