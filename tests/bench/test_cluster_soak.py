"""The soak of a cluster: what it judges, and a short run of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.bench.soak.cluster.accidents import Accidents
from staniel.bench.soak.cluster.clients import Ledger
from staniel.bench.soak.cluster.run import Run, markdown, play

PROGRAMS = ("etcd", "cc", "mkfs.ext4", "mount", "unshare", "nsenter", "ip", "iptables", "kernel:networks")
SECONDS, SEED, RATE, LEASE_S = 3.0, 5, 40.0, 3


def ledger_of(*items: str) -> Ledger:
    ledger = Ledger()
    for item in items:
        ledger.asked(item)
        ledger.stored(item)
    return ledger


def test_an_acknowledged_item_that_nobody_confirmed_is_lost() -> None:
    ledger = ledger_of("one", "two", "three")
    ledger.confirmed("one")
    ledger.maybe_confirmed("two")
    ledger.judge_all()
    assert ledger.wrong == ["three was stored and is lost"]


def test_an_item_may_come_again_until_it_is_confirmed() -> None:
    ledger = ledger_of("one")
    ledger.delivered("one", asked_s=0)
    ledger.delivered("one", asked_s=0)
    ledger.confirmed("one")
    assert ledger.wrong == []


def test_an_item_that_was_asked_for_after_its_confirmation_must_not_come() -> None:
    ledger = ledger_of("one")
    ledger.confirmed("one")
    ledger.delivered("one", asked_s=0)  # this reply was on its way
    assert ledger.wrong == []
    ledger.delivered("one", asked_s=float("inf"))
    assert ledger.wrong == ["one came again after it was confirmed"]


def test_no_item_is_confirmed_twice() -> None:
    ledger = ledger_of("one")
    ledger.confirmed("one")
    ledger.confirmed("one")
    assert ledger.wrong == ["one was confirmed twice"]


def test_nothing_comes_that_was_refused_or_never_put() -> None:
    ledger = Ledger()
    ledger.asked("one")
    ledger.refused("one")
    ledger.delivered("one", asked_s=0)
    ledger.delivered("two", asked_s=0)
    assert ledger.wrong == ["the put of one was refused", "two was never put"]


def test_a_put_without_a_reply_may_be_there_or_not() -> None:
    ledger = Ledger()
    ledger.asked("one")
    ledger.judge_all()
    assert ledger.wrong == []
    ledger.delivered("one", asked_s=0)
    assert ledger.wrong == [] and ledger.counts["puts without a reply"] == 1


def test_the_report_says_what_is_wrong() -> None:
    run = Run(60, wrong=["one is lost"], counts={"stored": 2}, pauses={"a hand-over": [0.5, 0.75, 4]}, epochs=3)
    text = markdown(run, "2 cores", 7, "staniel 1")
    assert "**FAILED**: 1 wrong" in text and "- one is lost" in text
    assert "| a hand-over | 3 | 0.8 | 4.0 |" in text
    assert "**passed**" in markdown(Run(60), "2 cores", 7, "staniel 1")


@pytest.mark.slow
@pytest.mark.programs(*PROGRAMS)
@pytest.mark.parametrize("kind", ["kill -9 of a member", "a member cut off from all"])
def test_a_cluster_gets_well_after_an_accident_and_loses_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, closing_line: Callable[[str], None]
) -> None:
    happen = Accidents.happen

    def only(accidents: Accidents) -> str:
        accidents.kinds = {kind: accidents.kinds[kind]}
        return happen(accidents)

    monkeypatch.setattr(Accidents, "happen", only)
    run = play(tmp_path, SECONDS, SEED, RATE, LEASE_S, lambda text: None)
    assert run.wrong == []
    assert run.counts["stored"] > 0 and run.counts["confirmed"] > 0
    assert run.pauses[kind]
    closing_line(f"soak of a cluster, {kind}: {run.counts['stored']} items, nothing wrong")
