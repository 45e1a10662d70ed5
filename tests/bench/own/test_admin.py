"""The admin benchmark: a small run of it, and what counts as missed."""

from __future__ import annotations

from staniel.bench.harness.served import served
from staniel.bench.own import admin


def test_a_scrape_and_pages_are_measured_beside_clients() -> None:
    with served(admin.CONFIG) as server:
        admin.filled(server, 10)
        assert b'staniel_queue_items{queue="queue-00009"} 1' in admin.scrape(server)
        in_a_second_ms, each_us = admin.cost(server, 200, 0.5, 2, True)
    assert in_a_second_ms > 0 and each_us > 0


def test_a_goal_is_a_bound_from_above_or_from_below() -> None:
    assert admin.Row("a", 2.1, "%", 2.0).is_missed and not admin.Row("a", 2.0, "%", 2.0).is_missed
    assert admin.Row("a", 499.0, "MB/s", 500.0, is_least=True).is_missed
    assert not admin.Row("a", 1e9, "ms").is_missed
    assert "MISSED" in admin.line(admin.Row("a", 2.1, "%", 2.0))
