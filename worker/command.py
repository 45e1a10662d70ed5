"""The command `staniel work`."""

from __future__ import annotations

import contextlib
import os
import ssl
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click

from staniel.client.servers import Address
from staniel.worker.events import Hooks, Log
from staniel.worker.periodic import Schedule, parse
from staniel.worker.settings import Mode, Order, Server, Settings
from staniel.worker.target import find
from staniel.worker.worker import Worker

MODES = [mode.value for mode in Mode]
MB = 1 << 20


@click.command(
    "work",
    epilog="staniel work tasks:send --queue mail -c 8\nstaniel work tasks:send -q urgent -q mail --mode processes",
)
@click.argument("target", metavar="PACKAGE.MODULE:FUNCTION")
@click.option(
    "--queue",
    "-q",
    "queues",
    required=True,
    multiple=True,
    metavar="NAME",
    help="Queue to take items from. May be repeated.",
)
@click.option(
    "--order",
    type=click.Choice([order.value for order in Order]),
    default="turns",
    show_default=True,
    help="Which of several queues a read begins with: each in turn, or always the first that has an item.",
)
@click.option("--concurrency", "-c", default=8, show_default=True, help="Items to work on at a time.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="threads",
    show_default=True,
    help="Where the function runs. A function that is `async def` runs on an event loop, with the extra `aio`.",
)
@click.option("--name", default="", metavar="NAME", help="Name in the log, metrics, dead letters.  [default: HOST:PID]")
@click.option("--attempts", default=5, show_default=True, help="Calls before an item is a dead letter.")
@click.option(
    "--backoff", default=1.0, show_default=True, metavar="S", help="First pause of a failed item; it doubles."
)
@click.option("--backoff-max", default=300.0, show_default=True, metavar="S", help="Longest pause of a failed item.")
@click.option("--limit", default=0.0, metavar="S", help="Time limit of one call.  [default: none]")
@click.option("--rate", default=0.0, metavar="N", help="Calls a second, at most.  [default: no limit]")
@click.option("--dead-letters", default="", metavar="NAME", help="Queue of dead letters.  [default: QUEUE-dead]")
@click.option("--prefetch", default=32, show_default=True, help="Items of a quick function taken at a time, at most.")
@click.option("--grace", default=30.0, show_default=True, metavar="S", help="Time for functions to end at a stop.")
@click.option("--memory-max", default=0, metavar="MB", help="Memory of each process, in --mode processes.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the server.")
@click.option("--port", "-p", default=22133, show_default=True, type=click.IntRange(1, 65535), help="Memcache port.")
@click.option(
    "--member", "members", multiple=True, metavar="HOST:PORT", help="Another member of its cluster. May be repeated."
)
@click.option("--tls", is_flag=True, help="Use TLS.")
@click.option("--ca", default="", metavar="FILE", help="Authorities to trust under TLS.  [default: the system's]")
@click.option("--certificate", default="", metavar="FILE", help="The worker's certificate, in PEM.")
@click.option("--key", default="", metavar="FILE", help="The key, if it is in another file.")
@click.option("--user", default="", metavar="NAME", help="User of the server.")
@click.option("--secret-file", default="", metavar="FILE", help="File with the user's password or token.")
@click.option("--hooks", default="", metavar="MODULE:OBJECT", help="Hooks to call: a subclass of staniel.worker.Hooks.")
@click.option(
    "--periodic",
    multiple=True,
    metavar="NAME=CRON",
    help="Put NAME on the first queue at these times, once over all workers; needs the extra `cron`. May be repeated.",
)
@click.option("--time-zone", default="UTC", show_default=True, metavar="ZONE", help="Zone of --periodic.")
@click.option(
    "--jobs-port",
    "jobs_ports",
    multiple=True,
    default=[9922],
    show_default=True,
    type=click.IntRange(1, 65535),
    help="Workq port, for --periodic. In a cluster that of all members, or repeated: one for each, --port's first.",
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve /metrics on this port of 127.0.0.1.")
@click.option(
    "--log-format",
    type=click.Choice(["logfmt", "json"]),
    default="logfmt",
    show_default=True,
    help="Form of the log on standard error.",
)
def work(**said: Any) -> None:
    """Call a function with each item of a queue, or of several.

    An item is confirmed when the function returns. If it raises, the item is tried again after a pause, and after
    --attempts calls it is put on its queue of dead letters, with the traceback. SIGTERM or Ctrl-C stops taking items
    and waits for functions to end, for --grace at most; a second one stops at once. Unfinished items are returned.

    Exit code 0: stopped, all functions have ended. 1: functions were cut off and do not end. 2: wrong options.
    """
    try:
        settings = Settings(
            queue=tuple(said["queues"]), order=Order(said["order"]), name=said["name"],
            concurrency=said["concurrency"], mode=Mode(said["mode"]),
            attempts=said["attempts"], backoff_s=said["backoff"], backoff_max_s=said["backoff_max"],
            limit_s=said["limit"], rate_per_s=said["rate"], dead_letters=said["dead_letters"],
            prefetch=said["prefetch"], grace_s=said["grace"], memory_max_bytes=said["memory_max"] * MB,
        )  # fmt: skip
        hooks = _hooks(said["hooks"])
        log = Log(settings.name or f"{os.uname().nodename}:{os.getpid()}", as_json=said["log_format"] == "json")
        schedule = Schedule(parse(said["periodic"], said["time_zone"]), tuple(said["jobs_ports"]))
        worker = Worker(said["target"], settings, _server(said), hooks=hooks, log=log, schedule=schedule)
    except (ValueError, ImportError) as error:
        raise click.UsageError(str(error)) from error
    with _metrics(worker, said["metrics_port"]):
        ending = worker.run(signals=True)
    if ending.unfinished:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # threads that functions do not leave would keep the process


def _server(said: dict[str, Any]) -> Server:
    """Return the server that the options name. Raises UsageError for a file that cannot be used."""
    tls, secret = None, ""
    try:
        if said["tls"] or said["ca"] or said["certificate"]:
            tls = ssl.create_default_context(cafile=said["ca"] or None)
            if said["certificate"]:
                tls.load_cert_chain(said["certificate"], said["key"] or None)
        if said["secret_file"]:
            secret = Path(said["secret_file"]).read_text("utf-8").partition("\n")[0]
    except OSError as error:
        raise click.UsageError(f"a file of the connection cannot be used: {error}") from error
    members = tuple(_address(member) for member in said["members"])
    return Server(said["host"], said["port"], tls, said["user"], secret, members=members)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65_536):
        raise click.UsageError(f"a member is named as HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _hooks(name: str) -> Hooks:
    if not name:
        return Hooks()
    found: Any = find(name)
    hooks = found() if isinstance(found, type) else found
    if not isinstance(hooks, Hooks):
        raise ValueError(f"{name} is no staniel.worker.Hooks")
    return hooks


@contextlib.contextmanager
def _metrics(worker: Worker, port: int | None) -> Iterator[None]:
    """Serve the metrics for the length of the block, if a port is given."""
    if port is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = worker.metrics().encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write nothing."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise click.UsageError(f"port {port} of 127.0.0.1 cannot be used for metrics: {error}") from error
    worker.teller.log("info", "metrics.served", address=f"127.0.0.1:{server.server_address[1]}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
