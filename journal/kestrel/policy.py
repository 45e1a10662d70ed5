"""The policy of a journal: when to rotate, rewrite, pack and sync it. Numbers in, a decision out; nothing here touches
a file or a clock.

Source: the packing strategy document, with the conditions and defaults of Kestrel 2.4.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.queues.config import QueueConfig


class JournalStep(Enum):
    KEEP = "keep"
    ROTATE = "rotate"
    CHECKPOINT = "checkpoint"  # rotate, and pack the files before it once that is worth it
    START_OVER = "start over"  # the queue is empty: only open reads are kept
    REWRITE = "rewrite"  # all items are in memory, and the files are much larger than these items


class Usage(Struct, frozen=True, gc=False):
    """The bytes and items of a journal and its queue.

    `kept_bytes` is what the last rewrite left, or the last pack of open reads: no rewrite can shrink that.
    `rewritten_ms` is when the last rewrite was that starts the delay. `behind_items` are those that only the journal
    holds.
    """

    current_bytes: int
    kept_bytes: int
    items: int
    item_bytes: int
    archived_bytes: int
    rewritten_ms: int
    behind_items: int = 0


def next_step(usage: Usage, config: QueueConfig, now_ms: int) -> JournalStep:
    """Return what to do with a journal now.

    An empty queue starts over past `default_journal_bytes` (Kestrel counts the current file alone), but never before
    the file has doubled: with many large open reads every reply would otherwise rewrite them all. Without
    `aggressive_rewrites` that too must wait for `compact_delay_ms`, unless the file has grown past `max_memory_bytes`.
    """
    total_bytes = usage.current_bytes + usage.archived_bytes
    rested = now_ms >= usage.rewritten_ms + config.compact_delay_ms
    full = usage.current_bytes > config.max_memory_bytes
    start_over_bytes = max(config.default_journal_bytes, 2 * usage.kept_bytes)
    may_start_over = config.aggressive_rewrites or rested or full
    if usage.items == 0 and total_bytes >= start_over_bytes and may_start_over:
        return JournalStep.START_OVER
    in_memory = usage.item_bytes < config.max_memory_bytes and not usage.behind_items  # limits the bytes to write
    if total_bytes > config.max_journal_bytes and in_memory and rested:
        return JournalStep.REWRITE
    if full:
        return JournalStep.CHECKPOINT if total_bytes > config.max_journal_bytes else JournalStep.ROTATE
    return JournalStep.KEEP


def starts_delay(step: JournalStep, left_bytes: int, config: QueueConfig) -> bool:
    """Tell whether a rewrite that leaves `left_bytes` is the last one for `compact_delay_ms`."""
    if step is JournalStep.REWRITE:
        return True
    return not config.aggressive_rewrites and left_bytes >= config.default_journal_bytes // 2


def is_worth_packing(covered_bytes: int, packed_bytes: int, total_bytes: int, config: QueueConfig) -> bool:
    """Tell whether to replace files of `covered_bytes` by one of about `packed_bytes`.

    Only where the journal is larger than it may be, and for half of the bytes at least: whatever is rewritten again and
    again then costs less in all than what it replaces had cost to write.
    """
    return total_bytes > config.max_journal_bytes and saves_half(covered_bytes, packed_bytes)


def saves_half(covered_bytes: int, packed_bytes: int) -> bool:
    """Tell whether a pack of `packed_bytes` is at most half of what it replaces; asked of each file more, too: items
    that are about to leave would be copied for next to nothing.
    """
    return 2 * packed_bytes <= covered_bytes
