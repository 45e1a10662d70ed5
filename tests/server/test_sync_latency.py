"""When a sync is waited for at once: the disk has been fast lately."""

from __future__ import annotations

from staniel.server.disk_work import ONE_JOURNAL_NS, SEVERAL_JOURNALS_NS, TRIED_AFTER, SyncLatency


def test_a_disk_nobody_knows_yet_is_not_waited_for() -> None:
    assert not SyncLatency().is_brief


def test_after_brief_syncs_the_next_is_waited_for() -> None:
    latency = SyncLatency()
    for _ in range(30):
        latency.add(ONE_JOURNAL_NS // 4)
    assert latency.is_brief


def test_one_slow_sync_switches_to_the_thread_and_many_brief_ones_switch_back() -> None:
    latency = SyncLatency()
    for _ in range(30):
        latency.add(ONE_JOURNAL_NS // 4)
    latency.add(20 * ONE_JOURNAL_NS)
    assert not latency.is_brief
    for _ in range(20):
        latency.add(ONE_JOURNAL_NS // 4)
    assert not latency.is_brief
    for _ in range(40):
        latency.add(ONE_JOURNAL_NS // 4)
    assert latency.is_brief


def test_several_journals_may_take_longer_than_one() -> None:
    one, many = SyncLatency(), SyncLatency(SEVERAL_JOURNALS_NS)
    for _ in range(40):
        one.add(ONE_JOURNAL_NS * 3 // 2)
        many.add(ONE_JOURNAL_NS * 3 // 2)
    assert (one.is_brief, many.is_brief) == (False, True)


def test_beside_a_busy_hub_one_of_many_syncs_tells_how_fast_the_disk_is() -> None:
    latency = SyncLatency()
    for _ in range(TRIED_AFTER):
        assert not latency.is_worth_a_try
        latency.add(2 * ONE_JOURNAL_NS)  # the thread's wait for the interpreter is in it
    assert latency.is_worth_a_try and not latency.is_brief
    latency.add(ONE_JOURNAL_NS // 2, has_waited=True)
    assert latency.is_brief


def test_a_slow_disk_is_not_tried() -> None:
    latency = SyncLatency()
    for _ in range(10 * TRIED_AFTER):
        latency.add(8 * ONE_JOURNAL_NS)
        assert not latency.is_worth_a_try
