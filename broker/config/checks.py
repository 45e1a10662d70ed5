"""Limits that a queue's journal format sets for its other settings and for its name."""

from __future__ import annotations

from staniel.broker.config.schema import QueueSettings
from staniel.broker.config.toml import ConfigError, joined
from staniel.broker.config.values import shown
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.records import DATA_BYTES_MAX
from staniel.queues.config import Format, QueueConfig
from staniel.queues.names import parent_of


def check_formats(resolved: dict[str, QueueConfig], default: QueueSettings, queues: dict[str, QueueSettings]) -> None:
    """Check queues with a libkestrel journal. Raises ConfigError for a setting or a name that such a journal cannot
    hold.
    """
    for name, config in resolved.items():
        if config.journal_format is not Format.LIBKESTREL or not config.keep_journal:
            continue
        path = joined("queues", name) if name in queues else "default"
        if config.max_item_bytes > DATA_BYTES_MAX:
            found = "a libkestrel journal holds items of 16MB at most"
            raise ConfigError(joined(path, "max_item_size"), f"expected 16MB or less: {found}")
        if name in queues and (why := stream_name_error(name)):
            raise ConfigError(path, f'{why}; give {shown(name)} another name, or journal_format = "kestrel"')


def stream_name_error(name: str) -> str:
    """Return why a libkestrel journal cannot keep a queue called `name`; "" if it can."""
    parent = parent_of(name)
    if not parent:
        return libkestrel_files.name_error(name)
    reader = name.partition("+")[2]
    if reader == parent:
        return f"{name} would be {parent} itself, which is kept as its own reader"
    return libkestrel_files.name_error(parent) or libkestrel_files.name_error(reader)
