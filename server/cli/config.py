"""The commands `staniel config …`: check a configuration file, show its settings with all defaults, and compare it with
a running server. The first two need no server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click
from msgspec import Struct

from staniel.broker.admin.access import AdminAccess
from staniel.broker.config.addresses import TcpAddress, UnixAddress, format_address
from staniel.broker.config.load import LISTENERS, Config, ConfigError, defaults, load
from staniel.broker.config.schema import SECTIONS, UserSettings
from staniel.broker.config.toml import joined, keys_of
from staniel.broker.config.values import PASSWORD_HASH, SettingKind, quoted
from staniel.broker.users import Users, network_refusal
from staniel.journal.disk.os_fs import OsFs
from staniel.queues.config import QueueConfig
from staniel.server import secret_files
from staniel.server.certificates import make_context
from staniel.server.cli.admin_client import queue_path
from staniel.server.cli.import_kestrel import import_kestrel
from staniel.server.cli.live_command import Live, LiveCommand, convert
from staniel.server.text import counted, printable, tolerate


@click.group()
def config() -> None:
    """Check a configuration file, or show its settings with all defaults."""
    tolerate()


config.add_command(import_kestrel)


def _load(path: str) -> Config:
    try:
        return load(path)
    except ConfigError as error:
        raise click.ClickException(printable(str(error))) from error


@config.command(epilog="staniel config check /etc/staniel/staniel.toml")
@click.argument("path", metavar="FILE")
def check(path: str) -> None:
    """Say whether a server would start with FILE, and if not, which line or key is wrong. Exit code 0: it would start.

    It would also start with files and settings that a warning names: secret files that others can read, settings
    without effect.
    """
    loaded = _load(path)
    try:
        AdminAccess(loaded, OsFs())  # reads the token
        if loaded.tls.certificate:
            make_context(loaded.tls)
        Users(loaded, OsFs(), frozenset())  # reads secrets
    except ConfigError as error:
        raise click.ClickException(printable(f"{path}: {error}")) from error
    if why := network_refusal(loaded):
        raise click.ClickException(printable(f"{path}: {why}"))
    for doubt in _find_mistakes(loaded):
        click.echo(printable(f"warning: {doubt}"), err=True)
    own = counted(len(loaded.queues), "queue has settings of its own", "queues have settings of their own")
    click.echo(f"{printable(path)} is good: {own}")


def _find_mistakes(loaded: Config) -> Iterator[str]:
    """Yield the settings with which a server starts, but which are probably a mistake."""
    for path in secret_files.exposed_files(loaded):
        yield f"every user of this machine can read {path}: {secret_files.mend(path)}"
    has_tls = any(loaded.tls_addresses(name) for name in LISTENERS)
    if loaded.tls.certificate and not has_tls:
        yield "tls.certificate: no listener has a tls_port, so that nothing is served under TLS"
    for name, user in loaded.users.items():
        key = joined("users", name)
        if not user.roles:
            yield f"{key}.roles: it is empty, so this user may do nothing"
        if user.certificates and not (has_tls and loaded.tls.client_ca):
            yield f"{key}.certificates: clients are not asked for certificates without [tls] client_ca and a tls_port"
        ways = (user.password_hash, user.password_file, user.token_file)
        if not (any(ways) or user.certificates or user.uids):
            yield f"{key}: no client can be this user: give password_hash, certificates, uids or token_file"


@config.command(epilog="staniel config show /etc/staniel/staniel.toml\nstaniel config show")
@click.argument("path", metavar="[FILE]", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(path: str | None, as_json: bool) -> None:
    """Print all settings, with the defaults of missing ones and inherited ones of queues: an equivalent FILE."""
    lines = list(_as_toml(_load(path) if path is not None else defaults("")))
    if as_json:
        import tomllib

        click.echo(json.dumps(tomllib.loads("\n".join(lines))))
        return
    for line in lines:
        click.echo(printable(line))


def _as_toml(loaded: Config) -> Iterator[str]:
    for section in ("server", *LISTENERS, "tls", "cluster"):
        settings = getattr(loaded, section)
        left_out = {"port" if settings.listen else "listen"} if section in LISTENERS else set()
        yield from _section(section, SECTIONS[section], settings, left_out)
    yield from _section("default", QueueConfig, loaded.queue(""), set())
    for name in sorted(filter(None, loaded.resolved)):
        yield from _section(joined("queues", name), QueueConfig, loaded.queue(name), set())
    for name, user in loaded.users.items():
        yield from _section(joined("users", name), UserSettings, user, set())
    if loaded.aliases:
        yield "[aliases]"
        for name, targets in loaded.aliases.items():
            yield f"{joined('', name)} = {json.dumps(targets)}"


def _section(name: str, kind: type[Struct], settings: Struct, left_out: set[str]) -> Iterator[str]:
    yield f"[{name}]"
    for spelled, key in keys_of(kind).items():
        if key.kind is PASSWORD_HASH:
            if getattr(settings, key.attribute):
                yield "# password_hash is not shown"
        elif spelled not in left_out:
            yield f"{spelled} = {_format_value(key.kind, getattr(settings, key.attribute))}"
    yield ""


def _format_value(kind: SettingKind, value: object) -> str:
    """Return the whole value: a kind's own `show` is for messages, and shortens long ones."""
    if isinstance(value, str) and value:
        return quoted(value)
    if (
        value
        and isinstance(value, tuple)
        and all(isinstance(element, str | TcpAddress | UnixAddress) for element in value)
    ):
        return quoted(tuple(element if isinstance(element, str) else format_address(element) for element in value))
    return kind.show(value)


def _as_written(kind: SettingKind, value: object) -> str:
    """Return the server's value in the syntax of a file: "16MB" for 16777216."""
    if isinstance(value, bool) or value is None:  # None: a server that has no such setting
        return json.dumps(value)
    if isinstance(value, str):
        return quoted(value)
    return kind.show(value)


@config.command(cls=LiveCommand, epilog="staniel config diff /etc/staniel/staniel.toml")
@click.argument("config", metavar="FILE")
@click.pass_obj
def diff(live: Live, config: str) -> None:
    """Show where the settings of a running server's queues differ from FILE, for example after an edit without a
    reload.

    The server is that of FILE's spool or [admin] address unless options name another. Exit code 0: there is no
    difference. 1: there are differences, or no server could be reached, or FILE is wrong.
    """
    wanted = _load(config)
    names = {queue["name"] for queue in convert(live.client.get("/api/queues"), list[dict[str, Any]])}
    differences = []
    for name in sorted(names | {*filter(None, wanted.resolved)}):
        has = convert(live.client.get(queue_path(name, "config")), dict[str, Any])
        for key, value in wanted.worded(name):
            if has.get(key) != value:
                differences.append({"queue": name, "key": key, "server": has.get(key), "file": value})
    if live.print_json(differences):
        sys.exit(1 if differences else 0)
    for difference in differences:
        kind = keys_of(QueueConfig)[str(difference["key"])].kind
        server, file = (printable(_as_written(kind, difference[where])) for where in ("server", "file"))
        click.echo(
            f"{printable(str(difference['queue']))}: {difference['key']} is {server} in the server, {file} in the file"
        )
    if not differences:
        click.echo(f"no difference in the settings of {counted(len(names), 'queue')}")
    sys.exit(1 if differences else 0)
