"""When to rotate, rewrite, sync. Numbers in, a decision out; nothing here touches a file or a clock.

Source: the packing strategy document, with the conditions and defaults of Kestrel 2.4.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from queues.config import SYNC_OS, QueueConfig


class Step(Enum):
    KEEP = "keep"
    ROTATE = "rotate"
    REWRITE = "rewrite"


class Usage(Struct, frozen=True, gc=False):
    """What a journal and its queue hold, in bytes and items.

    `kept_bytes` is what the last rewrite left in the current file: open reads that no rewrite can shrink.
    """

    current_bytes: int
    kept_bytes: int
    items: int
    item_bytes: int
    archived_bytes: int
    rewritten_ms: int


def next_step(usage: Usage, config: QueueConfig, now_ms: int) -> Step:
    """What to do with a journal now.

    An empty queue starts over past `default_journal_bytes`, but never before the file has doubled: with many large open
    reads every reply would otherwise rewrite them all.
    """
    start_over_bytes = max(config.default_journal_bytes, 2 * usage.kept_bytes)
    if usage.items == 0 and usage.current_bytes >= start_over_bytes:
        return Step.REWRITE
    total_bytes = usage.current_bytes + usage.archived_bytes
    rested = now_ms >= usage.rewritten_ms + config.compact_delay_ms
    in_memory = usage.item_bytes < config.max_memory_bytes  # so that much is written at most
    if total_bytes > config.max_journal_bytes and in_memory and rested and config.aggressive_rewrites:
        return Step.REWRITE
    if usage.current_bytes > config.max_memory_bytes:
        return Step.ROTATE
    return Step.KEEP


def sync_due_ms(config: QueueConfig, unsynced_since_ms: int) -> int | None:
    """When changes written at `unsynced_since_ms` must be synced at the latest; None: whenever the OS likes."""
    if config.sync_ms == SYNC_OS:
        return None
    return unsynced_since_ms + config.sync_ms
