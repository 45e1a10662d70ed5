"""Checks before a start opens a spool, standing alone or as a member of a cluster."""

from __future__ import annotations

from staniel.broker.config.addresses import format_address
from staniel.broker.config.load import Config, ConfigError
from staniel.broker.events import EventSink, Level
from staniel.broker.users import is_unguarded, network_refusal, open_addresses
from staniel.journal.disk.ballast import BALLAST_BYTES_MAX
from staniel.journal.disk.file_system import FileSystemFlaw
from staniel.journal.workq.files import SEGMENT_BYTES
from staniel.server.file_systems import check_reload
from staniel.server.machine import file_bytes_max, raise_file_limit
from staniel.server.sockets import StartError

CLIENTS_MIN = 16  # a limit of 64 open files leaves this many for clients


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
