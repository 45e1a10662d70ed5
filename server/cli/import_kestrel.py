"""The command `staniel config import-kestrel`: it converts a configuration of Kestrel's to ours, and prints a line for
each setting without an equivalent.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from shlex import quote

import click
from msgspec import Struct

from staniel.broker.config.addresses import is_loopback
from staniel.broker.config.load import ConfigError, parse
from staniel.broker.config.schema import MOVED, REFUSED, SECTIONS
from staniel.broker.config.toml import joined, keys_of, read_value
from staniel.broker.config.values import NONE, format_duration, format_size, quoted
from staniel.queues.config import QueueConfig
from staniel.server.cli.kestrel_config import (
    Assignment,
    Duration,
    Made,
    Nothing,
    ScalaError,
    Size,
    Unknown,
    Value,
    Word,
    read_config,
)
from staniel.server.cli.parameters import CommandFailed
from staniel.server.text import counted, printable

SPOOL = "/var/lib/staniel"  # as in docs/ and packaging/staniel.service
LEFT_OUT = 1  # exit code
OVERFLOW_DEFAULT = 10  # of maxJournalOverflow
LEVELS = {
    "TRACE": "debug", "DEBUG": "debug", "ALL": "debug", "INFO": "info", "WARNING": "warning", "WARN": "warning",
    "ERROR": "error", "CRITICAL": "error", "FATAL": "error", "OFF": "error",
}  # fmt: skip
ADMIN = "the admin port has metrics for Prometheus, health and a page; there are no other collectors"
REASONS = {
    **REFUSED,
    "multifile_journal": "a journal always has several files",
    "max_journal_overflow": "Kestrel 2.0's; what it says is in max_journal_size",
    "admin": ADMIN,
}
# Kestrel's defaults that differ from ours.
OTHER_DEFAULTS = {
    "server": {
        "host": '"0.0.0.0"', "max_open_transactions": "1", "expiration_timer_frequency": '"none"',
    },
    "memcache": {"dialect": '"kestrel"'},
    "text": {"port": "2222"},
    "thrift": {"port": "2229"},
    "default": {"sync_journal": '"os"', "max_item_size": '"none"'},
}  # fmt: skip
Note = Callable[[int, str, str], None]
"""A callback with a line number, a setting, and why it is not carried over."""


class Setting(Struct, frozen=True):
    """A setting of the new file: `value` as TOML, `comment` behind it."""

    value: str
    comment: str = ""


class OwnFolder(Exception):
    """The new server would write to Kestrel's files."""


class SettingMisfit(Exception):
    """The value is invalid for the setting; the text says why."""


class Import:
    """A conversion. `sections` are in the order of the new file; `note` is called for each setting without an
    equivalent.
    """

    def __init__(self, note: Note, spool: str = SPOOL, *, is_open: bool = False) -> None:
        """Begin a conversion. `spool` is that of the new server. `is_open`: it serves other machines without users, as
        Kestrel does.
        """
        self._note = note
        self._spool = spool
        self._may_open = is_open
        self.sections: dict[str, dict[str, Setting]] = {name: {} for name in ("server", "memcache", "text", "thrift")}
        self.sections |= {"admin": {}, "default": {}}
        self.sections["server"]["spool"] = Setting(quoted(spool))
        self.aliases: dict[str, str] = {}
        self._host = ""  # Kestrel's host, if it serves other machines and our server does not yet
        self._overflow: int | None = None  # times max_journal_size, in files of Kestrel 2.0

    def run(self, assignments: list[Assignment]) -> None:
        self._overflow = _overflow_of(assignments)
        defaults = list[Assignment]()
        for assignment in assignments:
            head, _, key = assignment.path.partition(".")
            if head == "default":
                defaults += (
                    assignment.value.fields if isinstance(assignment.value, Made) else [_renamed(assignment, key)]
                )
            elif head == "queues" and not key:
                self._queues(assignment)
            elif head == "aliases" and not key:
                self._aliases(assignment)
            elif head == "loggers":
                self._loggers(assignment)
            else:
                self._setting(assignment)
        self._queue("default", defaults)
        self._guard_admin(assignments)
        self._guard_network(assignments)

    def _guard_network(self, assignments: list[Assignment]) -> None:
        """Guard the network: Kestrel serves every machine that reaches it; our server requires that as an explicit
        setting.
        """
        host = self.sections["server"].get("host")
        if host is None or is_loopback(host.value.strip('"')):
            return
        if self._may_open:
            self.sections["server"] |= {
                "open_network": Setting("true", "clients of other machines are not asked who they are"),
                "operator_commands": Setting('"everywhere"', "they may delete, flush, shut down, as with Kestrel"),
            }
            return
        line = next((assignment.line for assignment in assignments if assignment.path == "listenAddress"), 0)
        why = "127.0.0.1 alone: a server that other machines reach starts with [users], or see --open-network"
        self._note(line, "listenAddress", why)
        self._host = host.value
        self.sections["server"]["host"] = Setting('"127.0.0.1"')

    def _guard_admin(self, assignments: list[Assignment]) -> None:
        """Guard the admin port: Kestrel's is open to all; ours requires a token beyond loopback."""
        host, port = self.sections["server"].get("host"), self.sections["admin"].pop("port", None)
        if port is None:
            return
        if host is None or is_loopback(host.value.strip('"')):
            self.sections["admin"]["port"] = port
            return
        line = next((assignment.line for assignment in assignments if assignment.path == "admin.httpPort"), 0)
        self._note(line, "admin.httpPort", "on 127.0.0.1 alone; for other addresses set [admin] listen and token_file")
        self.sections["admin"]["listen"] = Setting(f'["127.0.0.1:{port.value}"]')

    def _setting(self, assignment: Assignment) -> None:
        name = _snake(assignment.path)
        if assignment.path == "admin.httpPort":
            name = "http_port"
        section, _, key = MOVED.get(name, f"server.{name}").partition(".")
        if key not in keys_of(SECTIONS[section]):
            reason = REASONS.get(name.partition(".")[0], "Staniel has no such setting")
            if not re.fullmatch(r"[\w.]+", name):
                reason = "not understood: a program, not a value"
            self._note(assignment.line, assignment.path, reason)
            return
        try:
            setting = _setting_of(section, key, assignment.value)
        except SettingMisfit as misfit:
            self._note(assignment.line, assignment.path, str(misfit))
            return
        if key == "spool":
            self._adopt(assignment)
            return
        self.sections[section][key] = setting

    def _adopt(self, assignment: Assignment) -> None:
        """Replace Kestrel's folder by our spool: two servers must not write to the same files. Raises OwnFolder."""
        old = str(assignment.value)
        if os.path.realpath(old) == os.path.realpath(self._spool):
            raise OwnFolder(old)
        words = " ".join(quote(word) for word in ("staniel", "adopt", old, self._spool))
        self.sections["server"]["spool"] = Setting(quoted(self._spool), f"a copy of Kestrel's: {words}")

    def _loggers(self, assignment: Assignment) -> None:
        logger = assignment.value[0] if isinstance(assignment.value, list) and assignment.value else assignment.value
        level = (
            next((assignment.value for assignment in logger.fields if assignment.path == "level"), None)
            if isinstance(logger, Made)
            else None
        )
        if isinstance(level, Word) and (ours := LEVELS.get(level.text.rpartition(".")[2])):
            self.sections["server"]["log_level"] = Setting(quoted(ours))
        self._note(assignment.line, assignment.path, f"all but the level: {REFUSED['loggers']}")

    # queues

    def _queues(self, assignment: Assignment) -> None:
        for builder in assignment.value if isinstance(assignment.value, list) else [assignment.value]:
            if not isinstance(builder, Made):
                self._note(
                    assignment.line,
                    assignment.path,
                    "not understood: expected new QueueBuilder { … }, or a list of them",
                )
                continue
            name = next((field.value for field in builder.fields if field.path == "name"), None)
            if not isinstance(name, str):
                self._note(builder.line, f"new {builder.name}", "a queue without a name that is text")
                continue
            self._queue(joined("queues", name), [field for field in builder.fields if field.path != "name"])

    def _queue(self, section: str, fields: list[Assignment]) -> None:
        settings = self.sections.setdefault(section, {})
        for assignment in fields:
            key = _snake(assignment.path)
            if key not in keys_of(QueueConfig):
                self._note(assignment.line, assignment.path, REASONS.get(key, "Staniel has no such setting of queues"))
                continue
            try:
                settings[key] = _setting_of(section, key, assignment.value)
                if self._overflow is not None and key == "max_journal_size":
                    settings |= self._old_sizes(assignment.value, fields)
            except SettingMisfit as misfit:
                self._note(assignment.line, assignment.path, str(misfit))

    def _old_sizes(self, value: Value, fields: list[Assignment]) -> dict[str, Setting]:
        """Convert the sizes of Kestrel 2.0, whose max_journal_size is now default_journal_size, and whose limit was a
        multiple of it.
        """
        overflow = next(
            (assignment.value for assignment in fields if assignment.path == "maxJournalOverflow"), self._overflow
        )
        times = overflow if isinstance(overflow, int) else OVERFLOW_DEFAULT
        size = value.bytes if isinstance(value, Size) else value
        if not isinstance(size, int | float):
            return {}
        return {
            "default_journal_size": Setting(quoted(format_size(int(size))), "maxJournalSize of Kestrel 2.0"),
            "max_journal_size": Setting(quoted(format_size(int(size) * times)), f"{times} times that"),
        }

    def _aliases(self, assignment: Assignment) -> None:
        for builder in assignment.value if isinstance(assignment.value, list) else [assignment.value]:
            fields = {field.path: field.value for field in builder.fields} if isinstance(builder, Made) else {}
            name, targets = fields.get("name"), fields.get("destinationQueues")
            if isinstance(name, str) and isinstance(targets, list) and all(isinstance(to, str) for to in targets):
                self.aliases[name] = quoted(tuple(str(to) for to in targets)).replace(": ", ":")
            else:
                line = builder.line if isinstance(builder, Made) else assignment.line
                why = "not understood: expected new AliasBuilder { name; destinationQueues }"
                self._note(line, assignment.path, why)

    # the file

    def lines(self, path: str) -> Iterator[str]:
        yield f"# From {path}, by `staniel config import-kestrel`. Every key, with its default, is in docs/config.md."
        for name, settings in self.sections.items():
            unsaid = {key: value for key, value in OTHER_DEFAULTS.get(name, {}).items() if key not in settings}
            if not settings and not unsaid and not name.startswith("queues."):
                continue
            yield ""
            yield f"[{name}]"
            for key, setting in settings.items():
                yield f"{key} = {setting.value}" + (f"  # {setting.comment}" if setting.comment else "")
            if name == "server" and self._host:
                yield f"# host = {self._host}  # Kestrel's; with [users], or with the next line, as Kestrel does"
                yield "# open_network = true  # clients of other machines are not asked who they are"
                yield '# operator_commands = "everywhere"  # they may delete, flush, shut down, as with Kestrel'
            for key, value in unsaid.items():
                yield f"# {key} = {value}  # so Kestrel, where its file says nothing"
        if self.aliases:
            yield ""
            yield "[aliases]"
            for name, targets in self.aliases.items():
                yield f"{joined('', name)} = {targets}"


def _overflow_of(assignments: list[Assignment]) -> int | None:
    """Return Kestrel 2.0's maxJournalOverflow of all queues; None: the file is of a later version."""
    said: int | None = None
    for assignment in assignments:
        if assignment.path == "default.maxJournalOverflow" and isinstance(assignment.value, int):
            return assignment.value
        made = assignment.value if isinstance(assignment.value, list) else [assignment.value]
        if any(
            field.path == "maxJournalOverflow"
            for builder in made
            if isinstance(builder, Made)
            for field in builder.fields
        ):
            said = OVERFLOW_DEFAULT
    return said


def _renamed(assignment: Assignment, path: str) -> Assignment:
    return Assignment(path, assignment.value, assignment.line)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _setting_of(section: str, key: str, value: Value) -> Setting:
    """Convert a value to a setting. Raises SettingMisfit."""
    kind = keys_of(SECTIONS[section.partition(".")[0]])[key].kind
    plain = _plain(key, kind.word, value)
    try:
        read_value("", kind, plain)
    except ConfigError as error:
        raise SettingMisfit(error.why) from None
    return Setting(quoted(plain) if isinstance(plain, str) else str(plain).lower())


def _plain(key: str, word: str, value: Value) -> object:
    """Convert a value to TOML. Raises SettingMisfit."""
    if key == "sync_journal" and isinstance(value, bool | Nothing):
        return "always" if value is True else "os"  # Kestrel 2.0 had a flag
    match value:
        case Duration(ms):
            return _duration(key, ms)
        case Size(size):
            return format_size(int(size))
        case Nothing():
            return NONE
        case Word(text):
            return text.rpartition(".")[2].lower()
        case bool() | str():
            return value
        case int() if "duration" in word and value:
            raise SettingMisfit("a time without a unit")
        case int() if value >= 1 << 62 or ("number" in word and value == (1 << 31) - 1):
            return NONE
        case int() if "size" in word:
            return format_size(value)
        case int() | float():
            return value
        case Unknown():
            raise SettingMisfit("its value is not understood")
        case _:
            raise SettingMisfit(f"expected {word}")


def _duration(key: str, ms: float) -> str:
    if not ms:
        return "always" if key == "sync_journal" else NONE
    return format_duration(max(1, round(ms)))


@click.command("import-kestrel", epilog="staniel config import-kestrel production.scala > staniel.toml")
@click.argument("path", metavar="FILE.scala")
@click.option(
    "--spool", "-s", default=SPOOL, show_default=True, metavar="DIR", help="The new server's spool, for `adopt`."
)
@click.option("--open-network", is_flag=True, help="Serve other machines without authentication, as Kestrel does.")
def import_kestrel(path: str, spool: str, open_network: bool) -> None:
    """Write a configuration of Kestrel 2 as one of Staniel's to standard output.

    The new configuration serves a copy of Kestrel's folder, which `staniel adopt` makes, on 127.0.0.1 alone, unless
    --open-network is given: a server starts with it unchanged.

    Settings without an equivalent are named on standard error, with their lines. Defaults of Kestrel that differ from
    Staniel's are comments in the new file. Exit code 0: everything was carried over; 1: something was not; 2: the file
    cannot be read.
    """
    notes = list[tuple[int, str, str]]()
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            assignments = read_config(file.read())
    except OSError as error:
        raise CommandFailed(printable(f"cannot read {path}: {error.strerror}")) from error
    except ScalaError as error:
        raise CommandFailed(printable(f"{path}: {error}")) from error
    except RecursionError:
        raise CommandFailed(printable(f"{path}: its brackets are nested too deeply")) from None
    spool = os.path.abspath(spool)
    conversion = Import(lambda line, what, why: notes.append((line, what, why)), spool, is_open=open_network)
    try:
        conversion.run(assignments)
    except OwnFolder as error:
        why = "is Kestrel's own queuePath: name another folder, and copy it there with `staniel adopt`"
        raise click.UsageError(printable(f"--spool {error} {why}")) from error
    lines = list(conversion.lines(path))
    for line in lines:
        click.echo(printable(line))
    for line_number, what, why in sorted(notes):
        click.echo(printable(f"{path}:{line_number}: {what}: {why}"), err=True)
    try:
        parse("\n".join(lines).encode("utf-8", "surrogateescape"), ".")
    except ConfigError as error:
        click.echo(printable(f"{path}: the new file would be refused: {error}; correct it there"), err=True)
        sys.exit(LEFT_OUT)
    if notes:
        click.echo(f"{counted(len(notes), 'thing')} not carried over", err=True)
    sys.exit(LEFT_OUT if notes else 0)
