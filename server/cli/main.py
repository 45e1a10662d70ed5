"""The commands `serve` and `ping`, and the group that loads the others. A module that only one command needs is
imported when it runs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from staniel.broker.version import VERSION_LINE
from staniel.server.cli.parameters import check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from staniel.broker.config.load import Config
    from staniel.server.cli.ping import PingAnswer

HELD_BACK, SILENT = 3, 4  # exit codes; click's are 1 and 2
CHANGING = "Queues: what moves or removes items"
GROUPS: dict[str, tuple[str, ...]] = {
    "A server": ("serve", "ping", "health", "status", "clients", "audit", "operations", "hold", "reload", "stop"),
    "Queues": ("top", "queues", "peek", "find", "open", "put", "get", "pause", "resume"),
    CHANGING: (),  # those of changing.py
    "Programs": ("work",),
    "Several machines": ("cluster", "handover"),
    "Files": ("selftest", "backup", "restore", "adopt", "config", "user", "journal", "pipeline"),
}
COMMANDS = {  # by name: the module of this folder that is loaded for it, and its function there
    "adopt": ("adopt", "adopt_folder"),
    "backup": ("backup", "backup"),
    "cluster": ("cluster", "cluster"),
    "config": ("config", "config"),
    "find": ("finding", "find"),
    "handover": ("cluster", "handover"),
    "hold": ("holds", "hold"),
    "journal": ("journal", "journal"),
    "operations": ("operations", "operations"),
    "restore": ("backup", "restore"),
    "selftest": ("selftest", "selftest"),
    "top": ("top.command", "top"),
    "user": ("user", "user"),
}
HELP = {"help_option_names": ["-h", "--help"]}
EXAMPLES = "\b\nExamples:\n"


def groups() -> dict[str, tuple[str, ...]]:
    """Return the names of all commands, by the title under which `--help` shows them."""
    from staniel.server.cli import changing

    return GROUPS | {CHANGING: changing.CHANGING}


class Commands(click.Group):
    """A group that loads a command's code when it is called: `serve` loads neither Spark nor the dumpers."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in groups().values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = self._load(ctx, cmd_name)
        if command is not None:
            _head_examples(command)
        return command

    def _load(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "pipeline":
            from staniel.pipeline.cli import pipeline

            return pipeline
        if cmd_name == "work":
            from staniel.worker.command import work

            return work
        if cmd_name in COMMANDS:
            module, name = COMMANDS[cmd_name]
            loaded: click.Command = getattr(import_module(f"staniel.server.cli.{module}"), name)
            return loaded
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        from staniel.server.cli.changing import QUEUE_COMMANDS

        return QUEUE_COMMANDS.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            if near := get_close_matches(args[0], self.list_commands(ctx), n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in groups().items():
            rows = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, command.get_short_help_str(60)) for name, command in rows if command is not None]
                )


def _head_examples(command: click.Command) -> None:
    """Put a heading over the examples with which the help of `command` ends, and the commands of a group. They are its
    epilog, one a line.
    """
    if command.epilog and not command.epilog.startswith(EXAMPLES):
        command.epilog = EXAMPLES + indent(command.epilog, "  ")
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _head_examples(inner)


@click.group(cls=Commands, context_settings=HELP)
@click.version_option(VERSION_LINE, "--version", "-V", message="%(version)s")
def main() -> None:
    """Run and operate Staniel, a persistent queue server: memcache protocol, Kestrel journals. No crash loses what the
    server has acknowledged.

    All commands except `serve`, `ping` and those on files ask a running server: --spool FOLDER names it (for its own
    user and root), or --config FILE, or --url and its [admin] port. docs/commands.md shows them.
    """


@main.command(epilog="staniel serve --config /etc/staniel/staniel.toml\nstaniel serve --port 22200 --spool /tmp/try")
@click.option("--config", "-c", "path", type=click.Path(dir_okay=False), help="TOML file; see docs/config.md.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="Memcache port; 0 picks one.  [default: 22133]")
@click.option("--spool", "-s", type=click.Path(file_okay=False), help="Folder of the journals.  [default: spool]")
@click.option(
    "--sync",
    metavar="always|os|50ms",
    help="What a reply waits for, except in queues with a sync_journal of their own.  [default: always]",
)
@click.option("--open-network", is_flag=True, help="Serve other machines without authentication.")
@click.option("--trust-file-system", is_flag=True, help="Accept a file system that is known to break syncs.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Least level to log.  [default: info]"
)
@click.option("--log-format", type=click.Choice(["logfmt", "json"]), help="Form of the log.  [default: logfmt]")
@click.option("--workq-port", type=click.IntRange(0, 65535), help="Workq port.  [default: 9922, if workq is served]")
@click.option("-cmdlog-path", "--cmdlog-path", metavar="FOLDER", help="Workq's command log.  [default: in the spool]")
@click.option("-cmdlog-sync", "--cmdlog-sync", metavar="interval|os|always", help="When to sync it.  [default: always]")
@click.option("-cmdlog-sync-int", "--cmdlog-sync-int", type=int, metavar="MS", help="The interval.  [default: 1000]")
@click.option(
    "-cmdlog-clean-int", "--cmdlog-clean-int", type=int, metavar="MS", help="Time between cleanings.  [default: 300000]"
)
@click.option(
    "-cmdlog-seg-size", "--cmdlog-seg-size", type=int, metavar="BYTES", help="Size of a segment.  [default: 67108864]"
)
def serve(
    path: str | None,
    host: str | None,
    port: int | None,
    spool: str | None,
    sync: str | None,
    open_network: bool,
    trust_file_system: bool,
    log_level: str | None,
    log_format: str | None,
    workq_port: int | None,
    **cmdlog: object,
) -> None:
    """Run the server until SIGTERM, SIGINT or a client's `shutdown`.

    Without a config it listens on 127.0.0.1:22133 and keeps its journals in ./spool. Options override the file.

    --sync always: a reply means that its change is durable (one sync serves every client that waits). --sync 50ms: a
    killed process loses nothing, a power cut at most that long. --sync os: a killed process loses nothing.
    """
    from staniel.broker.config.load import defaults, load, named_log_format
    from staniel.server.app import run

    def read_config() -> Config:
        config = load(path) if path else defaults(".")
        jobs: dict[str, object] = {"port": workq_port, **cmdlog}
        texts: dict[str, Any] = {
            "host": host,
            "spool": spool,
            "sync": sync,
            "log_level": log_level,
            "log_format": log_format,
        }
        flags: dict[str, Any] = {"open_network": open_network, "trust_file_system": trust_file_system}
        return config.overridden(port=port, cmdlog=jobs, **flags, **texts).absolute()

    sys.exit(run(read_config, log_format or (named_log_format(path) if path else "")))


def _ping_target(ctx: click.Context) -> tuple[str, Callable[[float], PingAnswer]]:
    """Return the name of the server that `ping` asks, and a function that asks it within a time. Raises
    ClickException.
    """
    said = ctx.params
    if not (said["tls"] or said["config"] or said["spool"]):
        from staniel.server.cli.ping import ping as ask_port
        from staniel.server.text import printable

        host, port, path = said["host"], said["port"], said["path"]
        where = printable(f"unix:{path}" if path else f"{host}:{port}")
        return where, lambda timeout_s: ask_port(host, port, timeout_s, path)
    from staniel.server.cli import ping_server

    return ping_server.prepare(ctx)


@main.command(epilog="staniel ping\nstaniel ping --port 22200 --alive")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the server.")
@click.option("--port", "-p", default=22133, show_default=True, type=click.IntRange(1, 65535), help="Memcache port.")
@click.option("--unix", "path", default="", metavar="PATH", help="Unix socket of the server, instead of a port.")
@click.option("--tls", is_flag=True, help="Use TLS.")
@click.option(
    "--ca", default="", metavar="FILE", help="Authorities to trust under TLS, in PEM.  [default: the system's]"
)
@click.option(
    "--certificate", default="", metavar="FILE", help="The client's certificate, for a server that asks for one."
)
@click.option("--key", default="", metavar="FILE", help="The key, if it is in another file.")
@click.option(
    "--config", "-c", metavar="FILE", help="Instead, the server's file, which names its port and certificate."
)
@click.option("--spool", "-s", metavar="DIR", help="Instead, the server's spool: asks over its socket.")
@click.option(
    "--timeout",
    default=2.0,
    show_default=True,
    type=float,
    help="The time for the whole check, in seconds.",
    callback=check_seconds,
)
@click.option("--alive", is_flag=True, help="Exit code 0 for every server that replies or starts, whatever it refuses.")
@click.pass_context
def ping(ctx: click.Context, /, timeout: float, alive: bool, **said: Any) -> None:
    """Say whether a server replies. For health checks.

    Exit code 0: it replies, and all is up. 1: it does not reply. 3: its status is not up, or queues are paused or
    cannot be read: the line says which. Or it is starting, and the line shows its progress, which needs --spool or
    --config. Or it has users, and does not tell its status to an unauthenticated client; the server's own user is
    authenticated on a Unix socket, and with --spool. 4: its port is open and it does not reply: it has reached
    max_connections, or it hangs.
    """
    from staniel.server.cli.ping import ServerSilent, ServerStarting
    from staniel.server.text import printable, tolerate

    tolerate()
    where, ask = _ping_target(ctx)
    try:
        answer = ask(timeout)
    except ServerStarting as starting:
        click.echo(printable(f"the server on {where} is starting: {starting}".removesuffix(": ")))
        sys.exit(0 if alive else HELD_BACK)
    except ServerSilent:
        why = "the port is open: the server is full (max_connections, `connections.full` in its log), or it hangs"
        click.echo(f"Error: no answer from {where} in {timeout:g} s, but {why}", err=True)
        sys.exit(SILENT)
    except OSError as error:
        why = printable(error.strerror or str(error))
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            why += "; start it, or name another with --host, --port, --unix, --config or --spool"
        raise click.ClickException(f"no answer from {where}: {why}") from error
    held_back = f", {answer.held_back}" if answer.held_back else ""
    name = f"staniel {answer.version}" if answer.version else "a server"
    click.echo(printable(f"{name} answers on {where}{held_back}"))
    sys.exit(HELD_BACK if answer.held_back and not alive else 0)
