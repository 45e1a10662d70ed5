"""Steps of a start that a server takes standing alone and as a member of a cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from staniel.broker.broker import Broker
from staniel.broker.config.addresses import format_address
from staniel.broker.config.load import Config, ConfigError
from staniel.broker.events import EventSink, Level
from staniel.broker.recovery import RecoveryProgress, RecoverySummary
from staniel.broker.users import Logins, is_unguarded, network_refusal, open_addresses
from staniel.journal.disk.ballast import BALLAST_BYTES_MAX
from staniel.journal.disk.file_system import FileSystemFlaw
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.spool import LOCK
from staniel.journal.workq.files import SEGMENT_BYTES
from staniel.server.clock import steady_ms
from staniel.server.file_systems import check_file_systems, check_reload, flaws
from staniel.server.log import ServerLog
from staniel.server.machine import file_bytes_max, raise_file_limit
from staniel.server.process import ProcessReader
from staniel.server.progress import Display
from staniel.server.reopening import ReopenWait
from staniel.server.sockets import BoundSockets, StartError
from staniel.server.spool_socket import allowed_clients
from staniel.server.start_notice import StartFs, StartNotice
from staniel.server.supervisor import Supervisor
from staniel.server.sync_thread import close_apart

CLIENTS_MIN = 16  # a limit of 64 open files leaves this many for clients


class Start(Struct, frozen=True):
    """The parts of a start that has made its checks. `journals` and `clients`: how many files of each may be open."""

    config: Config
    load: Callable[[], Config]
    report: EventSink
    flaws: dict[str, FileSystemFlaw]
    supervisor: Supervisor
    notice: StartNotice
    fs: OsFs
    journals: int
    clients: int
    is_file_size_limited: bool

    def make_broker(self, fs: Fs) -> Broker:
        """Make the broker on `fs`, which takes the spool. Raises SpoolError, AlreadyLocked, JournalFailure."""
        broker = Broker(self.config, fs, self.report, self.load, Logins(os.urandom(32), allowed_clients()))
        broker.spool.is_file_size_limited = self.is_file_size_limited
        broker.group.open_files.allow(self.journals)
        broker.group.open_files.wait = ReopenWait(self.report, time.sleep)
        broker.health.disk.file_systems = self.flaws
        broker.process = ProcessReader()
        broker.check_reload = partial(check_again, self.flaws)
        return broker

    def recover(self, broker: Broker, now_ms: int) -> RecoverySummary:
        """Recover the spool, and show how far that is. Raises SpoolError, JournalFailure, OSError."""
        display = Display(broker.report, steady_ms, sys.stderr)

        def show(progress: RecoveryProgress) -> None:
            display(progress)
            self.notice(progress)

        return broker.recover(now_ms, show)

    def open_for_spool(self, bound: BoundSockets, own: str) -> None:
        """Bind the socket of the spool whose own folder is `own`, if the settings want one. A refusal is reported."""
        if self.config.admin.socket and (error := bound.open_for_spool(own)) is not None:
            hint = "staniel's commands cannot reach this server over the spool; use [admin] listen"
            self.report(Level.WARNING, "admin.no_socket", why=error.strerror, hint=hint)


def prepare(
    config: Config, load: Callable[[], Config], log: ServerLog, make_fs: Callable[..., OsFs] = StartFs
) -> Start:
    """Open the log, and make the checks. `make_fs` makes the disk as StartFs does. Raises StartError."""
    log.open(config.server.log_level, config.server.log_format)
    journals, clients = allow_files()
    is_limited = check_file_size(config)
    check_network(config, log.report)
    fs_flaws = flaws(config, OsFs(), os.environ)
    check_file_systems(config, fs_flaws)
    supervisor = Supervisor(os.environ, os.getpid())
    notice = StartNotice(steady_ms, lambda text: supervisor.notify(f"STATUS={text}"))
    fs = make_fs(close_apart, notice, f"/{OWN_FOLDER}/{LOCK}")
    return Start(config, load, log.report, fs_flaws, supervisor, notice, fs, journals, clients, is_limited)


def allow_files() -> tuple[int, int]:
    """Raise the limit of open files. Return how many journals and how many clients may have one. Raises StartError."""
    journals, clients = raise_file_limit()
    if clients < CLIENTS_MIN:
        raise StartError(f"only {4 * clients} files may be open, at least {4 * CLIENTS_MIN} are needed (ulimit -n)")
    return journals, clients


def check_file_size(config: Config) -> bool:
    """Check that files may grow as large as a journal, or a segment of the command log, does before it is rotated.
    Returns whether there is a limit. Raises StartError.
    """
    most = file_bytes_max()
    sizes = [max(queue.max_memory_bytes, queue.default_journal_bytes) for queue in config.resolved.values()]
    if config.all_addresses("workq"):
        sizes.append(config.workq.cmdlog_seg_bytes or SEGMENT_BYTES)
    needed = max(sizes) + BALLAST_BYTES_MAX
    if 0 <= most < needed:
        why = f"a file may have at most {most} bytes, and journals need {needed} before they are rotated"
        settings = "max_memory_size, default_journal_size and cmdlog_seg_size"
        raise StartError(f"{why}; raise ulimit -f (LimitFSIZE=), or lower {settings}")
    return most >= 0


def check_network(config: Config, report: EventSink) -> None:
    """Check that a server open to other machines authenticates its clients, unless the settings allow it without.
    Raises StartError.
    """
    if not is_unguarded(config):
        return
    if why := network_refusal(config):
        raise StartError(why)
    where = ", ".join(format_address(address) for address in open_addresses(config))
    hint = "give [users] or [tls] client_certificates; see docs/security.md"
    report(Level.WARNING, "network.open", address=where, hint=hint)


def check_again(known_flaws: dict[str, FileSystemFlaw], config: Config) -> None:
    """Refuse a reload of settings with which a server would not start. Raises ConfigError."""
    check_reload(known_flaws, config)
    if why := network_refusal(config):
        raise ConfigError("", why)
