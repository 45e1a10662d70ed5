"""The sections of the configuration file: every key, the kind of its value, its default. QueueConfig declares the keys
of queues; all others are here.

A Struct's attribute ends in its unit (`client_timeout_ms`); `field(name=...)` is the key in the file, Kestrel's own in
snake_case.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct, field

from staniel.broker.config import values
from staniel.broker.config.addresses import Address, TcpAddress
from staniel.broker.rights import Role
from staniel.journal.redo.log import CHECKSUMS_ONLY
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.config import UNLIMITED_BYTES, QueueConfig

RELOADED = "applied by a reload"


class ServerSettings(Struct, frozen=True, kw_only=True):
    """[server]. Durations in ms, 0: none. Counts None: none. Paths "": none.

    A reload applies the keys that are RELOADED, and [tls] and [users]. The other keys, the listeners and [workq] need a
    restart.
    """

    host: Annotated[str, values.HOST] = "127.0.0.1"
    spool: Annotated[str, values.TEXT] = "spool"
    max_open_transactions: Annotated[int, values.count(), RELOADED] = 100
    expiration_timer_ms: Annotated[int, values.MAYBE_DURATION, RELOADED] = field(
        name="expiration_timer_frequency", default=1_000
    )
    max_connections: Annotated[int | None, values.optional(values.count(1), None), RELOADED] = None
    # Enough for an operator's page, a scrape and a health check at once. A Unix socket has as many more.
    reserved_connections: Annotated[int, values.count(), RELOADED] = 8
    # None, as in memcached, redis and NATS: behind a proxy, or in a container, one address is many clients.
    max_connections_per_address: Annotated[int | None, values.optional(values.count(1), None), RELOADED] = None
    connection_backlog: Annotated[int | None, values.optional(values.count(1), None)] = None
    # Each queue costs about 4 KB of memory, a file, and one check a second.
    max_queues: Annotated[int, values.MAYBE_ITEMS, RELOADED] = 100_000
    # A put is written once for each child.
    max_fanout_children: Annotated[int, values.MAYBE_ITEMS, RELOADED] = 64
    # As long as a client may go on repeating a put.
    put_key_life_ms: Annotated[int, values.duration_from(1000), RELOADED] = field(
        name="put_key_life", default=3_600_000
    )
    # Each key costs some 350 bytes of memory, and 250 on the disk.
    max_put_keys: Annotated[int, values.count(), RELOADED] = 100_000
    max_memory_bytes: Annotated[int, values.MAYBE_BYTES] = field(name="max_memory_size_total", default=UNLIMITED_BYTES)
    # 512 bytes: the longest key today's memcached clients send is 250.
    max_line_bytes: Annotated[int, values.size(512, 1 << 30), RELOADED] = field(name="max_line_size", default=16_384)
    client_timeout_ms: Annotated[int, values.MAYBE_DURATION, RELOADED] = field(name="client_timeout", default=0)
    # A stalled worker's items should return soon, but a worker should not lose them because a laptop's lid was closed
    # or a switch rebooted.
    stall_timeout_ms: Annotated[int, values.MAYBE_DURATION, RELOADED] = field(name="stall_timeout", default=60_000)
    max_pending_bytes: Annotated[int, values.MAYBE_BYTES, RELOADED] = field(
        name="max_pending_size_total", default=256 << 20
    )
    # Linux counts keepalive in whole seconds: one before the first probe, one between probes.
    tcp_keepalive_ms: Annotated[int, values.duration_from(2000)] = field(name="tcp_keepalive", default=60_000)
    tcp_user_timeout_ms: Annotated[int, values.duration_from(1000)] = field(name="tcp_user_timeout", default=60_000)
    status_file: Annotated[str, values.MAYBE_TEXT] = ""
    default_status: Annotated[str, values.words("up", "writeavoid", "readonly", "quiescent")] = "up"
    status_change_grace_ms: Annotated[int, values.MAYBE_DURATION, RELOADED] = field(
        name="status_change_grace_period", default=0
    )
    connection_limit_refuse_writes: Annotated[int | None, values.MAYBE_COUNT, RELOADED] = None
    connection_limit_refuse_reads: Annotated[int | None, values.MAYBE_COUNT, RELOADED] = None
    # None by default: a server does not know whether its items are worth a backup.
    backup_max_age_ms: Annotated[int, values.MAYBE_DURATION, RELOADED] = field(name="backup_max_age", default=0)
    enable_session_trace: Annotated[bool, values.FLAG, RELOADED] = False
    # A size is that of both halves together, which then hold the bytes themselves.
    redo_log_bytes: Annotated[int, values.REDO_LOG] = field(name="redo_log", default=CHECKSUMS_ONLY)
    open_network: Annotated[bool, values.FLAG] = False
    trust_file_system: Annotated[bool, values.FLAG, RELOADED] = False
    operator_commands: Annotated[str, values.words("auto", "everywhere", "local"), RELOADED] = "auto"
    log_level: Annotated[str, values.words("debug", "info", "warning", "error")] = "info"
    log_format: Annotated[str, values.words("logfmt", "json")] = "logfmt"


class ListenerSettings(Struct, frozen=True, kw_only=True):
    """The settings of any listener: `port` on the server's host, or the addresses of `listen` instead. `tls_port`: a
    second port, with TLS. `socket_mode`: the permissions of a Unix socket's file, whatever the umask is; a process that
    may write to the file may connect.
    """

    port: Annotated[int | None, values.MAYBE_PORT] = None
    tls_port: Annotated[int | None, values.MAYBE_PORT] = None
    listen: Annotated[tuple[Address, ...], values.ADDRESSES] = ()
    socket_mode: Annotated[int, values.FILE_MODE] = 0o600

    def addresses(self, host: str) -> tuple[Address, ...]:
        """Return the addresses without TLS; empty if there are none."""
        if self.listen or self.port is None:
            return self.listen
        return (TcpAddress(host, self.port),)

    def tls_addresses(self, host: str) -> tuple[TcpAddress, ...]:
        """Return the addresses with TLS; empty if there are none."""
        return () if self.tls_port is None else (TcpAddress(host, self.tls_port),)


class KestrelListenerSettings(ListenerSettings, frozen=True, kw_only=True):
    """[text], [thrift]. `create_on_read`: reading from a queue that does not exist creates it."""

    create_on_read: Annotated[bool, values.FLAG] = True


class MemcacheSettings(ListenerSettings, frozen=True, kw_only=True):
    """[memcache]. `create_on_read` None: the dialect decides. `refuse`: requests of libraries for caches that harm
    queues.
    """

    port: Annotated[int | None, values.MAYBE_PORT] = 22_133
    dialect: Annotated[Dialect, values.MEMCACHE_DIALECT] = Dialect.MEMCACHED
    create_on_read: Annotated[bool | None, values.MAYBE_FLAG] = None
    refuse: Annotated[tuple[str, ...], values.REFUSED_REQUESTS] = ()


class WorkqSettings(ListenerSettings, frozen=True, kw_only=True):
    """[workq]: the listener, and the command log under the original's names. A file without this table has no listener.
    `cmdlog_path` "": inside the spool. Durations in ms.
    """

    port: Annotated[int | None, values.MAYBE_PORT] = 9_922
    cmdlog_path: Annotated[str, values.MAYBE_TEXT] = ""
    cmdlog_sync: Annotated[str, values.words("interval", "os", "always")] = "always"
    cmdlog_sync_int_ms: Annotated[int, values.MAYBE_DURATION] = field(name="cmdlog_sync_int", default=1_000)
    cmdlog_clean_int_ms: Annotated[int, values.MAYBE_DURATION] = field(name="cmdlog_clean_int", default=300_000)
    cmdlog_seg_bytes: Annotated[int, values.size()] = field(name="cmdlog_seg_size", default=64 << 20)
    honour_max_fails: Annotated[bool, values.FLAG] = False


class TlsSettings(Struct, frozen=True, kw_only=True):
    """[tls]: files in PEM, read at startup and at each reload. `key` "": in the certificate's file. `client_ca`: the
    authorities whose client certificates are accepted; "": no client certificates are requested. A client that does not
    finish its handshake within `handshake_timeout_ms` is disconnected.
    """

    certificate: Annotated[str, values.MAYBE_TEXT] = ""
    key: Annotated[str, values.MAYBE_TEXT] = ""
    client_ca: Annotated[str, values.MAYBE_TEXT] = ""
    client_certificates: Annotated[str, values.words("optional", "required")] = "optional"
    handshake_timeout_ms: Annotated[int, values.duration_from(100)] = field(name="handshake_timeout", default=10_000)


class AdminSettings(ListenerSettings, frozen=True, kw_only=True):
    """[admin]: HTTP for operators. `socket`: an abstract Unix socket, which operators' commands find by the spool's
    path. `token_file`: its first line is the token that requests over TCP must carry; "": every program that reaches
    the port may use it. `hosts`: names of the listener in browsers, in addition to addresses, localhost and the
    server's host. `audit_log_bytes`: the size of the files that record operations on queues and the server, 0: none.
    `undo_ms`: how long a purge can be undone, 0: it cannot. `undo_max_bytes`: the most disk space for that.
    """

    socket: Annotated[bool, values.FLAG] = True
    token_file: Annotated[str, values.MAYBE_TEXT] = ""
    hosts: Annotated[tuple[str, ...], values.HOSTS] = ()
    audit_log_bytes: Annotated[int, values.AUDIT_LOG] = field(name="audit_log", default=4 << 20)
    undo_ms: Annotated[int, values.MAYBE_DURATION] = field(name="undo_time", default=3_600_000)
    undo_max_bytes: Annotated[int, values.MAYBE_BYTES] = field(name="undo_max_size", default=1 << 30)


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """[cluster]: this server is a member of a cluster that keeps one spool on several machines. `name` "": it stands
    alone. `listen`: where other members connect; `advertise`: where clients do. `lease_ms`: a member that has not been
    heard of for so long counts as gone. `ca`: the authority of members' certificates, which both sides of each
    connection between members show; `key` "": in the certificate's file. `etcd_…`: for etcd with https, or logins.
    """

    name: Annotated[str, values.MAYBE_TEXT] = ""
    member: Annotated[str, values.MAYBE_TEXT] = ""
    listen: Annotated[str, values.MAYBE_TCP_ADDRESS] = ""
    advertise: Annotated[str, values.MAYBE_TCP_ADDRESS] = ""
    etcd: Annotated[tuple[str, ...], values.ETCD_URLS] = ()
    # With two, no machine can take an acknowledged item with it.
    min_in_sync: Annotated[int, values.count(1, 16)] = 2
    # etcd itself counts leases in seconds, and needs about two for an election of its own.
    lease_ms: Annotated[int, values.duration_from(2_000)] = field(name="lease", default=5_000)
    certificate: Annotated[str, values.MAYBE_TEXT] = ""
    key: Annotated[str, values.MAYBE_TEXT] = ""
    ca: Annotated[str, values.MAYBE_TEXT] = ""
    etcd_ca: Annotated[str, values.MAYBE_TEXT] = ""
    etcd_certificate: Annotated[str, values.MAYBE_TEXT] = ""
    etcd_key: Annotated[str, values.MAYBE_TEXT] = ""
    etcd_user: Annotated[str, values.MAYBE_TEXT] = ""
    etcd_password_file: Annotated[str, values.MAYBE_TEXT] = ""


class UserSettings(Struct, frozen=True, kw_only=True):
    """[users.NAME]. `queues`: names, or beginnings of names with a `*`. `create`: whether the user's puts and reads
    create queues. `certificates`: names in client certificates. `uids`: of processes on Unix sockets. `password_file`:
    the file with the hash; `token_file`: the file with the token that requests to [admin] carry.
    """

    roles: Annotated[tuple[Role, ...], values.ROLES] = ()
    queues: Annotated[tuple[str, ...], values.PATTERNS] = ()
    create: Annotated[bool, values.FLAG] = True
    password_hash: Annotated[str, values.PASSWORD_HASH] = ""
    password_file: Annotated[str, values.MAYBE_TEXT] = ""
    certificates: Annotated[tuple[str, ...], values.TEXTS] = ()
    uids: Annotated[tuple[int, ...], values.UIDS] = ()
    token_file: Annotated[str, values.MAYBE_TEXT] = ""


SECTIONS: dict[str, type[Struct]] = {
    "server": ServerSettings,
    "memcache": MemcacheSettings,
    "text": KestrelListenerSettings,
    "thrift": KestrelListenerSettings,
    "workq": WorkqSettings,
    "admin": AdminSettings,
    "tls": TlsSettings,
    "cluster": ClusterSettings,
    "default": QueueConfig,
    "queues": QueueConfig,
    "users": UserSettings,
}

# Kestrel's keys that are not supported, and what to do instead.
REFUSED = {
    "zookeeper": "servers do not announce themselves in ZooKeeper; list their addresses in the clients",
    "be_factory_class": "there are no storage plug-ins; items are kept in journals in server.spool",
    "loggers": "log lines go to standard error; choose how many with server.log_level",
}

# Kestrel's global settings that have another name or place here.
MOVED = {
    "listen_address": "server.host",
    "queue_path": "server.spool",
    "memcache_listen_port": "memcache.port",
    "text_listen_port": "text.port",
    "thrift_listen_port": "thrift.port",
    "http_port": "admin.port",
}
