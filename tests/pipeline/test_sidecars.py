"""The view `state` with the sidecars that a server has left, beside the same without them, and beside what a server
started on the same files shows. No Spark here."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from staniel.journal.kestrel import files as kestrel_files
from staniel.pipeline.formats.base import CorruptJournal, JournalSegment, OnCorrupt, Part, Reading
from staniel.pipeline.formats.kestrel import effect_scan as summarise
from staniel.pipeline.formats.kestrel import ops as kestrel_ops
from staniel.pipeline.formats.kestrel import queue as kestrel_queue
from staniel.pipeline.formats.kestrel.adapter import KestrelAdapter
from staniel.pipeline.formats.kestrel.effect_scan import EMPTY, SegmentFacts
from staniel.pipeline.formats.kestrel.queue import Stretch, survey
from staniel.pipeline.formats.kestrel.state import summarise_file
from staniel.pipeline.lake.folders import Folder, LocalFolder, OpenFile, RemoteFolder
from staniel.pipeline.sources.planning import since, upto
from staniel.queues.item import Delivery
from staniel.queues.journal_view import JournalView
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.journal.kestrel.test_derived_effect import DIALECTS, MORE, STEPS, History, Steps
from tests.journal.kestrel.test_recovery_by_sidecars import sidecars_on, without_sidecars
from tests.pipeline.spools import history as used_queue
from tests.pipeline.spools import write
from tests.support.process import running, until
from tests.support.spool import content_of
from tests.support.wire import Wire

FORMAT = KestrelAdapter()
ROOMY = 'queues.q.max_memory_size = "1MB"'
NEVER_REWRITTEN = 'queues.q.max_journal_size = "1GB"\nqueues.q.default_journal_size = "1GB"'
TRUSTING, READING_ALL = Reading(), Reading(use_summaries=False)
PERMISSIVE = OnCorrupt.PERMISSIVE
Rows = list[dict[str, Any]]


def spill(disk: Disk, folder: Path) -> Path:
    """The spool of a simulated disk on the real one."""
    folder.mkdir()
    sidecars = [f".staniel/segments/{name}" for name in sidecars_on(disk)]
    (folder / ".staniel/segments").mkdir(parents=True)
    for name in [*(name for name, regular in disk.list("s") if regular), *sidecars]:
        (folder / name).write_bytes(content_of(disk, f"s/{name}"))
    return folder


def segments_in(place: Folder) -> list[JournalSegment]:
    return FORMAT.queues(place.list())["q"]


def rows(place: Folder, reading: Reading = TRUSTING, segments: list[JournalSegment] | None = None) -> Rows:
    part = Part("q", segments_in(place) if segments is None else segments)
    return [row for batch in FORMAT.view("state")(place, part, reading) for row in batch.to_pylist()]


def told(found: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("state", "value", "flags", "deliveries", "xid", "id")) for row in found]


def served(history: History) -> list[tuple[Any, ...]]:
    """The same of the queue as its server has it. Nothing is left in the queue."""

    def row(state: str, taken: Delivery, xid: int | None, deliveries: int) -> tuple[Any, ...]:
        return state, taken.item.data, taken.item.flags, deliveries, xid, taken.id

    line = history.queue.line
    found = [row("returned", taken, None, taken.deliveries) for taken in reversed(line.returned)]
    line.returned.clear()
    while line.head() is not None:
        found.append(row("queued", line.pop(), None, 0))
    held = sorted(JournalView(history.queue).under_way.items())
    return found + [row("open", taken, xid, taken.deliveries) for xid, taken in held]


def spilled(disk: Disk, factory: pytest.TempPathFactory) -> LocalFolder:
    return LocalFolder(str(spill(disk, factory.mktemp("any") / "spool")))


def without(found: Rows, *names: str) -> Rows:
    return [{name: value for name, value in row.items() if name not in names} for row in found]


def halves(steps: Steps) -> tuple[Steps, Steps]:
    return steps[: len(steps) // 2], [step for step in steps[len(steps) // 2 :] if step[0] != "rewrite"]


def seal_unrewritten(history: History) -> None:
    """Every file gets a sidecar: one that was rewritten tells no ids and deliveries by itself."""
    while True:
        rewrites = history.log.rewrites
        history.seal()
        if history.log.rewrites == rewrites:
            return


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, dialect=DIALECTS, more=MORE)
def test_the_state_is_what_the_server_has(
    tmp_path_factory: pytest.TempPathFactory, steps: Steps, dialect: str, more: str
) -> None:
    history = History(dialect, f"{ROOMY}\n{more}")
    before, behind = halves(steps)
    history.run(before)
    seal_unrewritten(history)
    rewrites = history.log.rewrites
    history.run(behind)
    while history.log.pending_bytes:  # what has expired into another queue leaves the journal a little later
        history.turn(1)
    if history.log.rewrites > rewrites:
        seal_unrewritten(history)
    place = spilled(history.world.disk, tmp_path_factory)
    assert told(rows(place)) == served(history)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, dialect=DIALECTS, more=MORE, keep=st.frozensets(st.integers(0, 9)))
def test_of_files_that_were_never_rewritten_any_sidecars_lead_to_the_rows_that_none_lead_to(
    tmp_path_factory: pytest.TempPathFactory, steps: Steps, dialect: str, more: str, keep: frozenset[int]
) -> None:
    history = History(dialect, f"{ROOMY}\n{NEVER_REWRITTEN}\n{more}")
    history.run([step for step in steps if step[0] != "rewrite"])
    disk = history.world.disk
    expected = rows(spilled(without_sidecars(disk), tmp_path_factory))
    for left in disk, without_sidecars(disk, keep):
        place = spilled(left, tmp_path_factory)
        assert rows(place) == expected == rows(place, READING_ALL)
        assert rows(place, Reading(False)) == [row | {"value": None} for row in expected]


@settings(max_examples=100, deadline=None)
@given(steps=STEPS, dialect=DIALECTS, more=MORE, keep=st.frozensets(st.integers(0, 9)))
def test_of_any_files_any_sidecars_lead_to_the_items_that_none_lead_to(
    tmp_path_factory: pytest.TempPathFactory, steps: Steps, dialect: str, more: str, keep: frozenset[int]
) -> None:
    history = History(dialect, more)
    history.run(steps)
    disk = history.world.disk
    kept = "id", "deliveries", "state"  # which a file that was rewritten does not tell
    expected = without(rows(spilled(without_sidecars(disk), tmp_path_factory)), *kept)
    for left in disk, without_sidecars(disk, keep):
        assert without(rows(spilled(left, tmp_path_factory)), *kept) == expected


def long_history(seed: int, lag: int = 3, stop: int = 24) -> History:
    """24,000 items in five files, many added within the same millisecond. Its consumer is `lag` thousand items behind,
    and takes no more after `stop` thousand."""
    chance = random.Random(seed)
    history = History("documents", f'queues.q.max_memory_size = "4MB"\n{NEVER_REWRITTEN}')
    for number in range(24):
        for _ in range(1000):
            history.put(chance.randrange(60), chance.choice([0, 0, 0, 7]), 0)
        behind = (min(number + 1, stop) - lag) * 1000 - history.queue.line.left
        for name, *numbers in [
            ("take", max(0, behind)),
            ("open", 2),
            ("abort", 1),
            ("confirm", 3),
            ("turn", number % 3),
        ]:
            getattr(history, name)(*numbers)
        if number % 5 == 4:
            history.seal()
    return history


@pytest.mark.parametrize(("seed", "lag", "stop"), [(1, 3, 24), (2, 9, 24), (3, 11, 20)])
def test_items_of_long_files_are_found_and_have_the_ids_that_the_server_has(
    tmp_path: Path, seed: int, lag: int, stop: int
) -> None:
    history = long_history(seed, lag, stop)
    place = LocalFolder(str(spill(history.world.disk, tmp_path / "spool")))
    found = rows(place)
    assert found == rows(place, READING_ALL) and len(found) >= 1000 * lag
    assert rows(place, Reading(False)) == [row | {"value": None} for row in found]
    assert told(found) == served(history)


def test_ids_are_the_same_for_a_server_that_let_items_go_unread(tmp_path: Path) -> None:
    history = History("documents", f"{ROOMY}\n{NEVER_REWRITTEN}")
    for _ in range(3):  # all within one millisecond
        history.burst(12)
        history.log.seal_wanted = True
        history.world.broker.group.ask_for_sync(history.log)
        history.turn(0)
    history.run([("take", 8)])
    history.world = history.world.crash(Crash.KEEP)
    history.adopt()
    history.seal()
    place = LocalFolder(str(spill(history.world.disk, tmp_path / "spool")))
    found = told(rows(place))
    assert found == served(history) == told(rows(place, READING_ALL))


@pytest.mark.parametrize("seed", range(5))
def test_a_survey_makes_the_marks_and_id_floors_that_a_scan_makes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        *((module, "MARK_EVERY", 3) for module in (summarise, kestrel_queue)),
        *((kestrel_ops, "BATCH_ROWS", rows) for rows in [2 + seed]),
    ):
        monkeypatch.setattr(module, name, value)
    write(tmp_path, "q", used_queue(seed, 2000), 1)
    place = LocalFolder(str(tmp_path))
    one = summarise_file(place, segments_in(place)[0], EMPTY, READING_ALL)
    again = survey(place, Stretch(one, 0, one.summary.added, 0))
    assert again is not None and again.summary == one.summary
    assert (again.facts.marks, again.facts.id_floors[1:]) == (one.facts.marks, one.facts.id_floors[1:])
    later = survey(place, Stretch(replace(one, facts=SegmentFacts([], [])), 100, 200, 0))
    assert later is not None and later.facts.marks[34:66] == one.facts.marks[34:66]


class Counting(LocalFolder):
    """Counts the bytes that are read, by file."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.read: dict[str, int] = {}

    def open(self, name: str) -> OpenFile:
        opened, read = super().open(name), self.read

        class Counted:
            def read(self, at: int, count: int) -> bytes:
                data = opened.read(at, count)
                read[name] = read.get(name, 0) + len(data)
                return data

            def close(self) -> None:
                opened.close()

        return Counted()


def drained(tmp_path: Path) -> tuple[Counting, list[str]]:
    """A spool of four sealed files of 50 to 60 KB and a current one; what is alive stands in the last two."""
    history = History("documents", f"{ROOMY}\n{NEVER_REWRITTEN}")
    for number in range(4):
        history.run([("burst", 400), ("take", 400 if number < 3 else 350), ("turn", 1), ("seal",)])
    history.run([("open", 3), ("burst", 5)])
    place = Counting(spill(history.world.disk, tmp_path / "spool"))
    return place, [segment.file for segment in segments_in(place)]


def test_of_a_file_with_nothing_alive_in_it_the_last_block_is_read_and_no_more(tmp_path: Path) -> None:
    place, files = drained(tmp_path)
    found = rows(place)
    assert len(found) == 1 + 50 + 5 and {row["file"] for row in found} == set(files[-2:])
    assert all(0 < place.read[name] <= 4096 for name in files[:3])
    place.read.clear()
    assert rows(place, READING_ALL) == found
    assert all(place.read[name] > 20_000 for name in files[:3])
    assert not any(".staniel" in name for name in place.read)


def test_sidecars_are_found_in_a_folder_that_pyarrow_reads(tmp_path: Path) -> None:
    place, _ = drained(tmp_path)
    remote = RemoteFolder(f"file://{place.path}")
    assert rows(remote) == rows(place)
    (tmp_path / "spool" / "q.1").write_bytes(b"\xff")  # in front of all others
    found = rows(remote, Reading(on_corrupt=PERMISSIVE))
    assert found == rows(place, Reading(on_corrupt=PERMISSIVE, use_summaries=False))


def harmed(path: Path, how: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "cut short": data[:middle],
            "a flipped bit": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :],
            "empty": b"",
            "rubbish": b"rubbish",
            "another version": data.replace(b"segment 1", b"segment 2"),
        }[how]
    )


@pytest.mark.parametrize("how", ["cut short", "a flipped bit", "empty", "rubbish", "another version"])
def test_a_sidecar_that_cannot_be_read_is_as_if_it_were_not_there(tmp_path: Path, how: str) -> None:
    place, files = drained(tmp_path)
    expected = rows(place, READING_ALL)
    for name in files[:4]:
        harmed(Path(kestrel_files.sidecar_path(place.path, name)), how)
        assert rows(place) == expected


def test_a_sidecar_of_another_file_is_not_believed(tmp_path: Path) -> None:
    place, files = drained(tmp_path)
    expected = rows(place, READING_ALL)
    own, other = (Path(kestrel_files.sidecar_path(place.path, name)) for name in files[:2])
    other.rename(own)
    assert rows(place) == expected
    data = (tmp_path / "spool" / files[2]).read_bytes()
    (tmp_path / "spool" / files[2]).write_bytes(data.replace(b"\1" * 9, b"\1" * 8 + b"\3"))  # of the same size
    assert rows(place) == rows(place, READING_ALL) != expected


def test_a_file_that_a_sidecar_speaks_of_and_that_is_gone_is_missed(tmp_path: Path) -> None:
    place, files = drained(tmp_path)
    segments = segments_in(place)
    (tmp_path / "spool" / files[0]).unlink()
    with pytest.raises(Exception, match=r"q\.\d+ is not there: the file was rotated, packed"):
        rows(place, TRUSTING, segments)
    assert rows(place, Reading(on_corrupt=PERMISSIVE)) == rows(
        place, Reading(on_corrupt=PERMISSIVE, use_summaries=False)
    )


def test_damage_where_nothing_is_alive_is_not_met_and_damage_among_what_is_alive_is(tmp_path: Path) -> None:
    place, files = drained(tmp_path)
    expected = rows(place)
    for name in files[:3]:
        path = tmp_path / "spool" / name
        data = path.read_bytes()
        path.write_bytes(data[:9000] + bytes([255]) * 900 + data[9900:])
    assert rows(place) == expected
    with pytest.raises(CorruptJournal, match="onCorrupt=permissive"):
        rows(place, READING_ALL)
    path = tmp_path / "spool" / files[3]
    data = path.read_bytes()
    path.write_bytes(data[:31_000] + bytes([255]) * 900 + data[31_900:])
    with pytest.raises(CorruptJournal, match=rf"{files[0]}: byte 9\d\d\d"):
        rows(place)
    for on_corrupt in PERMISSIVE, OnCorrupt.QUARANTINE:
        assert rows(place, Reading(on_corrupt=on_corrupt)) == rows(
            place, Reading(True, on_corrupt, use_summaries=False)
        )


def test_records_among_what_is_alive_that_are_others_than_were_written_are_not_taken_for_these(tmp_path: Path) -> None:
    place, files = drained(tmp_path)
    path = tmp_path / "spool" / files[3]
    data = path.read_bytes()
    at = data.index(b"\x02", 390 * 81)  # one of the last items: as many removals in its place
    path.write_bytes(data[:at] + b"\1" * 81 + data[at + 81 :])
    assert rows(place) == rows(place, READING_ALL)


def test_only_whole_files_from_the_first_one_on_are_taken_by_their_sidecars(tmp_path: Path) -> None:
    place, files = drained(tmp_path)
    segments = segments_in(place)
    for at, name in enumerate(files[:4]):
        (ops,) = FORMAT.view("ops")(place, Part("q", [segments[at]]), TRUSTING)
        offsets = ops["offset"].to_pylist()
        for end in 0, offsets[100], offsets[-1], segments[at].end:
            cut = upto(segments, {"file": name, "at": end})
            assert rows(place, TRUSTING, cut) == rows(place, READING_ALL, cut)
            rest = since(segments, {"file": name, "at": end or offsets[1]})
            place.read.clear()
            assert rows(place, TRUSTING, rest) == rows(place, READING_ALL, rest)
            assert not any(".staniel" in read for read in place.read)
    for moment in sorted({row["addTime"] for row in rows(place)}):
        cut = FORMAT.until(place, segments, int(moment.timestamp() * 1000))
        assert rows(place, TRUSTING, cut) == rows(place, READING_ALL, cut)


def test_the_files_of_a_real_server_tell_what_it_then_hands_out(tmp_path: Path) -> None:
    config = "queues.q.max_memory_size = 20000\n"
    with running(tmp_path / "server", config=config) as server, Wire(server.address) as wire:
        for number in range(900):
            assert wire.put("q", b"%d" % number * 20, b"%d 0" % (number % 3)) == b"STORED"
        for _ in range(700):
            wire.get("q")
        assert wire.get("q/open") and wire.ask(b"get q/abort") == b"END"
        sealed = sorted(path.name for path in server.spool.glob("q.*"))
        own = server.spool / ".staniel" / "segments"
        assert len(sealed) > 2 and until(lambda: sorted(path.name for path in own.iterdir()) == sealed)
        place = Counting(server.spool)
        found = rows(place)
        assert sum(".staniel" in name for name in place.read) == len(sealed) and found == rows(place, READING_ALL)
        for row in found:
            head = wire.ask(b"gets q").split()
            assert head == [b"VALUE", b"q", b"%d" % row["flags"], b"%d" % row["size"], b"%d" % row["id"]]
            assert wire.hear(row["size"] + 7) == row["value"] + b"\r\nEND\r\n"
        assert wire.get("q") is None
