"""The policy of a journal: when to rotate, rewrite, pack and sync it. Its functions take numbers and return a decision;
they touch no file and no clock.

Source: the packing strategy document, with the conditions and defaults of Kestrel 2.4.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.queues.config import QueueConfig


class JournalStep(Enum):
    KEEP = "keep"
    ROTATE = "rotate"
    CHECKPOINT = "checkpoint"  # rotate, and pack the files before the current one once that is worth it
    START_OVER = "start over"  # the queue is empty: keep only open reads
    REWRITE = "rewrite"  # all items are in memory, and the files are much larger than these items


class Usage(Struct, frozen=True, gc=False):
    """The bytes and items of a journal and its queue.

    `kept_bytes` is the size that the last rewrite left, or the last pack of open reads: no rewrite can shrink that.
    `rewritten_ms` is the time of the last rewrite that started the delay. `behind_items` counts the items that are only
    in the journal.
    """

    current_bytes: int
    kept_bytes: int
    items: int
    item_bytes: int
    archived_bytes: int
    rewritten_ms: int
    behind_items: int = 0


def next_step(usage: Usage, config: QueueConfig, now_ms: int) -> JournalStep:
    """Return the next step for a journal.

    An empty queue starts over beyond `default_journal_bytes` (Kestrel counts the current file alone), but never before
    the file has doubled: otherwise, with many large open reads, every reply would rewrite them all. Without
    `aggressive_rewrites` that must also wait for `compact_delay_ms`, unless the file has grown beyond
    `max_memory_bytes`.
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
    """Tell whether after a rewrite that leaves `left_bytes` the next one must wait for `compact_delay_ms`."""
    if step is JournalStep.REWRITE:
        return True
    return not config.aggressive_rewrites and left_bytes >= config.default_journal_bytes // 2


def is_worth_packing(covered_bytes: int, packed_bytes: int, total_bytes: int, config: QueueConfig) -> bool:
    """Tell whether to replace files of `covered_bytes` by one of about `packed_bytes`.

    It is worth it only if the journal is larger than allowed, and if at least half of the bytes are saved: then all
    rewrites together cost less than writing the replaced bytes did.
    """
    return total_bytes > config.max_journal_bytes and saves_half(covered_bytes, packed_bytes)


def saves_half(covered_bytes: int, packed_bytes: int) -> bool:
    """Tell whether a pack of `packed_bytes` is at most half of what it replaces. The same must hold for each further
    file, because otherwise items that will leave soon would be copied for almost no gain.
    """
    return 2 * packed_bytes <= covered_bytes
