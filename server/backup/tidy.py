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
    if any(stored.changed_at_ms > before_ms for stored in running.values()):
        return 0
    needed: set[str] = set()
    for backup_id in stores.ids(store):
        needed.update(part.sha256 for file in stores.load(store, backup_id).files for part in file.parts)
    stored_data = stores.stored_data(store)
    idle = {
        name: stored for name, stored in stored_data.items() if name not in needed and stored.changed_at_ms <= before_ms
    }
    store.remove([data_name(name) for name in idle])
    store.remove(list(running))
    store.abort_uploads(before_ms)
    return sum(stored.bytes for stored in idle.values())


def remove(store: Store, ids: list[str], now_ms: int) -> int:
    """Remove backups, and the data that only they needed. Raises BackupError."""
    store.remove([f"{stores.BACKUPS}{backup_id}.json" for backup_id in ids])
    return tidy(store, now_ms)
