"""The parts that all commands on a running server share: they find it, print JSON, ask before destructive changes, and
turn every error into one line and an exit code.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from staniel.broker.config.addresses import Address, TcpAddress
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cli.admin_address import AdminAddress, AdminError, SpoolAddress, TlsAddress, TlsFiles
from staniel.server.cli.admin_client import AdminClient
from staniel.server.cli.parameters import CommandFailed, check_seconds
from staniel.server.text import OTHER_VERSION, printable, tolerate

if TYPE_CHECKING:
    from staniel.broker.config.load import Config

NOT_READY = 3  # exit code
TIMEOUT_S_DEFAULT = 60.0
COMPLETION_S_MAX = 1.0  # a prompt that hangs is worse than one that does not help
SPOOL_DEFAULT = "spool"  # as serve's
SHARED = {"spool", "config", "url", "token_file", "ca", "certificate", "key", "timeout", "as_json"}
T = TypeVar("T")


class Live:
    """A call of a command: the server, and the output format. `spool` is its folder, if given, and `jobs` that of its
    command log, if it is elsewhere.
    """

    def __init__(self, client: AdminClient, as_json: bool, spool: str = "", jobs: str = "") -> None:
        self.client = client
        self.as_json = as_json
        self.spool, self.jobs = spool, jobs

    def print_json(self, reply: object) -> bool:
        """Print the server's reply if JSON was requested; letters beyond ASCII are escaped, so that no text controls a
        terminal.
        """
        if self.as_json:
            click.echo(json.dumps(reply))
        return self.as_json

    def print_result(self, reply: object, text: str) -> None:
        if not self.print_json(reply):
            click.echo(text)


def convert(plain: object, kind: type[T]) -> T:
    """Convert JSON to a `kind`. Raises AdminError."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise AdminError(f"{OTHER_VERSION} ({printable(str(error))})") from error


def confirm(what: str, is_sure: bool) -> None:
    """Ask on the terminal whether to do `what`, unless --yes was given. A refusal ends the command."""
    if is_sure:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandFailed(f"this would {what}, and there is no terminal to ask on: give --yes")
    if not click.confirm(f"This will {what}. Go on?", err=True):
        click.echo("Nothing was done.", err=True)
        sys.exit(1)


class LiveCommand(click.Command):
    """A command on a running server; its function gets a Live first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own = {option.name for option in self.params}
        self.params += [option for option in _shared_options() if option.name not in self._own]

    def invoke(self, ctx: click.Context) -> Any:
        tolerate()
        try:
            ctx.obj = _make_live(ctx)
            for name in SHARED - self._own:
                del ctx.params[name]
            return super().invoke(ctx)
        except AdminError as error:
            raise click.ClickException(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at the exit would fail again
            raise click.ClickException(f"cannot read or write: {error.strerror}") from error


def complete_queue(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the server's queues whose names begin this way, for a shell; none if the server does not reply at once."""
    ctx.params["timeout"] = COMPLETION_S_MAX
    try:
        snapshots = convert(_make_live(ctx).client.get("/api/queues", prefix=incomplete), list[dict[str, Any]])
    except (AdminError, click.ClickException, OSError):
        return []
    return [name for snapshot in snapshots if (name := str(snapshot.get("name"))).isprintable()]


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--spool", "-s"], envvar="STANIEL_SPOOL", metavar="DIR", help="The server's spool.  [default: spool]"
        ),
        click.Option(
            ["--config", "-c"], metavar="FILE", help="The server's file, which names the spool and the admin port."
        ),
        click.Option(["--url"], envvar="STANIEL_URL", metavar="URL", help="Its admin port: http(s)://HOST:PORT."),
        click.Option(["--token-file"], envvar="STANIEL_TOKEN_FILE", metavar="FILE", help="Its first line: the token."),
        click.Option(["--ca"], envvar="STANIEL_CA", metavar="FILE", help="Authorities to trust under https, in PEM."),
        click.Option(
            ["--certificate"],
            envvar="STANIEL_CERTIFICATE",
            metavar="FILE",
            help="The client's certificate under https.",
        ),
        click.Option(["--key"], envvar="STANIEL_KEY", metavar="FILE", help="The key, if it is in another file."),
        click.Option(
            ["--timeout"],
            type=float,
            default=TIMEOUT_S_DEFAULT,
            show_default=True,
            metavar="SECONDS",
            help="The longest wait for a reply.",
            callback=check_seconds,
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the server's reply as JSON."),
    ]


def _make_live(ctx: click.Context) -> Live:
    """Return the Live of the shared options."""
    spool, config, url = (_option_value(ctx, name) for name in ("spool", "config", "url"))
    token_file = ctx.params["token_file"]
    if spool and url:
        raise click.UsageError("--spool and --url name two servers", ctx)
    addresses: list[AdminAddress] = []
    folder = jobs = ""
    if config:
        loaded = _load_config(config, spool)
        addresses, folder, jobs = _addresses_of(loaded, config), loaded.server.spool, loaded.workq.cmdlog_path
        token_file = token_file or loaded.admin.token_file
    if url:
        addresses = [_parse_url(url, ctx)]
    elif not config:
        folder = spool or SPOOL_DEFAULT
        addresses = [SpoolAddress(folder)]
    token = _read_token(token_file) if token_file and not _is_local(addresses) else b""
    tls = TlsFiles(*(ctx.params[name] or "" for name in ("ca", "certificate", "key")))
    if tls.key and not tls.certificate:
        raise click.UsageError("expected --certificate with --key", ctx)
    return Live(AdminClient(addresses, token, ctx.params["timeout"], tls), ctx.params["as_json"], folder, jobs)


def _is_local(addresses: list[AdminAddress]) -> bool:
    return all(isinstance(address, SpoolAddress) for address in addresses)


def _option_value(ctx: click.Context, name: str) -> str | None:
    """Return an option's value. The environment counts only if the command line names no server; then the URL has
    precedence.
    """
    line = ParameterSource.COMMANDLINE
    value: str | None = ctx.params[name]
    named = [option for option in ("spool", "config", "url") if ctx.get_parameter_source(option) is line]
    if ctx.get_parameter_source(name) is not line and (named or (name == "spool" and ctx.params["url"])):
        return None
    return value


def _load_config(path: str, spool: str | None) -> Config:
    from staniel.broker.config.load import ConfigError, load

    try:
        return load(path).overridden(spool=spool)
    except ConfigError as error:
        raise AdminError(printable(str(error))) from error


def _addresses_of(config: Config, path: str) -> list[AdminAddress]:
    """Return the addresses of the server whose configuration file is at `path`."""
    addresses: list[AdminAddress] = [SpoolAddress(config.server.spool)] if config.admin.socket else []
    addresses += [address for address in config.addresses("admin") if _has_port(address)]
    secure = [address for address in config.tls_addresses("admin") if _has_port(address)]
    addresses += [TlsAddress(address.host, address.port, config.tls.certificate) for address in secure]
    if not addresses:
        raise AdminError(f"{printable(path)}: [admin] has socket = false and no port that is known before the start")
    return addresses


def _has_port(address: Address) -> bool:
    return not isinstance(address, TcpAddress) or address.port != 0


def _parse_url(url: str, ctx: click.Context) -> TcpAddress | TlsAddress:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        is_plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username is not None)
    except ValueError:
        host, port, is_plain = None, None, False
    is_secure = url.lower().startswith("https://")
    if host is None or not is_plain or not (is_secure or url.lower().startswith("http://")):
        raise click.UsageError(f"expected --url http://HOST:PORT or https://HOST:PORT, got {printable(url)}", ctx)
    if is_secure:
        return TlsAddress(host, 443 if port is None else port)
    return TcpAddress(host, 80 if port is None else port)


def _read_token(path: str) -> bytes:
    from staniel.broker.admin.access import read_token
    from staniel.broker.config.load import ConfigError

    try:
        return read_token(OsFs(), path)
    except ConfigError as error:
        raise AdminError(f"{printable(path)}: {error.why}") from error
