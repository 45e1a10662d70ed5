"""The servers that are compared: which program, which protocol, which command line for which promise.

Each peer is set up to do as little as its promise allows: no snapshots, no rewriting of its log. That favours the
peers, and makes a short run measure the same thing as a long one: redis would otherwise begin to rewrite at 64 MB.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys

from msgspec import structs

from staniel.bench.harness.contestant import ROOT, Contestant, Launch, Sync, first_line

OURS = "ours"
DEFAULT_SERVER = (
    f"{shlex.quote(sys.executable)} -m staniel.server serve --port {{port}} --spool {{dir}} --sync {{sync}}"
)


def ours(template: str) -> Contestant:
    """Our server, from a command line in which {port}, {dir} and {sync} are filled in.  Raises ValueError if empty."""
    words = shlex.split(template)
    if not words:
        raise ValueError("an empty command")

    def command(launch: Launch) -> list[str]:
        values = {"{port}": str(launch.port), "{dir}": str(launch.folder), "{sync}": launch.sync.value}
        return [_filled(word, values) for word in words]

    described = f"checkout {_commit()}" if template == DEFAULT_SERVER else template
    return Contestant(name=OURS, proto="memcache", program=words[0], command=command, described=described)


def with_jobs(contestant: Contestant) -> Contestant:
    """Our server, asked in workq's protocol, with its command log under the same promise."""
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


PEERS = (
    Contestant("redis", "redis", "redis-server", _redis, version_args=("--version",)),
    Contestant("beanstalkd", "beanstalk", "beanstalkd", _beanstalkd, version_args=("-v",)),
    Contestant("memcached", "memcache", "memcached", _memcached, kv=True, version_args=("-V",)),
)


def present(contestant: Contestant) -> bool:
    return shutil.which(contestant.program) is not None
