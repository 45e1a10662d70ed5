"""The views of Kestrel journals say what replay says, whatever the files' cuts and damage. No Spark here."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings

from staniel.journal.errors import CorruptRecord, TruncatedRecord
from staniel.journal.kestrel import records
from staniel.pipeline.formats.base import CorruptJournal, JournalSegment, OnCorrupt, Part, Reading
from staniel.pipeline.formats.kestrel.adapter import KestrelAdapter
from staniel.pipeline.lake.folders import LocalFolder
from staniel.queues.config import JournalDialect
from tests.broker.test_delays import put
from tests.pipeline.spools import contents, history, replayed, write
from tests.pipeline.test_sidecars import spill
from tests.support.records import DAMAGED, NOW_MS, addx, named, with_xid
from tests.support.streams import asks
from tests.support.world import World

FORMAT = KestrelAdapter()
FAIL = Reading()
PERMISSIVE = Reading(on_corrupt=OnCorrupt.PERMISSIVE)


def rows(folder: Path, view: str, reading: Reading = FAIL, queue: str = "q") -> list[dict[str, object]]:
    place = LocalFolder(str(folder))
    segments = FORMAT.queues(place.list())[queue]
    batches = FORMAT.view(view)(place, Part(queue, segments), reading)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("dialect", JournalDialect)
@pytest.mark.parametrize("files", [1, 3])
def test_the_state_is_what_replay_finds(tmp_path: Path, dialect: JournalDialect, files: int) -> None:
    for seed in range(4):
        folder = tmp_path / str(seed)
        paths = write(folder, "q", history(seed, 4000, dialect), files)
        found = rows(folder, "state")
        told = [(row["state"], row["value"], row["flags"], row["deliveries"], row["xid"], row["id"]) for row in found]
        assert told == contents(replayed(paths))
        line = [row["position"] for row in found if row["state"] != "open"]
        assert line == list(range(len(line)))


def test_only_open_reads_have_a_transaction_id_whatever_the_item_s_record_has(tmp_path: Path) -> None:
    opened = [named(7, xid, b"%d" % xid) + b"\3" for xid in (5, 6)]
    (tmp_path / "q").write_bytes(b"".join(opened) + named(7, 8, b"8") + with_xid(5, 5))
    found = [(row["state"], row["value"], row["xid"]) for row in rows(tmp_path, "state")]
    assert found == [("returned", b"5", None), ("queued", b"8", None), ("open", b"6", 6)]


def test_an_item_at_rest_until_its_delay_ends_is_no_open_read_and_was_not_delivered(tmp_path: Path) -> None:
    world = World("")
    for delay_ms in (5000, 9000):
        assert put(world, delay_ms, str(delay_ms)) == "STORED"
    assert asks(world, "set q 0 0 3", "now") == "STORED" and asks(world, "get q/open").split()[4] == "now"
    found = [
        (row["state"], row["value"], row["deliveries"]) for row in rows(spill(world.disk, tmp_path / "s"), "state")
    ]
    assert sorted(found) == [("delayed", b"5000", 0), ("delayed", b"9000", 0), ("open", b"now", 1)]


def test_the_state_without_values_is_the_same_without_values(tmp_path: Path) -> None:
    write(tmp_path, "q", history(7, 3000), 2)
    with_values, without = rows(tmp_path, "state"), rows(tmp_path, "state", FAIL.without_values())
    assert [row | {"value": None} for row in with_values] == without


@pytest.mark.parametrize("files", [1, 3])
def test_items_end_as_replay_ends_them(tmp_path: Path, files: int) -> None:
    paths = write(tmp_path, "q", history(3, 5000), files)
    found = rows(tmp_path, "items")
    alive = {row[1]: row for row in contents(replayed(paths))}
    for row in found:
        if row["state"] == "done":
            assert row["value"] not in alive and row["endedBy"] in ("remove", "confirm")
        else:
            state, _, flags, deliveries, _, item_id = alive.pop(row["value"])
            assert (row["state"], row["flags"], row["deliveries"], row["id"]) == (state, flags, deliveries, item_id)
    assert not alive


@settings(max_examples=100, deadline=None)
@given(data=DAMAGED)
def test_any_bytes_become_the_rows_that_the_decoder_finds_and_end_where_it_does(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "q").write_bytes(data)
    expected, damages = [], list[tuple[int, str]]()
    at = 0
    while at < len(data):
        try:
            record = records.decode(data, at, len(data), 0)
        except TruncatedRecord:
            break  # a torn end, which no row tells
        except CorruptRecord as error:
            damages.append((error.at, error.why))
            break
        value = record.payload(data) if record.size >= 0 else None
        expected.append((at, value, record.xid if record.op not in (0, 1, 2, 3) else None))
        listed = record.listed or []
        expected += [(each.payload_at - 25, each.payload(data), each.xid) for each in listed]
        at = record.stop
    found = rows(folder, "ops", PERMISSIVE)
    told = [(row["offset"], row["value"], row["xid"]) for row in found if row["_corrupt"] is None]
    assert told == expected
    assert [(row["offset"], row["_corrupt"]) for row in found if row["_corrupt"] is not None] == damages
    assert len(rows(folder, "items", PERMISSIVE)) == sum(
        row["op"] in ("add", "add_xid", "continue") for row in found if row["_corrupt"] is None
    )


def test_parts_that_are_cut_anywhere_make_the_same_rows(tmp_path: Path) -> None:
    write(tmp_path, "q", history(5, 4000), 1)
    place = LocalFolder(str(tmp_path))
    (segment,) = FORMAT.queues(place.list())["q"]
    whole = rows(tmp_path, "ops")
    cuts = FORMAT.cuts(place, segment, 5)
    assert 3 <= len(cuts) <= 4
    bounds = [(0, 0), *cuts, (segment.end, 0)]
    parts = [JournalSegment("q", "q", low, high, as_of=as_of) for (low, as_of), (high, _) in pairwise(bounds)]
    pieces = [batch for part in parts for batch in FORMAT.view("ops")(place, Part("q", [part]), FAIL)]
    assert pa.Table.from_batches(pieces).to_pylist() == whole
    again = [FORMAT.as_of(place, JournalSegment("q", "q", at, segment.end)) for at, _ in cuts]
    assert again == [as_of for _, as_of in cuts]


def damaged(folder: Path, tail: bytes, archive: bool) -> bytes:
    """A journal of three items and a damaged end; what is unreadable."""
    name = "q.5" if archive else "q"
    (folder / name).write_bytes(addx(b"a") + addx(b"b") + b"\1" + addx(b"c") + tail)
    if archive:
        (folder / "q").write_bytes(addx(b"d"))
    return tail


def test_damage_fails_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    damaged(tmp_path, b"\xff rubbish", archive=True)
    with pytest.raises(
        CorruptJournal, match=r"q\.5: byte 67: unknown opcode 255 \(9 bytes unread\).*onCorrupt=permissive"
    ):
        rows(tmp_path, "ops")


def test_permissive_tells_of_damage_in_a_row_and_goes_on_with_the_next_file(tmp_path: Path) -> None:
    damaged(tmp_path, b"\xff rubbish", archive=True)
    found = rows(tmp_path, "ops", PERMISSIVE)
    assert [row["op"] for row in found] == ["add", "add", "remove", "add", None, "add"]
    assert (found[4]["offset"], found[4]["_corrupt"]) == (67, "unknown opcode 255")
    assert [row["value"] for row in rows(tmp_path, "state", PERMISSIVE)] == [b"b", b"c", b"d"]


def test_quarantine_keeps_the_unreadable_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir()
    tail = damaged(folder, b"\xff rubbish", archive=True)
    rows(folder, "ops", Reading(on_corrupt=OnCorrupt.QUARANTINE, quarantine=str(tmp_path / "bad")))
    assert (tmp_path / "bad" / "q.5@67").read_bytes() == tail


def test_the_torn_end_of_the_file_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    damaged(tmp_path, addx(b"torn")[:-2], archive=False)
    assert [row["op"] for row in rows(tmp_path, "ops")] == ["add", "add", "remove", "add"]


def test_a_pack_stands_for_what_it_covers(tmp_path: Path) -> None:
    for name, value in {"q.5": b"old", "q.7": b"old too", "q.7.pack": b"packed", "q.9": b"new", "q": b"newest"}.items():
        (tmp_path / name).write_bytes(addx(value))
    assert [row["value"] for row in rows(tmp_path, "state")] == [b"packed", b"new", b"newest"]


def test_a_summary_that_needs_the_files_before_is_made_after_them(tmp_path: Path) -> None:
    (tmp_path / "q.5").write_bytes(addx(b"a") + addx(b"b") + b"\3")
    (tmp_path / "q").write_bytes(b"\3" + with_xid(6, 1))
    first, second = rows(tmp_path, "summaries")
    assert (first["added"], first["opened"], first["tail"]) == (2, 1, "clean")
    assert (second["added"], second["opened"], second["tail"], second["error"]) == (0, 1, "clean", None)


def test_a_state_at_a_time_ends_with_the_items_of_that_time(tmp_path: Path) -> None:
    (tmp_path / "q.5").write_bytes(addx(b"a", 100) + addx(b"b", 200) + b"\1" + addx(b"c", 300))
    (tmp_path / "q").write_bytes(b"\1" + addx(b"d", 400))
    place = LocalFolder(str(tmp_path))
    segments = FORMAT.until(place, FORMAT.queues(place.list())["q"], 250)
    batches = FORMAT.view("state")(place, Part("q", segments), FAIL)
    assert [row["value"] for batch in batches for row in batch.to_pylist()] == [b"b"]


def test_a_pack_s_stand_ins_are_rows_of_ops_that_say_so_and_are_no_items(tmp_path: Path) -> None:
    opened = named(7, 9, b"", 0) + b"\3"
    (tmp_path / "q.7.pack").write_bytes(opened + addx(b"", 0) * 2 + addx(b"packed") + addx(b"", NOW_MS + 1))
    (tmp_path / "q").write_bytes(with_xid(6, 9) + b"\1\1" + addx(b"new", NOW_MS + 2))
    found = rows(tmp_path, "ops")
    told = [(row["op"], row["value"], row["size"], row["flags"]) for row in found]
    nothing = ("stand_in", None, None, None)
    assert told[0] == nothing and told[1][0] == "reserve" and told[2:4] == [nothing, nothing]
    assert told[4:6] == [("add", b"packed", 6, 0), ("add", b"", 0, 0)]
    assert [(row["value"], row["state"]) for row in rows(tmp_path, "items")] == [
        (b"packed", "queued"),
        (b"", "queued"),
        (b"new", "queued"),
    ]
    state = rows(tmp_path, "state")
    assert [row["value"] for row in state] == [b"packed", b"", b"new"]
    assert [row["id"] for row in state] == [row["id"] for row in rows(tmp_path, "items")]
    (tmp_path / "q").unlink()  # as where endingOffsets leaves it out
    assert [row["value"] for row in rows(tmp_path, "state")] == [b"packed", b""]
