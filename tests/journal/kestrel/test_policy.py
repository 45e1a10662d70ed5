"""When a journal is rotated, rewritten and synced: numbers in, a decision out."""

from __future__ import annotations

import pytest
from msgspec import structs

from staniel.journal.kestrel.policy import Step, Usage, is_worth_packing, next_step, starts_delay, sync_due_ms
from staniel.queues.config import QueueConfig
from tests.support.records import NOW_MS

CONFIG = QueueConfig(default_journal_bytes=100, max_memory_bytes=200, max_journal_bytes=5000, compact_delay_ms=1000)


@pytest.mark.parametrize(
    ("current_bytes", "kept_bytes", "items", "step"),
    [
        (0, 0, 0, Step.KEEP),
        (99, 0, 0, Step.KEEP),
        (100, 0, 0, Step.START_OVER),
        (100, 0, 1, Step.KEEP),
        (200, 0, 1, Step.KEEP),
        (201, 0, 1, Step.ROTATE),
        (10_000, 0, 0, Step.START_OVER),
        (199, 100, 0, Step.KEEP),
        (200, 100, 0, Step.START_OVER),
        (999, 500, 0, Step.ROTATE),
        (1000, 500, 0, Step.START_OVER),
        (100, 50, 0, Step.START_OVER),
    ],
)
def test_when_to_rotate_and_when_to_start_over(current_bytes: int, kept_bytes: int, items: int, step: Step) -> None:
    usage = Usage(current_bytes, kept_bytes, items, item_bytes=items, archived_bytes=0, rewritten_ms=NOW_MS)
    assert next_step(usage, CONFIG, NOW_MS) is step


@pytest.mark.parametrize(
    ("current_bytes", "archived_bytes", "item_bytes", "behind_items", "rested_ms", "step"),
    [
        (150, 4850, 199, 0, 1000, Step.KEEP),
        (150, 4851, 199, 0, 1000, Step.REWRITE),
        (5001, 0, 199, 0, 1000, Step.REWRITE),
        (150, 4851, 199, 0, 999, Step.KEEP),
        (201, 4851, 199, 0, 999, Step.CHECKPOINT),
        (150, 4851, 200, 0, 1000, Step.KEEP),
        (201, 4851, 200, 0, 1000, Step.CHECKPOINT),
        (201, 4799, 200, 0, 1000, Step.ROTATE),
        (150, 4851, 199, 1, 1000, Step.KEEP),
        (201, 4851, 199, 1, 1000, Step.CHECKPOINT),
    ],
)
@pytest.mark.parametrize("aggressive", [True, False])
def test_when_a_queue_that_is_not_empty_is_rewritten(
    current_bytes: int,
    archived_bytes: int,
    item_bytes: int,
    behind_items: int,
    rested_ms: int,
    step: Step,
    aggressive: bool,
) -> None:
    usage = Usage(current_bytes, 0, 1, item_bytes, archived_bytes, NOW_MS, behind_items)
    config = structs.replace(CONFIG, aggressive_rewrites=aggressive)
    assert next_step(usage, config, NOW_MS + rested_ms) is step


@pytest.mark.parametrize(
    ("current_bytes", "rested_ms", "step"),
    [
        (100, 999, Step.KEEP),
        (100, 1000, Step.START_OVER),
        (200, 999, Step.KEEP),
        (201, 999, Step.START_OVER),
    ],
)
def test_without_aggressive_rewrites_an_empty_queue_starts_over_seldom(
    current_bytes: int, rested_ms: int, step: Step
) -> None:
    usage = Usage(current_bytes, 0, 0, 0, 0, NOW_MS)
    config = structs.replace(CONFIG, aggressive_rewrites=False)
    assert next_step(usage, config, NOW_MS + rested_ms) is step


@pytest.mark.parametrize(
    ("step", "left_bytes", "aggressive", "starts"),
    [
        (Step.REWRITE, 0, True, True),
        (Step.REWRITE, 0, False, True),
        (Step.START_OVER, 50, True, False),
        (Step.START_OVER, 49, False, False),
        (Step.START_OVER, 50, False, True),
    ],
)
def test_which_rewrites_start_the_delay(step: Step, left_bytes: int, aggressive: bool, starts: bool) -> None:
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


@pytest.mark.parametrize(("sync_ms", "due_ms"), [(0, 1000), (50, 1050), (-1, None)])
def test_when_a_change_must_be_synced_at_the_latest(sync_ms: int, due_ms: int | None) -> None:
    assert sync_due_ms(QueueConfig(sync_ms=sync_ms), 1000) == due_ms
