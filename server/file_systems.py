"""The known flaws of the file systems of a server's folders, checked at the start, and before a reload promises
more.
"""

from __future__ import annotations

from collections.abc import Mapping

from staniel.broker.config.load import Config, ConfigError
from staniel.broker.events import EventSink, Level
from staniel.journal.disk.file_system import FileSystemFlaw, flaw_of
from staniel.journal.disk.os_fs import OsFs
from staniel.queues.config import SYNC_OS
from staniel.server.sockets import StartError

INSIST = "accept the risk with [server] trust_file_system = true or --trust-file-system"


def flaws(config: Config, fs: OsFs, environment: Mapping[str, str]) -> dict[str, FileSystemFlaw]:
    """Return the flaws by folder, of the spool and of a command log outside it; none if the system does not tell."""
    folders = {config.server.spool: "spool"}
    if config.all_addresses("workq") and config.workq.cmdlog_path:
        folders.setdefault(config.workq.cmdlog_path, "command log")
    if "eatmydata" in environment.get("LD_PRELOAD", ""):
        why = FileSystemFlaw(True, "libeatmydata is loaded (LD_PRELOAD), which makes syncs do nothing")
        return {f"the {kind} {folder}": why for folder, kind in folders.items()}
    by_folder = {}
    for folder, kind in folders.items():
        mount = fs.mount_of(folder)
        if mount is not None and (flaw := flaw_of(mount)) is not None:
            by_folder[f"the {kind} {folder}"] = flaw
    return by_folder


def promises_syncs(config: Config) -> bool:
    """Return True if any queue, or the jobs, must survive a power cut, except for the last moments."""
    if config.all_addresses("workq") and config.workq.cmdlog_sync != "os":
        return True
    return any(queue.keep_journal and queue.sync_ms != SYNC_OS for queue in config.resolved.values())


def why_not(config: Config, known_flaws: dict[str, FileSystemFlaw]) -> str:
    """Return why the promises of `config` cannot be kept; empty if no flaw is known, or the settings accept it."""
    if config.server.trust_file_system or not promises_syncs(config):
        return ""
    wrong = [
        f"{folder} cannot keep the durability that sync_journal promises: {flaw.text}"
        for folder, flaw in known_flaws.items()
        if flaw.breaks
    ]
    return f"{wrong[0]}; give a folder on a local disk, or {INSIST}" if wrong else ""


def check_file_systems(config: Config, known_flaws: dict[str, FileSystemFlaw]) -> None:
    """Check the file systems at a start. Raises StartError."""
    if why := why_not(config, known_flaws):
        raise StartError(why)


def check_reload(known_flaws: dict[str, FileSystemFlaw], config: Config) -> None:
    """Check the file systems at a reload. Raises ConfigError."""
    if why := why_not(config, known_flaws):
        raise ConfigError("sync_journal", why)


def report_flaws(known_flaws: dict[str, FileSystemFlaw], report: EventSink) -> None:
    for folder, flaw in known_flaws.items():
        hint = "a power cut may lose acknowledged changes" if flaw.breaks else "see docs/durability.md"
        report(Level.WARNING, "spool.file_system", folder=folder, why=flaw.text, hint=hint)
