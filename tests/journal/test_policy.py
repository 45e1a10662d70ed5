"""When a journal is rotated, rewritten and synced: numbers in, a decision out."""

from __future__ import annotations

import pytest
from msgspec import structs

from journal.policy import Step, Usage, next_step, sync_due_ms
from queues.config import QueueConfig
from tests.journal.records import NOW_MS

CONFIG = QueueConfig(default_journal_bytes=100, max_memory_bytes=200, max_journal_bytes=5000, compact_delay_ms=1000)


@pytest.mark.parametrize(
    ("current_bytes", "kept_bytes", "items", "step"),
    [
        (0, 0, 0, Step.KEEP),
        (99, 0, 0, Step.KEEP),
        (100, 0, 0, Step.REWRITE),
        (100, 0, 1, Step.KEEP),
        (200, 0, 1, Step.KEEP),
        (201, 0, 1, Step.ROTATE),
        (10_000, 0, 0, Step.REWRITE),
        (199, 100, 0, Step.KEEP),
        (200, 100, 0, Step.REWRITE),
        (999, 500, 0, Step.ROTATE),
        (1000, 500, 0, Step.REWRITE),
        (100, 50, 0, Step.REWRITE),
    ],
)
def test_when_to_rotate_and_when_to_start_over(current_bytes: int, kept_bytes: int, items: int, step: Step) -> None:
    usage = Usage(current_bytes, kept_bytes, items, item_bytes=items, archived_bytes=0, rewritten_ms=NOW_MS)
    assert next_step(usage, CONFIG, NOW_MS) is step


@pytest.mark.parametrize(
    ("current_bytes", "archived_bytes", "item_bytes", "rested_ms", "step"),
    [
        (150, 4850, 199, 1000, Step.KEEP),
        (150, 4851, 199, 1000, Step.REWRITE),
        (5001, 0, 199, 1000, Step.REWRITE),
        (150, 4851, 199, 999, Step.KEEP),
        (201, 4851, 199, 999, Step.ROTATE),
        (150, 4851, 200, 1000, Step.KEEP),
        (201, 4851, 200, 1000, Step.ROTATE),
    ],
)
def test_when_a_queue_that_is_not_empty_is_rewritten(
    current_bytes: int, archived_bytes: int, item_bytes: int, rested_ms: int, step: Step
) -> None:
    usage = Usage(current_bytes, 0, 1, item_bytes, archived_bytes, rewritten_ms=NOW_MS)
    assert next_step(usage, CONFIG, NOW_MS + rested_ms) is step
    timid = structs.replace(CONFIG, aggressive_rewrites=False)
    wanted = Step.ROTATE if current_bytes > CONFIG.max_memory_bytes else Step.KEEP
    assert next_step(usage, timid, NOW_MS + rested_ms) is wanted


@pytest.mark.parametrize(("sync_ms", "due_ms"), [(0, 1000), (50, 1050), (-1, None)])
def test_when_a_change_must_be_synced_at_the_latest(sync_ms: int, due_ms: int | None) -> None:
    assert sync_due_ms(QueueConfig(sync_ms=sync_ms), 1000) == due_ms
