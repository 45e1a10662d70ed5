"""Removing backups, and data that no backup needs."""

from __future__ import annotations

from staniel.server.backup import store as stores
from staniel.server.backup.store import Store, data_name


def tidy(store: Store, now_ms: int) -> int:
    """Remove the remains of interrupted runs. Return the number of freed bytes.

    Raises BackupError, also if a manifest cannot be read, because the data that it needs is then unknown. While another
    process makes a backup nothing is removed: it may use data that no backup needs yet.
    """
    before_ms = now_ms - store.quiet_ms
    running = store.names(stores.RUNNING)
    if any(each.changed_at_ms > before_ms for each in running.values()):
        return 0
    needed: set[str] = set()
    for backup_id in stores.ids(store):
        needed.update(part.sha256 for file in stores.load(store, backup_id).files for part in file.parts)
    found = stores.stored_data(store)
    idle = {name: each for name, each in found.items() if name not in needed and each.changed_at_ms <= before_ms}
    store.remove([data_name(name) for name in idle])
    store.remove(list(running))
    store.abort_uploads(before_ms)
    return sum(each.bytes for each in idle.values())


def remove(store: Store, ids: list[str], now_ms: int) -> int:
    """Remove backups, and the data that only they needed. Raises BackupError."""
    store.remove([f"{stores.BACKUPS}{backup_id}.json" for backup_id in ids])
    return tidy(store, now_ms)
