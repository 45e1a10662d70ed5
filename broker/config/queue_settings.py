"""The settings of queues: the values in the file, checked and resolved (a queue's own, its parent's, [default]'s).
QueueConfig in queues/config.py declares each setting.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from typing import Any

from staniel.broker.config import values
from staniel.broker.config.toml import ConfigError, joined, keys_of
from staniel.broker.config.values import shown
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.records import DATA_BYTES_MAX
from staniel.queues.config import Format, QueueConfig
from staniel.queues.names import parent_of

Given = dict[str, Any]
"""The values that a table of the file gives, by the attributes of QueueConfig. Attributes that it does not give are
absent.
"""

WORDS = (values.NONE, "always", "os")  # shown in place of some numbers
BLOCK_BYTES = 4096  # of a file system
# No queue has the empty name, so it stands for all queues that the file does not name.
ANY = ""


def describe(resolved: QueueConfig) -> Iterator[tuple[str, object]]:
    """Yield (key, value) of each setting, under the keys of the file; in bytes and milliseconds."""
    for spelled, key in keys_of(QueueConfig).items():
        value = getattr(resolved, key.attribute)
        if key.kind is values.OPPOSITE_FLAG:
            value = not value
        yield spelled, value.value if isinstance(value, Enum) else value


def worded(resolved: QueueConfig) -> Iterator[tuple[str, object]]:
    """Yield the same as `describe`, with the file's words in the place of some numbers: "none", "always", "os"."""
    keys = keys_of(QueueConfig)
    words = {shown(word): word for word in WORDS}  # not at import: quoting loads json, which startup can avoid
    for spelled, value in describe(resolved):
        if isinstance(value, tuple):
            yield spelled, (value[0] if len(value) == 1 else list(value)) if value else values.NONE
        elif type(value) is int:
            yield spelled, words.get(keys[spelled].kind.show(value), value)
        else:
            yield spelled, values.NONE if value == "" else value


def resolve_all(default: Given, queues: dict[str, Given]) -> dict[str, QueueConfig]:
    """Resolve the settings of every name whose settings differ from [default]. Their number depends on the file only,
    not on the names that clients use.
    """
    names = {ANY, *queues}
    for given in (default, *queues.values()):
        names |= {given[key] for key in ("expire_to_queue", "dead_letter_queue") if key in given}
    return {name: _resolve(name, default, queues) for name in names}


def _resolve(name: str, default: Given, queues: dict[str, Given]) -> QueueConfig:
    merged = {**default, **queues.get(parent_of(name), {}), **queues.get(name, {})}
    if merged.get("expire_to_queue") == name:
        # [default] may name the queue for the expired items of all queues. The expired items of that queue must not
        # return to it.
        merged["expire_to_queue"] = ""
    # A smaller file takes a whole block of the disk, too: rewriting it would cost two syncs and save nothing.
    if merged.get("default_journal_bytes") == 0:
        merged["default_journal_bytes"] = BLOCK_BYTES
    if merged.get("dead_letter_queue") == name:
        merged |= {"dead_letter_queue": "", "max_deliveries": 0}
    return QueueConfig(**merged)


def anchored(given: Given, folder: str) -> Given:
    """Return the same values with absolute paths. Relative ones are relative to `folder`."""
    path = given.get("archive_path")
    return given | {"archive_path": os.path.join(folder, path)} if path else given


def check_queues(
    resolved: dict[str, QueueConfig], queues: dict[str, Given], aliases: dict[str, tuple[str, ...]]
) -> None:
    """Check the settings of queues against each other. Raises ConfigError."""
    _check_dead_letters(resolved)
    _check_targets(resolved, aliases)
    _check_formats(resolved, queues)


def check_expiry(queues: dict[str, Given]) -> None:
    """Check that no queue names itself for its expired or dead items. Raises ConfigError."""
    for name, settings in queues.items():
        if settings.get("expire_to_queue") == name:
            path = joined(joined("queues", name), "expire_to_queue")
            raise ConfigError(path, f"expected another queue, got {shown(name)}")
        if settings.get("dead_letter_queue") == name:
            path = joined(joined("queues", name), "dead_letter_queue")
            raise ConfigError(path, f"expected another queue, got {shown(name)}")


def _check_dead_letters(resolved: dict[str, QueueConfig]) -> None:
    for name, settings in resolved.items():
        if settings.max_deliveries and not settings.dead_letter_queue:
            path = joined(joined("queues", name), "max_deliveries") if name else "default.max_deliveries"
            raise ConfigError(path, "expected a dead_letter_queue too, for the items that reach it")


def _check_targets(resolved: dict[str, QueueConfig], aliases: dict[str, tuple[str, ...]]) -> None:
    """Check that expired and dead items go to a queue. They cannot go to an alias. Raises ConfigError."""
    for name, settings in resolved.items():
        for key, target in (
            ("expire_to_queue", settings.expire_to_queue),
            ("dead_letter_queue", settings.dead_letter_queue),
        ):
            if target in aliases:
                path = joined(joined("queues", name), key) if name else f"default.{key}"
                raise ConfigError(path, f"expected a queue, got the alias {shown(target)}")


def _check_formats(resolved: dict[str, QueueConfig], queues: dict[str, Given]) -> None:
    """Check the queues with a libkestrel journal. Raises ConfigError for a setting or a name that such a journal cannot
    represent.
    """
    for name, config in resolved.items():
        if config.journal_format is not Format.LIBKESTREL or not config.keep_journal:
            continue
        path = joined("queues", name) if name in queues else "default"
        if config.max_item_bytes > DATA_BYTES_MAX:
            limit = "a libkestrel journal holds items of 16MB at most"
            raise ConfigError(joined(path, "max_item_size"), f"expected 16MB or less: {limit}")
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
