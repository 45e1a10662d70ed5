"""A queue that is converted holds what a start on the spool would have served, on spools that accidents have left; or
the conversion is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from staniel.journal.disk.fs import Fs, JournalFailure
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.spool_listing import list_spool
from staniel.journal.tools import convert
from staniel.journal.tools.convert import Conversion, ConversionRefused
from staniel.journal.tools.unfinished import Unfinished, Work, unfinished_in
from staniel.queues.config import Format
from staniel.queues.names import family_of
from staniel.sim.disk.disk import Disk
from tests.journal.tools.repaired import CONFIG, Told, serve, spools

HISTORIES = (("hub-undo", 0), ("transfers", 1), ("formats", 2), ("redo", 3), ("kill", 4))
QUEUES_MAX = 4  # of a spool
Contents = dict[str, list[bytes]]


def contents(told: Told) -> Contents:
    """The items of each queue at the end, in the order of their bytes: open reads come back in another one."""
    return {
        name: sorted(item[0] for item in lists[-1])  # type: ignore[attr-defined]
        for name, lists in told.served.items()
        if isinstance(lists[-1], list) and lists[-1]
    }


def converted(disk: Disk, queue: str, now_ms: int) -> bool:
    """Whether a conversion to the other format was not refused."""
    try:
        spool = Spool(disk, "s")
        spool.finish_log()
        wanted = Format.KESTREL if queue in spool.listing().streams else Format.LIBKESTREL
        Conversion(spool, queue, now_ms, lambda *_: None).run(wanted)
    except (ConversionRefused, SpoolError):
        return False
    return True


def verdicts(seed: int, profile: str) -> Iterator[tuple[str, str]]:
    """(verdict, what differs) of conversions in the spools of one history."""
    for disk, now_ms, _ in spools(seed, profile):
        try:
            wanted = contents(serve(disk.copy(), CONFIG, now_ms))
        except JournalFailure:
            continue
        listing = list_spool(disk, "s")
        families = sorted({*map(family_of, listing.kestrel), *listing.streams})
        for queue in families[:QUEUES_MAX]:
            other = disk.copy()
            if not converted(other, queue, now_ms):
                yield "refused", ""
                continue
            found = contents(serve(other.kill(), CONFIG, now_ms))
            wrong = [name for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
            yield ("differs" if wrong else "alike"), f"{queue}: {wrong}"


@pytest.mark.parametrize(("profile", "seed"), HISTORIES)
def test_a_converted_queue_holds_what_a_start_would_have_served(profile: str, seed: int) -> None:
    found: Counter[str] = Counter()
    for verdict, what in verdicts(seed, profile):
        assert verdict != "differs", (seed, profile, what)
        found[verdict] += 1
    assert found["alike"] > 3


def all_but(left_out: Work) -> Callable[[Fs, str, str], list[Unfinished]]:
    """What unfinished work a spool has, without that of one kind."""
    return lambda fs, folder, queue: [each for each in unfinished_in(fs, folder, queue) if each.work is not left_out]


@pytest.mark.pure
def test_an_unfinished_operation_that_a_conversion_does_not_ask_for_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convert, "unfinished_in", all_but(Work.OPERATION))
    assert any(verdict == "differs" for seed in range(8) for verdict, _ in verdicts(seed, "hub-undo"))
