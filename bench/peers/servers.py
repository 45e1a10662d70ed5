"""The compared servers: their programs, protocols, and command lines for each promise.

Each peer is set up to do as little as its promise allows: no snapshots, no rewriting of its log. That favours the
peers, and makes a short run measure the same as a long one: redis would otherwise begin to rewrite at 64 MB.
bench/README.md says what each acknowledgement means.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from msgspec import structs

from staniel.bench.harness.contestant import ROOT, Contestant, Launch, Sync, first_line
from staniel.bench.peers import generator
from staniel.bench.peers.generator import CannotBuild

LIMIT_SOURCE = generator.SOURCE.with_name("limit.c")
OURS = "ours"
LIMIT = "limit"
DEFAULT_SERVER = (
    f"{shlex.quote(sys.executable)} -m staniel.server serve --port {{port}} --spool {{dir}} --sync {{sync}}"
)


def ours(template: str) -> Contestant:
    """Return our server, from a command line in which {port}, {dir} and {sync} are filled in. Raises ValueError
    if empty.
    """
    words = shlex.split(template)
    if not words:
        raise ValueError("an empty command")

    def command(launch: Launch) -> list[str]:
        values = {"{port}": str(launch.port), "{dir}": str(launch.folder), "{sync}": launch.sync.value}
        return [_filled(word, values) for word in words]

    described = f"checkout {_commit()}" if template == DEFAULT_SERVER else template
    return Contestant(name=OURS, proto="memcache", program=words[0], command=command, described=described)


def with_jobs(contestant: Contestant) -> Contestant:
    """Return our server with workq's protocol, with its command log under the same promise."""
    plain = contestant.command

    def command(launch: Launch) -> list[str]:
        sync = "always" if launch.sync is Sync.DURABLE else "interval"
        return [*plain(structs.replace(launch, port=0)), "--workq-port", str(launch.port), "--cmdlog-sync", sync]

    return structs.replace(contestant, proto="workq", command=command)


def _commit() -> str:
    return first_line(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]) or "without a known commit"


def _filled(word: str, values: dict[str, str]) -> str:
    for mark, value in values.items():
        word = word.replace(mark, value)
    return word


def _redis(launch: Launch) -> list[str]:
    fsync = "always" if launch.sync is Sync.DURABLE else "everysec"
    command = (
        f"redis-server --bind 127.0.0.1 --port {launch.port} --daemonize no --appendonly yes --appendfsync {fsync}"
    )
    return [*command.split(), "--auto-aof-rewrite-percentage", "0", "--save", "", "--dir", str(launch.folder)]


def _beanstalkd(launch: Launch) -> list[str]:
    fsync = ["-f", "0"] if launch.sync is Sync.DURABLE else ["-F"]
    return ["beanstalkd", "-l", "127.0.0.1", "-p", str(launch.port), "-b", str(launch.folder), *fsync]


def _memcached(launch: Launch) -> list[str]:
    user = ["-u", "root"] if os.geteuid() == 0 else []
    return ["memcached", "-l", "127.0.0.1", "-p", str(launch.port), "-U", "0", "-m", "1024", "-t", "1", *user]


def _nats(launch: Launch) -> list[str]:
    """Return the command line. `sync_interval` is 2 minutes by default; `always` syncs before each acknowledgement."""
    sync = "    sync_interval: always\n" if launch.sync is Sync.DURABLE else ""
    settings = launch.folder / "nats.conf"
    settings.write_text(
        f'listen: "127.0.0.1:{launch.port}"\njetstream {{\n    store_dir: "{launch.folder}"\n{sync}}}\n'
    )
    return ["nats-server", "-c", str(settings)]


@cache
def _nats_promises() -> tuple[Sync, ...]:
    """Return the possible promises. Before 2.10 there is no `sync_interval`, and so no sync before a reply."""
    with tempfile.TemporaryDirectory() as folder:
        command = _nats(Launch(4222, Path(folder), Sync.DURABLE))
        known = subprocess.run([*command, "-t"], capture_output=True, check=False).returncode == 0
    return tuple(Sync) if known else (Sync.JOURNALED,)


# Debian's rabbitmq-server on the PATH changes to a user of its own, which cannot write to the run's folder.
_RABBITMQ = next(
    (path for path in ("/usr/lib/rabbitmq/bin/rabbitmq-server",) if os.access(path, os.X_OK)), "rabbitmq-server"
)
_RABBITMQ_START = 'epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0"'


def _rabbitmq(launch: Launch) -> list[str]:
    """Return the command line of a node with a port mapper of its own, both in the process group that is killed at the
    end. All its files are in the folder. It uses quorum queues: in the journaled rows their log acknowledges before it
    syncs.
    """
    folder, port = launch.folder, launch.port
    strategy = "default" if launch.sync is Sync.DURABLE else "sync_after_notify"
    (folder / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.console = true\nlog.console.level = error\nlog.file = false\n"
    )
    (folder / "advanced.config").write_text(f"[{{ra, [{{wal_write_strategy, {strategy}}}]}}].\n")
    settings = {
        "HOME": folder,
        "ERL_EPMD_PORT": port + 1,
        "RABBITMQ_DIST_PORT": port + 2,
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_MNESIA_BASE": folder / "mnesia",
        "RABBITMQ_LOG_BASE": folder / "log",
        "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
        "RABBITMQ_ADVANCED_CONFIG_FILE": folder / "advanced.config",
        "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "no-plugins",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server instead of waiting for it
    }
    return ["env", *(f"{name}={value}" for name, value in settings.items()), "sh", "-c", _RABBITMQ_START, _RABBITMQ]


def limit_program() -> Path:
    """Return the program of limit.c, which is compiled if need be. Raises CannotBuild."""
    return generator.built((LIMIT_SOURCE,), generator.BUILD / LIMIT)


def _limit(launch: Launch) -> list[str]:
    sync = "always" if launch.sync is Sync.DURABLE else "os"
    return [str(limit_program()), str(launch.port), str(launch.folder / "journal"), sync]


PEERS = (
    Contestant("redis", "redis", "redis-server", _redis, version_args=("--version",)),
    Contestant("beanstalkd", "beanstalk", "beanstalkd", _beanstalkd, version_args=("-v",)),
    Contestant("memcached", "memcache", "memcached", _memcached, kv=True, version_args=("-V",)),
    Contestant("nats", "nats", "nats-server", _nats, version_args=("--version",), promises=_nats_promises),
    Contestant(
        "rabbitmq",
        "amqp",
        _RABBITMQ,
        _rabbitmq,
        version_args=("version",),
        version_program="rabbitmqctl",
        start_seconds_max=60.0,
    ),
    Contestant(LIMIT, "memcache", generator.COMPILER, _limit, described=LIMIT_SOURCE.name),
)


def present(contestant: Contestant) -> bool:
    return shutil.which(contestant.program) is not None


def why_absent(contestant: Contestant) -> str:
    """Return why a peer cannot take part here; empty if it can. The limit is compiled now if need be."""
    if contestant.name != LIMIT:
        return "" if present(contestant) else f"{contestant.program} is not on the PATH"
    try:
        limit_program()
    except CannotBuild as error:
        return str(error)
    return ""
