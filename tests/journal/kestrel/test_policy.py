"""When a journal is rotated, rewritten and synced: numbers in, a decision out."""

from __future__ import annotations

import pytest
from msgspec import structs

from staniel.journal.kestrel.policy import JournalStep, Usage, is_worth_packing, next_step, starts_delay
from staniel.queues.config import QueueConfig
from tests.support.records import NOW_MS

CONFIG = QueueConfig(default_journal_bytes=100, max_memory_bytes=200, max_journal_bytes=5000, compact_delay_ms=1000)


@pytest.mark.parametrize(
    ("current_bytes", "kept_bytes", "items", "step"),
    [
        (0, 0, 0, JournalStep.KEEP),
        (99, 0, 0, JournalStep.KEEP),
        (100, 0, 0, JournalStep.START_OVER),
        (100, 0, 1, JournalStep.KEEP),
        (200, 0, 1, JournalStep.KEEP),
        (201, 0, 1, JournalStep.ROTATE),
        (10_000, 0, 0, JournalStep.START_OVER),
        (199, 100, 0, JournalStep.KEEP),
        (200, 100, 0, JournalStep.START_OVER),
        (999, 500, 0, JournalStep.ROTATE),
        (1000, 500, 0, JournalStep.START_OVER),
        (100, 50, 0, JournalStep.START_OVER),
    ],
)
def test_when_to_rotate_and_when_to_start_over(
    current_bytes: int, kept_bytes: int, items: int, step: JournalStep
) -> None:
    usage = Usage(current_bytes, kept_bytes, items, item_bytes=items, archived_bytes=0, rewritten_ms=NOW_MS)
    assert next_step(usage, CONFIG, NOW_MS) is step


@pytest.mark.parametrize(
    ("current_bytes", "archived_bytes", "item_bytes", "behind_items", "rested_ms", "step"),
    [
        (150, 4850, 199, 0, 1000, JournalStep.KEEP),
        (150, 4851, 199, 0, 1000, JournalStep.REWRITE),
        (5001, 0, 199, 0, 1000, JournalStep.REWRITE),
        (150, 4851, 199, 0, 999, JournalStep.KEEP),
        (201, 4851, 199, 0, 999, JournalStep.CHECKPOINT),
        (150, 4851, 200, 0, 1000, JournalStep.KEEP),
        (201, 4851, 200, 0, 1000, JournalStep.CHECKPOINT),
        (201, 4799, 200, 0, 1000, JournalStep.ROTATE),
        (150, 4851, 199, 1, 1000, JournalStep.KEEP),
        (201, 4851, 199, 1, 1000, JournalStep.CHECKPOINT),
    ],
)
@pytest.mark.parametrize("aggressive", [True, False])
def test_when_a_queue_that_is_not_empty_is_rewritten(
    current_bytes: int,
    archived_bytes: int,
    item_bytes: int,
    behind_items: int,
    rested_ms: int,
    step: JournalStep,
    aggressive: bool,
) -> None:
    usage = Usage(current_bytes, 0, 1, item_bytes, archived_bytes, NOW_MS, behind_items)
    config = structs.replace(CONFIG, aggressive_rewrites=aggressive)
    assert next_step(usage, config, NOW_MS + rested_ms) is step


@pytest.mark.parametrize(
    ("current_bytes", "rested_ms", "step"),
    [
        (100, 999, JournalStep.KEEP),
        (100, 1000, JournalStep.START_OVER),
        (200, 999, JournalStep.KEEP),
        (201, 999, JournalStep.START_OVER),
    ],
)
def test_without_aggressive_rewrites_an_empty_queue_starts_over_seldom(
    current_bytes: int, rested_ms: int, step: JournalStep
) -> None:
    usage = Usage(current_bytes, 0, 0, 0, 0, NOW_MS)
    config = structs.replace(CONFIG, aggressive_rewrites=False)
    assert next_step(usage, config, NOW_MS + rested_ms) is step


@pytest.mark.parametrize(
    ("step", "left_bytes", "aggressive", "starts"),
    [
        (JournalStep.REWRITE, 0, True, True),
        (JournalStep.REWRITE, 0, False, True),
        (JournalStep.START_OVER, 50, True, False),
        (JournalStep.START_OVER, 49, False, False),
        (JournalStep.START_OVER, 50, False, True),
    ],
)
def test_which_rewrites_start_the_delay(step: JournalStep, left_bytes: int, aggressive: bool, starts: bool) -> None:
    assert starts_delay(step, left_bytes, structs.replace(CONFIG, aggressive_rewrites=aggressive)) is starts


@pytest.mark.parametrize(
    ("covered_bytes", "packed_bytes", "total_bytes", "worth"),
    [
        (1000, 500, 5001, True),
        (1000, 501, 5001, False),
        (1000, 500, 5000, False),
        (0, 0, 5001, True),
    ],
)
def test_what_is_worth_packing(covered_bytes: int, packed_bytes: int, total_bytes: int, worth: bool) -> None:
    assert is_worth_packing(covered_bytes, packed_bytes, total_bytes, CONFIG) is worth
