"""Is the server alive, is it ready, and if not: why, and which command mends it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.access import why_unreadable
from staniel.broker.status import ServerStatus
from staniel.broker.users import is_unguarded
from staniel.journal.disk.fs import SHORT_ERRNOS

if TYPE_CHECKING:
    from staniel.broker.broker import Broker

NAMES_MAX = 10  # of queues in one reason
DAY_MS = 24 * 3600 * 1000
CERTIFICATE_WARNING_MS = 14 * DAY_MS  # authorities that renew by themselves do so a month before the end


class Severity(Enum):
    """`NOT_READY`: clients are refused. `WARNING`: they are served, and an operator should look."""

    NOT_READY = "not ready"
    WARNING = "warning"


class HealthReason(Struct, frozen=True):
    """One thing that is not as it should be. `mend`: what to do about it, a command where there is one."""

    name: str
    severity: Severity
    text: str
    mend: str


class Health(Struct, frozen=True):
    ready: bool
    status: str
    reasons: list[HealthReason]


def health(broker: Broker, now_ms: int) -> Health:
    """All reasons, the gravest first. Looks at each queue once: 0.1 us."""
    reasons = [*_of_server(broker), *_of_secrets(broker, now_ms), *_of_disk(broker), *_of_queues(broker)]
    reasons.sort(key=lambda reason: reason.severity is Severity.WARNING)
    is_ready = all(reason.severity is Severity.WARNING for reason in reasons)
    return Health(is_ready, broker.status.reported.value.lower(), reasons)


def _of_server(broker: Broker) -> list[HealthReason]:
    found = []
    status = broker.status.reported
    if broker.stopping:
        found.append(HealthReason("stopping", Severity.NOT_READY, "the server is stopping", "start it again"))
    if not (status.reads and status.writes):
        refused = "writes" if status.reads else "reads and writes"
        text = f"the status is {status.value.lower()}: {refused} are refused"
        found.append(HealthReason("status", Severity.NOT_READY, text, "staniel status up"))
    elif status is not ServerStatus.UP:
        text = f"the status is {status.value.lower()}: clients are asked to write elsewhere"
        found.append(HealthReason("status", Severity.WARNING, text, "staniel status up"))
    if is_unguarded(broker.config):
        text = "other machines reach this server, and no client is asked who it is"
        mend = "give [users] or [tls] client_certificates; see docs/security.md"
        found.append(HealthReason("network_open", Severity.WARNING, text, mend))
    most = broker.limits.max_connections
    if most and broker.counters.curr_connections >= most:
        text = f"{broker.counters.curr_connections} clients are connected, and no more are accepted"
        mend = "raise [server] max_connections, or the limit of open files, or look at: staniel clients"
        found.append(HealthReason("connections_full", Severity.WARNING, text, mend))
    if broker.serves_jobs and broker.workq.trouble:
        text = f"the command log of jobs cannot be read: {broker.workq.trouble}"
        found.append(HealthReason("jobs_unreadable", Severity.NOT_READY, text, "mend the file, then: staniel reload"))
    return found


def for_strangers(found: Health) -> Health:
    """What a load balancer needs. The rest names queues, folders and files."""
    reasons = [
        HealthReason(each.name, each.severity, each.name.replace("_", " "), "ask with the token for what mends it")
        for each in found.reasons
    ]
    return Health(found.ready, found.status, reasons)


def _of_secrets(broker: Broker, now_ms: int) -> list[HealthReason]:
    found = _of_certificate(broker, now_ms)
    if exposed := broker.exposed_files:
        text = f"every user of this machine can read {', '.join(exposed)}"
        mend = f"chmod o-r {' '.join(exposed)}, and have new secrets in there, then: staniel reload"
        found.append(HealthReason("secrets_readable", Severity.WARNING, text, mend))
    return found


def _of_certificate(broker: Broker, now_ms: int) -> list[HealthReason]:
    ends_ms = broker.certificate_ends_ms
    if ends_ms is None or ends_ms - now_ms >= CERTIFICATE_WARNING_MS:
        return []
    if ends_ms <= now_ms:
        text = "the certificate of [tls] has expired: clients that check it do not connect"
    else:
        text = f"the certificate of [tls] expires in {(ends_ms - now_ms) // DAY_MS} days"
    return [HealthReason("certificate_expires", Severity.WARNING, text, "renew its file, then: staniel reload")]


def _of_disk(broker: Broker) -> list[HealthReason]:
    group, fs = broker.group, broker.spool.fs
    if fs.failure:
        text = f"{fs.failure}: nothing is acknowledged any more, and the process ends"
        return [HealthReason("sync_failed", Severity.NOT_READY, text, "look at the disk, then start the server again")]
    if group.is_full:
        text = "the disk is full: puts are refused, gets go on"
        mend = f"make room on the disk of {broker.spool.folder}; puts are accepted within a second of that"
        return [HealthReason("disk_full", Severity.NOT_READY, text, mend)]
    found = [*_of_file_systems(broker), *_of_damage(broker)]
    free, total = fs.free_bytes(broker.spool.folder)
    low = max(4 * group.ballast.bytes, total // 50)
    if free < low:
        text = f"{free >> 20} MB of {total >> 20} MB are free on the disk of the spool"
        mend = f"make room on the disk of {broker.spool.folder} before puts are refused"
        found.append(HealthReason("disk_low", Severity.WARNING, text, mend))
    return found


def _of_file_systems(broker: Broker) -> list[HealthReason]:
    if broker.config.server.trust_file_system:
        return []
    mend = "give a folder on a local disk, or, if it is meant: [server] trust_file_system = true"
    return [
        HealthReason("file_system", Severity.WARNING, f"{folder}: {flaw.text}", mend)
        for folder, flaw in broker.file_systems.items()
    ]


def _of_damage(broker: Broker) -> list[HealthReason]:
    damages = broker.damages
    if not damages.count:
        return []
    more = f", and {damages.count - 1} more" if damages.count > 1 else ""
    text = f"bytes of the spool could not be read since the start: {damages.first}{more}; the rest is served"
    mend = (
        f"the log says what is lost, and where in {broker.spool.own}/damaged a copy of those bytes is; "
        "look at the disk; the next start that can read everything ends this warning"
    )
    return [HealthReason("damage", Severity.WARNING, text, mend)]


def _of_queues(broker: Broker) -> list[HealthReason]:
    found = []
    if blocked := broker.queues.blocked:
        text = f"{_names(list(blocked))} cannot be served: {next(iter(blocked.values()))}"
        mend = "mend or remove the files that the log names, then: staniel reload"
        found.append(HealthReason("queues_blocked", Severity.NOT_READY, text, mend))
    unreadable = [queue for queue in broker.queues if queue.line.read_error is not None]
    if unreadable and (error := unreadable[0].line.read_error) is not None:
        text = f"{_names([queue.name for queue in unreadable])} cannot be read: {why_unreadable(error)}"
        mend = "make the file readable, or remove it, then: staniel reload"
        if error.errno in SHORT_ERRNOS:
            mend = "end what holds so many files or so much memory; it is tried again each second"
        found.append(HealthReason("queues_unreadable", Severity.NOT_READY, text, mend))
    paused = [queue.name for queue in broker.queues if queue.gets_paused or queue.puts_paused]
    if paused:
        found.append(
            HealthReason("queues_paused", Severity.WARNING, f"{_names(paused)} paused", f"staniel resume {paused[0]}")
        )
    return found


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    are = "queues" if len(names) > 1 else "queue"
    return f"{are} {', '.join(names[:NAMES_MAX])}{more}"
