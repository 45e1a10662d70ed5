"""What the file systems of a server's folders are known to do to its promises: looked at when it starts, and before a
reload asks more of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from staniel.broker.config.load import Config, ConfigError
from staniel.broker.events import EventSink, Level
from staniel.journal.disk.file_system import FileSystemFlaw, flaw_of
from staniel.journal.disk.os_fs import OsFs
from staniel.queues.config import SYNC_OS
from staniel.server.sockets import StartError

INSIST = "say that it is meant with [server] trust_file_system = true or --trust-file-system"


def flaws(config: Config, fs: OsFs, environment: Mapping[str, str]) -> dict[str, FileSystemFlaw]:
    """By folder, of the spool and of a command log outside it. Nothing where the system does not tell."""
    folders = {config.server.spool: "spool"}
    if config.all_addresses("workq") and config.workq.cmdlog_path:
        folders.setdefault(config.workq.cmdlog_path, "command log")
    if "eatmydata" in environment.get("LD_PRELOAD", ""):
        why = FileSystemFlaw(True, "libeatmydata is loaded (LD_PRELOAD), which makes syncs do nothing")
        return {f"the {kind} {folder}": why for folder, kind in folders.items()}
    found = {}
    for folder, kind in folders.items():
        mount = fs.mount_of(folder)
        if mount is not None and (flaw := flaw_of(mount)) is not None:
            found[f"the {kind} {folder}"] = flaw
    return found


def promises_syncs(config: Config) -> bool:
    """Whether any queue, or the jobs, are to survive a power cut, but for the last moments."""
    if config.all_addresses("workq") and config.workq.cmdlog_sync != "os":
        return True
    return any(queue.keep_journal and queue.sync_ms != SYNC_OS for queue in config.resolved.values())


def why_not(config: Config, found: dict[str, FileSystemFlaw]) -> str:
    """Why what `config` promises cannot be kept; empty if nothing is known against it, or it is meant."""
    if config.server.trust_file_system or not promises_syncs(config):
        return ""
    wrong = [f"{folder} cannot keep what is promised: {flaw.text}" for folder, flaw in found.items() if flaw.breaks]
    return f"{wrong[0]}; give a folder on a local disk, or {INSIST}" if wrong else ""


def check_file_systems(config: Config, found: dict[str, FileSystemFlaw]) -> None:
    """Raises StartError."""
    if why := why_not(config, found):
        raise StartError(why)


def check_reload(found: dict[str, FileSystemFlaw], config: Config) -> None:
    """Raises ConfigError."""
    if why := why_not(config, found):
        raise ConfigError("sync_journal", why)


def report_flaws(found: dict[str, FileSystemFlaw], report: EventSink) -> None:
    for folder, flaw in found.items():
        hint = "what was answered may be gone after a power cut" if flaw.breaks else "see docs/durability.md"
        report(Level.WARNING, "spool.file_system", folder=folder, why=flaw.text, hint=hint)
