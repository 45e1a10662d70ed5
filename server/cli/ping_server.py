"""The command `staniel ping` for a server given by TLS, a configuration or a spool: imports that a plain port does not
need.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import click
from click.core import ParameterSource
from msgspec import Struct

from staniel.broker.admin.reasons import Health, ReasonName
from staniel.broker.admin.views import ServerView
from staniel.broker.config.addresses import TcpAddress, UnixAddress, format_address
from staniel.server.cli.admin_address import AdminError, CertificateNotTrusted, SpoolAddress, TlsAddress, TlsFiles
from staniel.server.cli.admin_client import AdminClient, starts
from staniel.server.cli.live_command import convert
from staniel.server.cli.ping import PingAnswer, ServerStarting, ping
from staniel.server.text import printable

ADDRESS = ("host", "port", "path", "tls")
BLOCKED = (ReasonName.QUEUES_BLOCKED, ReasonName.QUEUES_UNREADABLE)


class PingTarget(Struct, frozen=True):
    """The server to ask. `address` None: over the operators' socket of `spool`, which is "" if unknown."""

    address: TcpAddress | TlsAddress | UnixAddress | None
    spool: str = ""

    @property
    def where(self) -> str:
        match self.address:
            case None:
                return f"the spool {self.spool}"
            case TlsAddress(host, port):
                return f"tls:{format_address(TcpAddress(host, port))}"
            case _:
                return format_address(self.address)


def prepare(ctx: click.Context) -> tuple[str, Callable[[float], PingAnswer]]:
    """Return the name of the server that the options of `ping` select, and a function that asks it within a time.

    The function raises OSError, ServerSilent, ServerStarting and ClickException. Raises ClickException.
    """
    said = ctx.params
    files = TlsFiles(said["ca"], said["certificate"], said["key"])
    if files.key and not files.certificate:
        raise click.UsageError("expected --certificate with --key")
    try:
        target = choose(ctx)
    except AdminError as error:
        raise click.ClickException(str(error)) from error

    def ask_in_time(timeout_s: float) -> PingAnswer:
        try:
            return ask(target, timeout_s, files)
        except AdminError as error:
            raise click.ClickException(str(error)) from error

    return printable(target.where), ask_in_time


def target_of_config(path: str) -> PingTarget:
    """Return the memcache listener of a configuration file, first one without TLS; its spool, if it has none. Raises
    AdminError.
    """
    from staniel.broker.config.load import ConfigError, load

    try:
        config = load(path)
    except ConfigError as error:
        raise AdminError(printable(str(error))) from error
    spool = config.server.spool
    for address in config.addresses("memcache"):
        if isinstance(address, UnixAddress) or address.port:
            return PingTarget(address, spool)
    for tcp in config.tls_addresses("memcache"):
        if tcp.port:
            return PingTarget(TlsAddress(tcp.host, tcp.port, config.tls.certificate), spool)
    return PingTarget(None, spool)


def ask(target: PingTarget, timeout_s: float, files: TlsFiles) -> PingAnswer:
    """Ask the server. Raises ServerStarting, AdminError, and what `ping` raises."""
    try:
        answer = _ask_at(target, timeout_s, files)
    except (OSError, AdminError) as error:
        state = starts(target.spool) if target.spool and not isinstance(error, CertificateNotTrusted) else None
        if state is not None:
            raise ServerStarting(state.text) from error
        raise
    if answer.wants_login and target.spool:
        try:
            return _ask_spool(target.spool, timeout_s)
        except AdminError:
            pass  # this command runs as another user: the port's reply is all it gets
    return answer


def _ask_at(target: PingTarget, timeout_s: float, files: TlsFiles) -> PingAnswer:
    match target.address:
        case None:
            return _ask_spool(target.spool, timeout_s)
        case UnixAddress(path):
            return ping("", 0, timeout_s, path)
        case TcpAddress(host, port):
            return ping(host, port, timeout_s)
        case TlsAddress() as address:
            from staniel.server.cli.tls_client import secured  # OpenSSL takes 30 ms to load

            def secure(sock: socket.socket) -> socket.socket:
                return secured(sock, address, files)

            return ping(address.host, address.port, timeout_s, "", secure)


def _ask_spool(spool: str, timeout_s: float) -> PingAnswer:
    client = AdminClient([SpoolAddress(spool)], b"", timeout_s)
    server = convert(client.get("/api/server"), ServerView)
    health = convert(client.get("/health/ready", also_good=(503,)), Health)
    counts = {reason.name: reason.count for reason in health.reasons}
    return PingAnswer(
        server.version,
        server.status,
        counts.get(ReasonName.QUEUES_PAUSED, 0),
        sum(counts.get(name, 0) for name in BLOCKED),
        counts.get(ReasonName.JOBS_UNREADABLE, 0),
    )


def choose(ctx: click.Context) -> PingTarget:
    """Return the target of the options of `ping`, if they name TLS, a configuration or a spool. Raises UsageError,
    AdminError.
    """
    said = ctx.params
    by_address = [name for name in ADDRESS if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if (said["config"] or said["spool"]) and by_address:
        raise click.UsageError("--config and --spool say where the server is: leave out --host, --port, --unix, --tls")
    if said["config"]:
        target = target_of_config(said["config"])
        return PingTarget(target.address, said["spool"]) if said["spool"] else target
    if said["spool"]:
        return PingTarget(None, said["spool"])
    if said["path"]:
        raise click.UsageError("a Unix socket has no TLS: leave out --tls")
    return PingTarget(TlsAddress(said["host"], said["port"]))
