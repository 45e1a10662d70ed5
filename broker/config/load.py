"""The whole configuration: reading the TOML file, checking its sections against each other, and resolving the settings
of each queue (its own, its parent's, [default]).
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, structs

from staniel.broker.config import values
from staniel.broker.config.addresses import Address, TcpAddress, UnixAddress, format_address, is_loopback
from staniel.broker.config.queue_settings import (
    ANY,
    Given,
    anchored,
    check_expiry,
    check_queues,
    describe,
    resolve_all,
    worded,
)
from staniel.broker.config.schema import (
    SECTIONS,
    AdminSettings,
    ClusterSettings,
    KestrelListenerSettings,
    ListenerSettings,
    MemcacheSettings,
    ServerSettings,
    TlsSettings,
    UserSettings,
    WorkqSettings,
)
from staniel.broker.config.toml import (
    ConfigError,
    joined,
    keys_of,
    read_given,
    read_struct,
    read_table,
    read_value,
    unknown_key,
)
from staniel.broker.rights import Role
from staniel.journal.disk.os_fs import OsFs
from staniel.queues.config import QueueConfig
from staniel.queues.names import parent_of

__all__ = ["Config", "ConfigError", "ReloadError", "defaults", "load", "named_log_format", "parse"]

LOG_FORMAT = re.compile(rb"^[ \t]*(?:server\.)?log_format[ \t]*=[ \t]*[\"'](json|logfmt)[\"']", re.MULTILINE)

CLUSTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
LISTENERS = ("memcache", "text", "thrift", "workq", "admin")
S = TypeVar("S", bound=Struct)


class ReloadError(Exception):
    """The refusal of a new configuration; nothing has changed. The text says why."""


class Config(Struct, frozen=True, kw_only=True):
    """All settings. `default` and `queues` are as given, `resolved` has the resulting settings; callers use `queue`.
    `file`: the path of the file; "" for none.
    """

    server: ServerSettings
    memcache: MemcacheSettings
    text: KestrelListenerSettings
    thrift: KestrelListenerSettings
    workq: WorkqSettings
    admin: AdminSettings
    tls: TlsSettings
    cluster: ClusterSettings
    users: dict[str, UserSettings]
    default: Given
    queues: dict[str, Given]
    aliases: dict[str, tuple[str, ...]]
    resolved: dict[str, QueueConfig]
    file: str = ""

    def queue(self, name: str) -> QueueConfig:
        """Return the settings of any queue, configured or not. They are its own, else its fan-out parent's, else
        [default]'s, else the built-in ones.
        """
        return self.resolved.get(name) or self.resolved.get(parent_of(name)) or self.resolved[ANY]

    def describe(self, name: str) -> Iterator[tuple[str, object]]:
        """Yield (key, value) of each resolved setting of a queue, as `queue_settings.describe` does."""
        return describe(self.queue(name))

    def worded(self, name: str) -> Iterator[tuple[str, object]]:
        """Yield the same as `describe`, with the file's words in the place of some numbers."""
        return worded(self.queue(name))

    @property
    def item_bytes_max(self) -> int:
        """The largest item that any queue takes."""
        return max(config.max_item_bytes for config in self.resolved.values())

    def addresses(self, listener: str) -> tuple[Address, ...]:
        """Return the addresses without TLS of "memcache", "text", "thrift", "workq" or "admin"."""
        settings: ListenerSettings = getattr(self, listener)
        return settings.addresses(self.server.host)

    def tls_addresses(self, listener: str) -> tuple[TcpAddress, ...]:
        """Return the addresses of a listener with TLS."""
        settings: ListenerSettings = getattr(self, listener)
        return settings.tls_addresses(self.server.host)

    def all_addresses(self, listener: str) -> tuple[Address, ...]:
        """Return a listener's addresses without TLS, then those with it; empty: the listener is off."""
        return *self.addresses(listener), *self.tls_addresses(listener)

    def socket_mode(self, listener: str) -> int:
        """Return the permissions of the files of a listener's Unix sockets."""
        settings: ListenerSettings = getattr(self, listener)
        return settings.socket_mode

    def later_keys(self, started: Config) -> list[str]:
        """List the keys whose values differ from those that the server was `started` with, and that only a restart
        applies.
        """
        keys = []
        for section in ("server", "cluster", *LISTENERS):
            ours, theirs = getattr(self, section), getattr(started, section)
            for spelled, key in keys_of(SECTIONS[section]).items():
                if key.is_reloaded:
                    continue
                if getattr(ours, key.attribute) != getattr(theirs, key.attribute):
                    keys.append(joined(section, spelled))
        return keys

    def listening_as(self, started: Config) -> Config:
        """Return this configuration with the addresses of `started`, which a server keeps until it restarts."""
        sections: dict[str, Any] = {"server": structs.replace(self.server, host=started.server.host)}
        for name in LISTENERS:
            theirs = getattr(started, name)
            addresses = {"port": theirs.port, "listen": theirs.listen, "tls_port": theirs.tls_port}
            sections[name] = structs.replace(getattr(self, name), **addresses)
        return structs.replace(self, **sections)

    def taken_over_by(self, started: Config) -> Config:
        """Return this configuration with the values of `started` for all keys that only a restart applies."""
        sections: dict[str, Any] = {}
        for section in ("server", "cluster", *LISTENERS):
            theirs = getattr(started, section)
            kept = [key.attribute for key in keys_of(SECTIONS[section]).values() if not key.is_reloaded]
            values = {name: getattr(theirs, name) for name in kept}
            sections[section] = structs.replace(getattr(self, section), **values)
        return structs.replace(self, **sections)

    def overridden(
        self,
        *,
        host: str | None = None,
        port: int | None = None,
        spool: str | None = None,
        sync: str | None = None,
        log_level: str | None = None,
        log_format: str | None = None,
        cmdlog: dict[str, object] | None = None,
        open_network: bool = False,
        trust_file_system: bool = False,
    ) -> Config:
        """Return this configuration with the command line's values; None changes nothing. Raises ConfigError, which
        names the option.

        `port` is memcache's and replaces its `listen`. `spool` is relative to the working directory. `sync` becomes
        [default] sync_journal, so queues with a setting of their own keep it. `cmdlog` are options of [workq], which
        turn its listener on.
        """
        if host is not None and port is None and self.memcache.listen:
            raise ConfigError("--host", "memcache.listen says where to listen; give --port too to replace it")
        options: dict[str, object] = {"host": host, "spool": spool, "log_level": log_level, "log_format": log_format}
        server = _with_options(self.server, options)
        if open_network:
            server = structs.replace(server, open_network=True)
        if trust_file_system:
            server = structs.replace(server, trust_file_system=True)
        memcache = _with_options(self.memcache, {"port": port})
        if port is not None:
            memcache = structs.replace(memcache, listen=())
        default = self.default | _read_options(QueueConfig, {"sync_journal": sync}, "--sync")
        workq = self._workq_with({name: value for name, value in (cmdlog or {}).items() if value is not None})
        changed = structs.replace(self, server=server, memcache=memcache, default=default, workq=workq)
        _check_ports(changed)
        check_admin(changed)
        return structs.replace(changed, resolved=resolve_all(default, self.queues))

    def absolute(self) -> Config:
        """Return this configuration with absolute paths of its folders, for programs that run in another directory."""
        server = structs.replace(self.server, spool=os.path.abspath(self.server.spool))
        path = self.workq.cmdlog_path
        workq = structs.replace(self.workq, cmdlog_path=path and os.path.abspath(path))
        return structs.replace(self, server=server, workq=workq)

    def _workq_with(self, options: dict[str, object]) -> WorkqSettings:
        workq = _with_options(self.workq, options)
        if options and workq.port is None and not workq.listen:
            workq = structs.replace(workq, port=WorkqSettings().port)
        _check_cmdlog(workq, "--cmdlog-sync-int")
        return workq


def load(path: str) -> Config:
    """Load the configuration from the file at `path`; relative paths are relative to its folder. Raises ConfigError."""
    try:
        disk, file = OsFs(), os.path.abspath(path)
        config = parse(disk.read(path, 0, disk.size(path)), os.path.dirname(file))
        return structs.replace(config, file=file)
    except OSError as wrong:
        raise ConfigError("", f"cannot be read: {wrong.strerror}", path) from wrong
    except ConfigError as wrong:
        raise ConfigError(wrong.key, wrong.why, path) from None


def named_log_format(path: str) -> str:
    """Return the log_format in the file at `path`, even if the rest of the file is wrong; "" if there is none. The log
    line about that mistake has this format.
    """
    try:
        disk = OsFs()
        match = LOG_FORMAT.search(disk.read(path, 0, disk.size(path)))
    except OSError:
        return ""
    return match[1].decode() if match is not None else ""


def defaults(folder: str) -> Config:
    """Return the configuration of an empty file in `folder`."""
    return parse(b"", folder)


def parse(text: bytes, folder: str) -> Config:
    """Parse a configuration (TOML 1.0, UTF-8). Relative paths are relative to `folder`. Raises ConfigError."""
    document = _decode(text)
    for name in document:
        if name not in SECTIONS and name != "aliases":
            raise unknown_key("", name, [*SECTIONS, "aliases"])
    sections: dict[str, Any] = {
        name: read_struct(kind, name, document.get(name, {}))
        for name, kind in SECTIONS.items()
        if name not in ("default", "queues", "users")
    }
    sections["default"] = read_given(QueueConfig, "default", document.get("default", {}))
    if "workq" not in document:
        sections["workq"] = WorkqSettings(port=None)
    queues = _read_queues(document.get("queues", {}))
    aliases = _read_aliases(document.get("aliases", {}))
    users = _read_users(document.get("users", {}))
    _check_listeners(document)
    _check_cmdlog(sections["workq"], "workq.cmdlog_sync_int")
    check_expiry(queues)
    _check_aliases(aliases, queues)
    sections |= {"queues": queues, "aliases": aliases, "users": users}
    resolved = resolve_all(sections["default"], queues)
    check_queues(resolved, queues, aliases)
    config = Config(**sections, resolved=resolved)
    _check_tls(config)
    _check_ports(config)
    check_admin(config)
    check_cluster(config)
    return _anchored(config, folder)


def _decode(text: bytes) -> dict[str, object]:
    if not text:
        return {}  # without a file no TOML reader is loaded
    try:
        return msgspec.toml.decode(text.removeprefix(codecs.BOM_UTF8), type=dict[str, Any])
    except UnicodeDecodeError as wrong:
        line = wrong.object.count(b"\n", 0, wrong.start) + 1
        raise ConfigError(f"line {line}", "expected UTF-8") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as wrong:
        raise _syntax_error(str(wrong), text) from None


def _syntax_error(why: str, text: bytes) -> ConfigError:
    place = re.search(r" \(at (line \d+), column \d+\)$", why)
    if place is not None:
        return ConfigError(place[1], why[: place.start()])
    if why.endswith(" (at end of document)"):
        last = text.rstrip().count(b"\n") + 1
        return ConfigError(f"line {last}", why.removesuffix(" (at end of document)"))
    return ConfigError("", why)


def _read_queues(table: object) -> dict[str, Given]:
    queues = {}
    for name, settings in read_table("queues", table).items():
        path = joined("queues", name)
        read_value(path, values.QUEUE_NAME, name)
        queues[name] = read_given(QueueConfig, path, settings)
    return queues


def _read_users(table: object) -> dict[str, UserSettings]:
    users = {}
    for name, settings in read_table("users", table).items():
        path = joined("users", name)
        if not name or not name.isprintable() or " " in name:
            raise ConfigError(path, "expected a name without blanks")
        users[name] = user = read_struct(UserSettings, path, settings)
        if user.password_hash and user.password_file:
            raise ConfigError(f"{path}.password_file", "expected password_hash or password_file, got both")
        if user.roles and not user.queues and Role.ADMIN not in user.roles:
            raise ConfigError(f"{path}.queues", 'expected names of queues; ["*"] means all of them')
    return users


def _read_aliases(table: object) -> dict[str, tuple[str, ...]]:
    aliases = {}
    for name, destinations in read_table("aliases", table).items():
        path = joined("aliases", name)
        read_value(path, values.QUEUE_NAME, name)
        aliases[name] = read_value(path, values.QUEUE_NAMES, destinations)
    return aliases


def _check_listeners(document: dict[str, object]) -> None:
    for name in LISTENERS:
        table = read_table(name, document.get(name, {}))
        if "port" in table and "listen" in table:
            raise ConfigError(f"{name}.listen", "expected port or listen, got both")
        if table.get("listen") == []:
            raise ConfigError(f"{name}.listen", "expected at least one address, got none")


def _check_cmdlog(workq: WorkqSettings, key: str) -> None:
    if workq.cmdlog_sync == "interval" and not workq.cmdlog_sync_int_ms:
        raise ConfigError(key, "expected more than 0, because the log is synced at an interval")


def _check_ports(config: Config) -> None:
    """Check that no two listeners share an address. Port 0 is never shared, because the system chooses a new one.
    Raises ConfigError.
    """
    taken: dict[Address, str] = {}
    for name in LISTENERS:
        of_tls = config.tls_addresses(name)
        for address in config.all_addresses(name):
            if address in taken:
                key = joined(name, _key_of(config, name, address in of_tls))
                other = f"{format_address(address)} of [{taken[address]}]"
                raise ConfigError(key, f"expected an address of its own, got {other}")
            if not (isinstance(address, TcpAddress) and address.port == 0):
                taken[address] = name


def _key_of(config: Config, name: str, is_tls: bool) -> str:
    """Return the key that sets the address of a listener."""
    if is_tls:
        return "tls_port"
    return "listen" if getattr(config, name).listen else "port"


def _check_tls(config: Config) -> None:
    tls = config.tls
    for name in LISTENERS:
        if config.tls_addresses(name) and not tls.certificate:
            raise ConfigError(
                "tls.certificate", f"expected a file with a certificate, because {name}.tls_port is given"
            )
    if tls.client_certificates == "required" and not tls.client_ca:
        raise ConfigError("tls.client_ca", "expected a file, because client_certificates are required")


def check_admin(config: Config) -> None:
    """Check that there is a token, of the listener or of a user, if [admin] listens on a network. Raises
    ConfigError.
    """
    has_token = config.admin.token_file or any(user.token_file for user in config.users.values())
    for address in config.all_addresses("admin"):
        if isinstance(address, TcpAddress) and not is_loopback(address.host) and not has_token:
            where = format_address(address)
            why = f"expected a file with a token, because [admin] listens on {where}, which is not loopback"
            raise ConfigError("admin.token_file", why)


def check_cluster(config: Config) -> None:
    """Check that a member of a cluster has all settings, and none that members do not support yet. Raises
    ConfigError.
    """
    cluster = config.cluster
    given = {
        "name": cluster.name, "member": cluster.member, "listen": cluster.listen, "advertise": cluster.advertise,
        "etcd": cluster.etcd,
    }  # fmt: skip
    if not any(given.values()):
        return
    for key, value in {**given, "lease": cluster.lease_ms}.items():
        if not value:
            raise ConfigError(f"cluster.{key}", "expected a value, because other keys of [cluster] are given")
    if not CLUSTER_NAME.fullmatch(cluster.name):
        raise ConfigError(
            joined("cluster", "name"), "expected letters, digits, dots, hyphens and underscores, at most 64"
        )
    _check_cluster_files(cluster)


def _check_cluster_files(cluster: ClusterSettings) -> None:
    """Check that certificates and logins of [cluster] are given whole. Raises ConfigError."""
    is_secure = any(url.startswith("https://") for url in cluster.etcd)
    needed = {  # a key, and those that it needs
        "certificate": ("ca",), "ca": ("certificate",), "key": ("certificate",),
        "etcd_certificate": ("etcd_ca",), "etcd_key": ("etcd_certificate",),
        "etcd_user": ("etcd_password_file",), "etcd_password_file": ("etcd_user",),
    }  # fmt: skip
    for given, others in needed.items():
        for other in others:
            if getattr(cluster, given) and not getattr(cluster, other):
                raise ConfigError(f"cluster.{other}", f"expected a value, because {given} is given")
    if cluster.etcd_ca and not is_secure:
        raise ConfigError("cluster.etcd", "expected addresses with https://, because etcd_ca is given")


def _check_aliases(aliases: dict[str, tuple[str, ...]], queues: dict[str, Given]) -> None:
    for name in aliases:
        if name in queues:
            table = f"[{joined('queues', name)}]"
            raise ConfigError(joined("aliases", name), f"expected a name that is no queue's, got that of {table}")
    for name in _in_or_before_circles(aliases):
        if name in _reachable(name, aliases):
            raise ConfigError(joined("aliases", name), "expected destinations that do not lead back to it")


def _in_or_before_circles(aliases: dict[str, tuple[str, ...]]) -> list[str]:
    """Return the aliases that lead to a circle of aliases, or are in one."""
    leading_to: dict[str, list[str]] = {}
    left = {}
    for name, destinations in aliases.items():
        others = {destination for destination in destinations if destination in aliases}
        left[name] = len(others)
        for other in others:
            leading_to.setdefault(other, []).append(name)
    ends = [name for name, count in left.items() if not count]
    while ends:
        for name in leading_to.get(ends.pop(), ()):
            left[name] -= 1
            if not left[name]:
                ends.append(name)
    return [name for name, count in left.items() if count]


def _reachable(name: str, aliases: dict[str, tuple[str, ...]]) -> set[str]:
    names: set[str] = set()
    ahead = list(aliases[name])
    while ahead:
        destination = ahead.pop()
        if destination not in names:
            names.add(destination)
            ahead += aliases.get(destination, ())
    return names


def _anchored(config: Config, folder: str) -> Config:
    server = config.server
    spool = os.path.join(folder, server.spool)
    status_file = os.path.join(folder, server.status_file) if server.status_file else ""
    listeners = {name: _anchored_listener(getattr(config, name), folder) for name in LISTENERS}
    server = structs.replace(server, spool=spool, status_file=status_file)
    default = anchored(config.default, folder)
    queues = {name: anchored(settings, folder) for name, settings in config.queues.items()}
    resolved = resolve_all(default, queues)
    if config.admin.token_file:
        path = os.path.join(folder, config.admin.token_file)
        listeners["admin"] = structs.replace(listeners["admin"], token_file=path)
    tls = structs.replace(
        config.tls, **{name: path and os.path.join(folder, path) for name, path in _tls_files(config.tls)}
    )
    cluster = structs.replace(
        config.cluster, **{name: path and os.path.join(folder, path) for name, path in cluster_files(config.cluster)}
    )
    users = {name: _anchored_user(user, folder) for name, user in config.users.items()}
    if config.workq.cmdlog_path:
        path = os.path.join(folder, config.workq.cmdlog_path)
        listeners["workq"] = structs.replace(listeners["workq"], cmdlog_path=path)
    return structs.replace(
        config,
        server=server,
        default=default,
        queues=queues,
        resolved=resolved,
        tls=tls,
        cluster=cluster,
        users=users,
        **listeners,
    )


def _anchored_user(user: UserSettings, folder: str) -> UserSettings:
    files = {"password_file": user.password_file, "token_file": user.token_file}
    return structs.replace(user, **{name: path and os.path.join(folder, path) for name, path in files.items()})


def _tls_files(tls: TlsSettings) -> list[tuple[str, str]]:
    return [("certificate", tls.certificate), ("key", tls.key), ("client_ca", tls.client_ca)]


def cluster_files(cluster: ClusterSettings) -> list[tuple[str, str]]:
    """Return the keys of [cluster] that are files, with their values."""
    names = ("certificate", "key", "ca", "etcd_ca", "etcd_certificate", "etcd_key", "etcd_password_file")
    return [(name, getattr(cluster, name)) for name in names]


def _anchored_listener(settings: ListenerSettings, folder: str) -> ListenerSettings:
    listen = tuple(
        UnixAddress(os.path.join(folder, address.path)) if isinstance(address, UnixAddress) else address
        for address in settings.listen
    )
    return structs.replace(settings, listen=listen)


def _with_options(settings: S, options: dict[str, object]) -> S:
    return structs.replace(settings, **_read_options(type(settings), options))


def _read_options(section: type[Struct], options: dict[str, object], option: str = "") -> dict[str, Any]:
    """Return the values of command-line options, by the attributes of `section`. An option that is None is not given.
    `option` names the option in an error. Raises ConfigError.
    """
    keys = keys_of(section)
    given = {}
    for name, value in options.items():
        if value is not None:
            shown_as = option or "--" + name.replace("_", "-")
            given[keys[name].attribute] = read_value(shown_as, keys[name].kind, value)
    return given
