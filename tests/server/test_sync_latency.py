"""When a sync is waited for on the spot: the disk has to have earned it."""

from __future__ import annotations

from staniel.server.sync_latency import BRIEF_FOR_MANY_NS, BRIEF_NS, Pace


def test_a_disk_nobody_knows_yet_is_not_waited_for() -> None:
    assert not Pace().is_brief


def test_brief_syncs_lead_to_the_spot() -> None:
    pace = Pace()
    for _ in range(30):
        pace.took(BRIEF_NS // 4)
    assert pace.is_brief


def test_one_slow_sync_leads_away_from_it_and_the_way_back_is_long() -> None:
    pace = Pace()
    for _ in range(30):
        pace.took(BRIEF_NS // 4)
    pace.took(20 * BRIEF_NS)
    assert not pace.is_brief
    for _ in range(20):
        pace.took(BRIEF_NS // 4)
    assert not pace.is_brief
    for _ in range(40):
        pace.took(BRIEF_NS // 4)
    assert pace.is_brief


def test_several_journals_may_take_longer_than_one() -> None:
    one, many = Pace(), Pace(BRIEF_FOR_MANY_NS)
    for _ in range(40):
        one.took(BRIEF_NS * 3 // 2)
        many.took(BRIEF_NS * 3 // 2)
    assert (one.is_brief, many.is_brief) == (False, True)
