"""The command `staniel pipeline …`: arguments, progress on the terminal, and errors as one line. Spark is loaded when a
job runs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from staniel.journal.disk.os_fs import is_file, is_folder
from staniel.journal.disk.refusals import refused_tool
from staniel.pipeline.lake.folders import SCHEME, absolute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class UsageError(click.ClickException):
    """An error shown as one line, without click's usage text."""

    exit_code = 2


def like(pattern: str, what: str) -> Callable[[Any, Any, str], str]:
    """Validate a value before Java fails on it with a long stack trace."""

    def checked(_: click.Context, __: click.Parameter, text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise UsageError(f"{text} is not {what}")
        return text

    return checked


def _looked(look: Callable[[str], bool], path: str) -> bool:
    """Return the result of `look` for a path. Raises UsageError if the system refuses the call."""
    try:
        return look(path)
    except OSError as error:
        raise UsageError(refused_tool(error, path)) from error


def there(_: click.Context, __: click.Parameter, files: str | None) -> str | None:
    for path in (files or "").split(","):
        if path and not SCHEME.match(path) and not _looked(is_file, path):
            raise UsageError(f"there is no file {path}")
    return files


MASTER = click.option(
    "--master",
    default="local[*]",
    show_default=True,
    callback=like(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+", "local[N], spark://host:port, yarn or k8s://..."),
    help="Where Spark runs.",
)
MEMORY = click.option(
    "--memory",
    default="1g",
    show_default=True,
    callback=like(r"([0-9]{3,}[mM]|[1-9][0-9]*[gGtT])[bB]?", "a size like 512m or 2g"),
    help="Memory of the driver.",
)
PY_FILES = click.option("--py-files", callback=there, help="The wheel, for executors elsewhere (make wheel builds it).")
QUEUES = click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    help="Only this queue, which must exist; a pattern like mail* works too.",
)
FORMAT = click.option("--format", "form", default="auto", show_default=True, help="Journal format.")
ON_CORRUPT = click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "permissive", "quarantine"]),
    default="fail",
    show_default=True,
    help="How to treat files that cannot be read to their end.",
)
SERVERS = click.option("--server", "-s", "servers", multiple=True, help="host:port; may be given several times.")
Command = Callable[..., Any]


def existing(_: click.Context, __: click.Parameter, spools: Any) -> Any:
    """Refuse a folder that does not exist: a mistyped name must not look like a spool without queues. URLs are not
    checked.
    """
    if not isinstance(spools, str):
        return tuple(existing(_, __, spool) for spool in spools)
    if not SCHEME.match(spools) and not _looked(is_folder, spools):
        raise UsageError(f"there is no folder {spools}")
    return absolute(spools)


SPOOL = click.argument("spool", callback=existing)


def existing_or_several(context: click.Context, parameter: click.Parameter, spool: str) -> str:
    """Refuse a folder that does not exist, unless it is a pattern of folders, or has the place of a host's name."""
    from staniel.pipeline.lake.globs import is_pattern

    several = is_pattern(absolute(spool)) or "{host}" in spool
    return absolute(spool) if several else str(existing(context, parameter, spool))


def of_spools(command: Command) -> Command:
    """Add the argument and options for one spool or several: the command gets them as `spool` and `several`, options
    of the source.
    """

    @functools.wraps(command)
    def given(*args: Any, hosts_file: str | None, ignore_unreachable: bool, **options: Any) -> Any:
        several = {"hostsFile": hosts_file} if hosts_file else {}
        several |= {"ignoreUnreachable": "true"} if ignore_unreachable else {}
        return command(*args, several=several, **options)

    given = click.option("--ignore-unreachable", is_flag=True, help="Leave out spools that cannot be read.")(given)
    given = click.option(
        "--hosts-file", callback=there, help="A file with a host a line, for SPOOL like /data/{host}/spool."
    )(given)
    return click.argument("spool", callback=existing_or_several)(given)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Run Spark jobs on journals and queues: archive, report, replay, drain, verify, pack, convert."""


def on_spark(command: Command) -> Command:
    """Add the options that every job has, and check the requirements before anything is loaded."""

    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        from staniel.pipeline.requirements import MissingRequirement, check_packages

        try:
            check_packages()
        except MissingRequirement as missing:
            raise click.ClickException(str(missing)) from None
        return command(*args, **options)

    for option in (PY_FILES, MEMORY, MASTER):
        checked = option(checked)
    return checked


@contextlib.contextmanager
def spark_on(master: str, memory: str, py_files: str | None) -> Iterator[SparkSession]:
    """Yield a Spark session. Errors in it, or in starting it, become one line."""
    from staniel.pipeline.requirements import MissingRequirement
    from staniel.pipeline.sessions import build, close

    print_note(f"starting Spark on {master} ...")
    try:
        session = build(master, "staniel pipeline", memory, py_files or "")
    except MissingRequirement as missing:
        raise click.ClickException(str(missing)) from None
    except Exception as error:  # Java's, Spark's, py4j's and ours have no common base
        raise click.ClickException(f"Spark does not start on {master}: {reason(str(error))}") from None
    try:
        with one_line():
            yield session
    finally:
        close(session)


@contextlib.contextmanager
def one_line() -> Iterator[None]:
    """Turn expected errors into one line; others keep their traceback."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        from pyspark.errors import PySparkException

        ours = type(error).__module__.startswith(("py4j", "staniel.pipeline."))
        if ours or isinstance(error, PySparkException | ValueError | RuntimeError | OSError):
            raise click.ClickException(reason(str(error))) from None
        raise


ACCESS = (
    ("user", "user", "The user to log in as, at servers that have users."),
    ("token-file", "tokenFile", "A file whose first line is that user's token or password."),
    ("ca", "caFile", "The authority of the servers' certificates, in PEM; implies --tls. [default: the system's]"),
    ("certificate", "certificateFile", "A certificate to show to the servers, in PEM; implies --tls."),
    ("key", "keyFile", "Its key, if it is in another file."),
)


def of_servers(command: Command) -> Command:
    """Add the options for connecting to live servers: the command gets them as `access`, options of the source."""

    @functools.wraps(command)
    def given(*args: Any, tls: bool, **options: Any) -> Any:
        access_options = {option: options.pop(option) for _, option, _ in ACCESS}
        access = {
            option: text if option == "user" else os.path.abspath(text)
            for option, text in access_options.items()
            if text
        }
        return command(*args, access=access | ({"tls": "true"} if tls else {}), **options)

    for name, option, text in reversed(ACCESS):
        given = click.option(f"--{name}", option, default="", help=text)(given)
    return click.option("--tls", is_flag=True, help="Use TLS: --server names tls_ports.")(given)


def reason(text: str) -> str:
    """Return the line of a Spark error that says what is wrong. Our own exceptions are last in a Python traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        kind, colon, message = line.partition(": ")
        known = (
            kind.rpartition(".")[2] if kind.startswith("staniel.pipeline.") else kind if kind == "ValueError" else ""
        )
        if known and colon:
            return message
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):  # py4j's; Java's error follows
        return lines[1].removeprefix(":").strip()
    return lines[0] if lines else "Spark failed without a word"


def print_note(text: str) -> None:
    click.echo(text, err=True)


def show_progress(kind: str) -> Callable[[dict[str, Any]], None]:
    """Return a function that prints a line for each batch, overwritten on a terminal."""
    end = "\r" if sys.stderr.isatty() else "\n"

    def say(progress: dict[str, Any]) -> None:
        text = f"batch {progress['batch']}: {progress['rows']:,} {kind}, {progress['rate']:,}/s"
        click.echo(f"{text:<60}{end}", err=True, nl=False)

    return say


def source_options(queues: tuple[str, ...], form: str, on_corrupt: str) -> dict[str, str]:
    from staniel.pipeline.sources.options import as_option

    options = {"format": form, "onCorrupt": on_corrupt}
    return options | ({"queues": as_option(queues)} if queues else {})


@pipeline.command(epilog="staniel pipeline archive /var/lib/staniel /srv/archive --queue jobs")
@of_spools
@click.argument("out")
@QUEUES
@FORMAT
@ON_CORRUPT
@click.option("--batch", default="", help="Journal bytes a batch, like 256m. [default: 128m for each core]")
@click.option("--hold", default="", metavar="NAME", help="Read with this retention hold, and move it.")
@on_spark
def archive(
    spool: str,
    out: str,
    several: dict[str, str],
    queues: tuple[str, ...],
    form: str,
    on_corrupt: str,
    batch: str,
    hold: str,
    **spark_options: Any,
) -> None:
    """Add new journal records of SPOOL to the Parquet tables in OUT, by queue and day.

    Run it again to continue where it stopped, also after a kill. SPOOL may be a pattern like '/data/*/spool': then each
    spool has a folder host=NAME in OUT. With --hold (see staniel hold create) a running server keeps every file until
    it is archived; without, what goes between two runs is counted as lost, by queue.
    """
    with spark_on(**spark_options) as spark:
        from staniel.pipeline.lake.stores import settings_of
        from staniel.pipeline.tasks.archive import archive_each as job

        options = source_options(queues, form, on_corrupt) | several | ({"maxBytesPerTrigger": batch} if batch else {})
        options |= {"hold": hold} if hold else {}
        rows = job(spark, spool, out, options, show_progress("records"), print_note, settings_of(spark))
    print_note(f"{rows:,} records added to {out}")


@pipeline.command(epilog="staniel pipeline report /var/lib/staniel /srv/report")
@of_spools
@click.argument("out", default="report", type=click.Path(file_okay=False))
@click.option("--tables", type=click.Path(file_okay=False), help="Also write the tables as Parquet to this folder.")
@QUEUES
@FORMAT
@ON_CORRUPT
@on_spark
def report(
    spool: str,
    out: str,
    tables: str | None,
    several: dict[str, str],
    queues: tuple[str, ...],
    form: str,
    on_corrupt: str,
    **spark_options: Any,
) -> None:
    """Write OUT/report.html: arrivals, depth, ages, waiting, retries, dead letters and sizes, by queue and host.

    It is one file that needs no network, with pictures to zoom into, a search and a choice of queues. It names the
    figures that a format's records do not have. SPOOL may be a pattern like '/data/*/spool': then the queues are named
    HOST/QUEUE.
    """
    from pathlib import Path

    from staniel.pipeline.report.figures import gather
    from staniel.pipeline.report.page import HEADS, cells, write, write_tables

    with spark_on(**spark_options) as spark:
        figures = gather(spark, spool, source_options(queues, form, on_corrupt) | several)
    for row in figures.rows:
        click.echo(", ".join(f"{head} {cell}" for head, cell in zip(HEADS, cells(row), strict=True)))
    paths = [write(figures, Path(out)), *(write_tables(figures, Path(tables)) if tables else [])]
    for path in paths:
        print_note(str(path))


@pipeline.command(epilog="staniel pipeline replay /srv/archive --server 127.0.0.1:22133 --queue jobs --to again")
@click.argument("source", callback=existing)
@SERVERS
@QUEUES
@FORMAT
@click.option("--to", help="Put everything into this queue.")
@click.option("--rate", default=0, help="Items a second; 0: as fast as the servers take them.")
@click.option(
    "--since", default="", help="Only items added from this time on: ISO, UTC if it names no zone; or epoch ms."
)
@click.option("--until", default="", help="Only items added before this time, in the form of --since.")
@click.option(
    "--parquet/--spool", default=True, show_default=True, help="SOURCE is an archive, or a spool of journals."
)
@click.option(
    "--everything/--queued",
    default=None,
    help="Every item ever added, or only those still queued. [default: everything of an archive, queued of journals]",
)
@click.option(
    "--notes",
    default="",
    help="A folder for the progress: the same command goes on where this one was killed, and puts each item once.",
)
@click.option(
    "--at", default="", help="Items queued before the first one added after this time, in the form of --since."
)
@of_servers
@on_spark
def replay(
    source: str,
    servers: tuple[str, ...],
    queues: tuple[str, ...],
    form: str,
    to: str | None,
    rate: int,
    since: str,
    until: str,
    parquet: bool,
    everything: bool | None,
    notes: str,
    at: str,
    access: dict[str, str],
    **spark_options: Any,
) -> None:
    """Put the items of an archive or of journals into live queues again, oldest first.

    With --at, replay the queues as they were at a time.
    """
    from staniel.pipeline.sources.journal_options import moment_ms
    from staniel.pipeline.sources.live_options import SinkOptions
    from staniel.pipeline.tasks.refill import items_of, refill

    options = {"servers": ",".join(servers or ("127.0.0.1:22133",))} | ({"queue": to} if to else {}) | access
    limits = ""
    with one_line():
        if at and everything:
            raise UsageError("--at is for what was queued then: leave --everything out")
        for text, what, when in (
            (at, "at", "queued at"),
            (since, "since", "added from"),
            (until, "until", "added before"),
        ):
            if text:
                moment = datetime.fromtimestamp(moment_ms(text, what, UTC) / 1000, UTC)
                limits += f", {when} {moment:%Y-%m-%d %H:%M:%S} UTC"
        SinkOptions(options).reach()
    everything = (parquet and not at) if everything is None else everything
    files = parquet and everything  # read directly: the records of an archive need no view
    with spark_on(**spark_options) as spark:
        reading = source_options(() if files else queues, form, "fail") | {"view": "ops" if everything else "state"}
        reading |= {"endingTimestamp": str(moment_ms(at, "at", UTC))} if at else {}
        rows = items_of(spark, source, files, reading)
        chosen = list(queues) if files else []
        count = refill(rows, since, until, chosen, options, rate, absolute(notes) if notes else "")
    print_note(f"{count:,} items put{limits}")


@pipeline.command(epilog="staniel pipeline drain /srv/drained --server 127.0.0.1:22133 --queue jobs")
@click.argument("out")
@SERVERS
@click.option("--queue", "-q", "queues", multiple=True, required=True, help="A queue to drain.")
@click.option("--follow/--once", default=False, show_default=True, help="Run for ever, or end after the present items.")
@click.option("--batch", default=50_000, show_default=True, help="Items a batch.")
@click.option(
    "--protocol",
    default="memcache",
    type=click.Choice(["memcache", "workq"]),
    show_default=True,
    help="Drain items, or with workq jobs, at the servers' ports of [workq].",
)
@of_servers
@on_spark
def drain(
    out: str,
    servers: tuple[str, ...],
    queues: tuple[str, ...],
    follow: bool,
    batch: int,
    protocol: str,
    access: dict[str, str],
    **spark_options: Any,
) -> None:
    """Move the items or jobs of live queues into Parquet tables in OUT. None is lost; at most one batch comes twice,
    with the same ids.
    """
    from staniel.pipeline.sources.live_options import LiveOptions
    from staniel.pipeline.sources.options import as_option
    from staniel.pipeline.tasks.drain_to_lake import drain as job

    options = {"queues": as_option(queues), "maxItemsPerTrigger": str(batch), "protocol": protocol} | access
    options |= {"servers": ",".join(servers)} if servers else {}
    with one_line():
        LiveOptions(options).reach()
    with spark_on(**spark_options) as spark:
        rows = job(spark, out, options, not follow, show_progress("items" if protocol == "memcache" else "jobs"))
    print_note(f"{rows:,} {'items' if protocol == 'memcache' else 'jobs'} drained to {out}")


@pipeline.command(epilog="staniel pipeline verify /var/lib/staniel")
@SPOOL
@QUEUES
@FORMAT
@on_spark
def verify(spool: str, queues: tuple[str, ...], form: str, **spark_options: Any) -> None:
    """Read every record of SPOOL, and every block that a server has left a checksum of, and list what is wrong.

    Exit code 1 if anything is wrong. `staniel journal verify` does the same on one machine, without Spark.
    """
    from staniel.pipeline.tasks.verify import verify as job

    with spark_on(**spark_options) as spark:
        findings = job(spark, spool, source_options(queues, form, "permissive"))
    for finding in findings:
        for line in finding.lines():
            click.echo(line)
    checked = sum(finding.flaws is not None for finding in findings)
    bad = sum(finding.bad for finding in findings)
    print_note(f"{len(findings)} files, {bad} damaged; {checked} have checksums")
    sys.exit(1 if bad else 0)


@pipeline.command(epilog="staniel pipeline pack /var/lib/staniel --queue jobs")
@SPOOL
@QUEUES
@click.option(
    "--dialect",
    default="documents",
    type=click.Choice(["documents", "kestrel-2.4"]),
    show_default=True,
    help="How open reads are written, as by the setting journal_dialect.",
)
@on_spark
def pack(spool: str, queues: tuple[str, ...], dialect: str, **spark_options: Any) -> None:
    """Replace the sealed files of each queue in SPOOL by one with the remaining items. No server may have the
    spool open.
    """
    from staniel.pipeline.tasks.pack import SpoolInUse
    from staniel.pipeline.tasks.pack import pack as job
    from staniel.queues.config import JournalDialect

    with spark_on(**spark_options) as spark:
        try:
            packed = job(spark, spool, source_options(queues, "kestrel", "fail"), JournalDialect(dialect))
        except SpoolInUse as busy:
            raise click.ClickException(str(busy)) from None
    for pack in packed:
        sizes = f"{pack.before_bytes:,} to {pack.after_bytes:,} bytes"
        click.echo(f"{pack.queue}: {pack.files} files, {sizes}, {pack.items:,} items")
    print_note(f"{len(packed)} queues packed")


@pipeline.command(epilog="staniel pipeline convert /var/lib/staniel --to libkestrel")
@click.argument("spools", nargs=-1, required=True, callback=existing)
@QUEUES
@click.option("--to", "wanted", required=True, type=click.Choice(["kestrel", "libkestrel"]), help="The new format.")
@on_spark
def convert(spools: tuple[str, ...], queues: tuple[str, ...], wanted: str, **spark_options: Any) -> None:
    """Move the queues of SPOOLS to another journal format, one spool a task. The old files stay beside them."""
    from staniel.pipeline.tasks.convert import convert as job
    from staniel.queues.config import Format

    with spark_on(**spark_options) as spark:
        done = job(spark, list(spools), list(queues), Format(wanted))
    for conversion in done:
        moved = "was in that format already" if conversion.items < 0 else f"{conversion.items:,} items moved"
        click.echo(f"{conversion.spool}: {conversion.queue or 'nothing done'}: {conversion.refusal or moved}")
        for line in conversion.left:
            click.echo(f"{conversion.spool}: {conversion.queue}: {line}")
    sys.exit(1 if any(conversion.refusal or not conversion.is_whole for conversion in done) else 0)
