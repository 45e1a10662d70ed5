"""Every reason why an operator should look at a server, by name.

`health`, `/health/ready`, /metrics, the alerts, the log and the operator's page all use this list; a table in
docs/alerts/README.md explains each.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Severity(Enum):
    """The gravity of a reason. `NOT_READY`: no client is served. `REFUSES`: some requests are refused, and consumers
    can still drain queues. `WARNING`: all are served, and an operator should look.
    """

    NOT_READY = "not ready"
    REFUSES = "refuses"
    WARNING = "warning"


class ReasonName(Enum):
    STOPPING = "stopping"
    SYNC_FAILED = "sync_failed"
    STATUS = "status"
    DISK_FULL = "disk_full"
    DISK_LOW = "disk_low"
    DISK_FILLING = "disk_filling"
    SYNCS_SLOW = "syncs_slow"
    QUEUES_BLOCKED = "queues_blocked"
    QUEUES_UNREADABLE = "queues_unreadable"
    JOBS_UNREADABLE = "jobs_unreadable"
    QUEUE_FULL = "queue_full"
    QUEUE_FILLING = "queue_filling"
    QUEUE_GROWS = "queue_grows"
    READS_HELD = "reads_held"
    QUEUE_NOT_READ = "queue_not_read"
    DEAD_LETTERS = "dead_letters"
    QUEUES_PAUSED = "queues_paused"
    CONNECTIONS_FULL = "connections_full"
    CERTIFICATE_EXPIRES = "certificate_expires"
    CLOCK_APART = "clock_apart"
    SECRETS_READABLE = "secrets_readable"
    NETWORK_OPEN = "network_open"
    FILE_SYSTEM = "file_system"
    DAMAGE = "damage"
    COPIES_KEPT = "copies_kept"
    READ_KEPT = "read_kept"
    REMOVALS_REFUSED = "removals_refused"
    BACKUP_OLD = "backup_old"
    HOLD_DROPPED = "hold_dropped"
    HOLD_FILLING = "hold_filling"
    # of a member of a cluster
    NOT_LEADER = "not_leader"
    SET_TOO_SMALL = "set_too_small"
    MEMBERS_MISSING = "members_missing"
    UNFIT = "unfit"
    ETCD_UNREACHABLE = "etcd_unreachable"
    ETCD_RESTORED = "etcd_restored"


class HealthReason(Struct, frozen=True):
    """A reason why an operator should look. `mend`: what to do, with a command where there is one. For a reason about
    queues, `count` is their number, and `queues` has the first of them.
    """

    name: ReasonName
    severity: Severity
    text: str
    mend: str
    count: int = 1
    queues: tuple[str, ...] = ()


class Health(Struct, frozen=True):
    """The health of a server. `ready`: consumers are served, so a load balancer may send clients. `ready_for_puts`:
    nothing is refused. `build`: plain Python or compiled; empty for clients without the token.
    """

    ready: bool
    ready_for_puts: bool
    status: str
    reasons: list[HealthReason]
    build: str = ""
