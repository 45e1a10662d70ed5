"""The figures of a member in Prometheus' text format, and the reasons of its health: both from what it tells of itself
(cluster/status.py). A leader adds them to those of its queues; a follower has no others but its process's.
"""

from __future__ import annotations

from collections.abc import Iterable

from staniel.broker.admin.health import CERTIFICATE_WARNING_MS, DAY_MS
from staniel.broker.admin.metrics import MetricKind, escape_label, head, lines_of, of_process
from staniel.broker.admin.process import ProcessFigures
from staniel.broker.admin.reasons import Health, HealthReason, ReasonName, Severity
from staniel.broker.version import VERSION
from staniel.cluster.status import FollowerStatus, MemberStatus, Role
from staniel.compiled import BUILD
from staniel.server.clock import wall_ms

OF_MEMBERS = (
    ReasonName.NOT_LEADER,
    ReasonName.SET_TOO_SMALL,
    ReasonName.MEMBERS_MISSING,
    ReasonName.UNFIT,
    ReasonName.DISK_FULL,
    ReasonName.ETCD_UNREACHABLE,
    ReasonName.ETCD_RESTORED,
    ReasonName.CERTIFICATE_EXPIRES,
)
LEADING = (Role.LEADING, Role.HANDING_OVER)
RESTORED_MEND = "stop all servers of the cluster, then: staniel cluster restore-etcd --help"
Samples = Iterable[tuple[str, float]]
"""The labels and the value of each sample of a family."""


def reasons_of(status: MemberStatus) -> list[HealthReason]:
    """Return why an operator should look at a member."""
    reasons = []
    if status.etcd_restored:
        text = f"etcd has an older state than this member has seen: {status.etcd_restored}"
        severity = Severity.REFUSES if status.role in LEADING else Severity.WARNING
        reasons.append(HealthReason(ReasonName.ETCD_RESTORED, severity, text, RESTORED_MEND))
    elif status.etcd:
        mend = "look at etcd: etcdctl endpoint health; a leader goes on while all members of its set acknowledge"
        reasons.append(HealthReason(ReasonName.ETCD_UNREACHABLE, Severity.WARNING, status.etcd, mend))
    if status.unfit:
        mend = "it mends itself once it follows; without a leader: staniel cluster"
        reasons.append(HealthReason(ReasonName.UNFIT, Severity.WARNING, f"it cannot lead: {status.unfit}", mend))
    if status.disk_full:
        mend = "make room on its disk: it follows by itself then"
        reasons.append(HealthReason(ReasonName.DISK_FULL, Severity.WARNING, status.disk_full, mend))
    if (ends_ms := status.certificate_ends_ms) and ends_ms - wall_ms() < CERTIFICATE_WARNING_MS:
        text = f"the certificate of [cluster] expires in {max(0, ends_ms - wall_ms()) // DAY_MS} days"
        mend = "renew its file, then: staniel reload"
        reasons.append(HealthReason(ReasonName.CERTIFICATE_EXPIRES, Severity.WARNING, text, mend))
    if status.role is not Role.LEADING:
        reasons.append(
            HealthReason(ReasonName.NOT_LEADER, Severity.NOT_READY, _why_not_leader(status), "staniel cluster")
        )
    elif len(status.in_sync) < status.min_in_sync:
        text = f"{len(status.in_sync)} of {status.min_in_sync} members are in sync (min_in_sync), writes are refused"
        mend = "start the other members; which are missing tells: staniel cluster"
        reasons.append(HealthReason(ReasonName.SET_TOO_SMALL, Severity.REFUSES, text, mend))
    elif missing := [other.name or other.id for other in status.followers if not other.in_set]:
        text = f"{', '.join(missing)}: not in sync; {len(status.in_sync)} of {len(status.followers) + 1} members are"
        mend = "staniel cluster"
        reasons.append(HealthReason(ReasonName.MEMBERS_MISSING, Severity.WARNING, text, mend, len(missing)))
    return reasons


def _why_not_leader(status: MemberStatus) -> str:
    led = f"; the leader is {status.leader_address}" if status.leader_id not in ("", status.id) else ""
    return f"this member of the cluster {status.cluster} is {status.role.value}{led}"


def health_of(status: MemberStatus, *, is_for_member: bool) -> Health:
    """Return the health of a member that does not lead. `is_for_member`: asked is not whether clients are served, but
    whether it is whole and in sync.
    """
    reasons = reasons_of(status)
    if is_for_member:
        reasons = [reason for reason in reasons if reason.name is not ReasonName.NOT_LEADER]
        is_ready = not status.unfit and status.role is Role.FOLLOWING and status.id in status.in_sync
        return Health(is_ready, is_ready, status.role.value, reasons, BUILD)
    return Health(False, False, status.role.value, reasons, BUILD)


def metrics_of(status: MemberStatus) -> str:
    """Return the metrics of a member. Each has the label `cluster`; those that only a leader has, also `member`."""
    own = f'{{cluster="{escape_label(status.cluster)}"}}'
    roles = ((f'{own[:-1]},role="{role.value}"}}', int(role is status.role)) for role in Role)
    names = {"member": status.name, "id": status.id}
    info = own[:-1] + "".join([f',{key}="{escape_label(value)}"' for key, value in names.items()]) + "}"

    def of_own(value: float) -> Samples:
        return ((own, value),)

    families: list[tuple[str, str, Samples]] = [
        ("info", "The name and the id of this member.", ((info, 1),)),
        ("role", "1 for the role that this member has.", roles),
        ("epoch", "The highest epoch that this member has promised.", of_own(status.epoch)),
        ("members_in_sync", "Members of the set, as this one knows it.", of_own(len(status.in_sync))),
        ("min_in_sync", "Members that a put needs.", of_own(status.min_in_sync)),
        ("in_sync", "1 if this member is in the set.", of_own(int(status.id in status.in_sync))),
        ("unfit", "1 if this member cannot lead before it is repaired.", of_own(int(bool(status.unfit)))),
        ("last_record", "The number of the last record that this member has.", of_own(status.last)),
        ("answered_record", "The number up to which records are answered.", of_own(status.answered)),
        ("etcd_reachable", "0 if the last call to etcd failed.", of_own(int(not status.etcd))),
        ("etcd_restored", "1 if etcd has got an older state.", of_own(int(bool(status.etcd_restored)))),
    ]
    if status.role in LEADING:
        families += [
            ("held_replies", "Replies that wait for records to be answered.", of_own(status.held_replies)),
            ("copies", "Copies of the spool to members that join.", of_own(status.copies)),
            *_families_of_followers(own, status.followers),
        ]
    return "".join([_family(name, about, samples) for name, about, samples in families])


def _families_of_followers(own: str, followers: Iterable[FollowerStatus]) -> list[tuple[str, str, Samples]]:
    labels = {other.id: f'{own[:-1]},member="{escape_label(other.name or other.id)}"}}' for other in followers}
    behind = [other for other in followers if other.lag_records is not None]
    return [
        ("member_connected", "1 if the member is connected.", [(labels[o.id], int(o.is_connected)) for o in followers]),
        ("member_in_sync", "1 if the member is in the set.", [(labels[o.id], int(o.in_set)) for o in followers]),
        ("member_lag_records", "Records not acknowledged.", [(labels[o.id], o.lag_records or 0) for o in behind]),
        ("member_lag_bytes", "Their size.", [(labels[o.id], o.lag_bytes or 0) for o in behind]),
        ("member_lag_seconds", "The age of the oldest.", [(labels[o.id], (o.lag_ms or 0) / 1000) for o in behind]),
    ]


def _family(name: str, about: str, samples: Samples) -> str:
    full = f"staniel_cluster_{name}"
    return head(full, MetricKind.GAUGE, about) + "".join([f"{full}{labels} {value}\n" for labels, value in samples])


def metrics_of_follower(status: MemberStatus, up_ms: int, figures: ProcessFigures | None) -> str:
    """Return all metrics of a member that does not lead. It has neither `staniel_ready` nor those of queues."""
    counts = dict.fromkeys(OF_MEMBERS, 0) | {reason.name: 1 for reason in reasons_of(status)}
    name = "staniel_health_reason"
    reasons = head(name, MetricKind.GAUGE, "1 if /health/ready names the reason.")
    reasons += "".join([f'{name}{{reason="{reason.value}"}} {count}\n' for reason, count in counts.items()])
    build = head("staniel_build_info", MetricKind.GAUGE, "The version and the build.")
    build += f'staniel_build_info{{version="{VERSION}",build="{BUILD}"}} 1\n'
    up = [("staniel_up_seconds", MetricKind.GAUGE, "Time since the start.", up_ms / 1000)]
    return "".join([*lines_of([*up, *of_process(figures)]), build, reasons, metrics_of(status)])
