"""The jobs of `staniel pipeline`, in a real Spark: what they write, and that they go on where they stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.errors import Flaw
from staniel.journal.kestrel.sidecar import CHECKSUM_MISMATCH
from staniel.pipeline.report.figures import gather
from staniel.pipeline.report.page import write as write_page
from staniel.pipeline.tasks import summarise as summarise_module
from staniel.pipeline.tasks.archive import archive
from staniel.pipeline.tasks.convert import convert
from staniel.pipeline.tasks.pack import SpoolInUse, pack
from staniel.pipeline.tasks.refill import items_of, refill
from staniel.pipeline.tasks.verify import verify
from staniel.queues.config import Format, JournalDialect
from tests.pipeline.spools import contents, history, replayed, write
from tests.pipeline.test_drain import server_address
from tests.pipeline.test_live_source import taken
from tests.pipeline.test_sidecars import long_history, spill
from tests.support.process import running
from tests.support.records import addx
from tests.support.records import state as state_in_words


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    write(folder, "jobs", history(11, 3000), 4)
    write(folder, "mail", history(12, 1500, JournalDialect.KESTREL_24), 3)
    return folder


def files(spool: Path, queue: str) -> list[Path]:
    return [*sorted(spool.glob(f"{queue}.*")), spool / queue]


def test_a_state_merged_from_segments_is_the_state_read_in_order(
    spark: SparkSession, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summarise_module, "SINGLE_BYTES", 0)  # every segment by itself
    found = pipeline.state(spark, str(spool)).orderBy("queue", "state", "position", "xid").collect()
    ordered = spark.read.format("staniel-journal").option("view", "state").load(str(spool))
    assert found == ordered.orderBy("queue", "state", "position", "xid").collect()
    assert len(found) == sum(len(contents(replayed(files(spool, queue)))) for queue in ("jobs", "mail"))


def test_a_state_of_segments_with_sidecars_is_that_of_segments_without(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = spill(long_history(7).world.disk, tmp_path / "spool")
    monkeypatch.setattr(summarise_module, "SINGLE_BYTES", 0)
    order = "state", "position", "xid"
    expected = pipeline.state(spark, str(spool), useSummaries="false").orderBy(*order).collect()
    assert pipeline.state(spark, str(spool)).orderBy(*order).collect() == expected
    assert spark.read.format("staniel-journal").load(str(spool), view="state").orderBy(*order).collect() == expected
    path = sorted(spool.glob("q.*"))[0]
    data = path.read_bytes()
    path.write_bytes(data[:99_000] + bytes([255]) * 900 + data[99_900:])  # where nothing is alive
    assert pipeline.state(spark, str(spool)).orderBy(*order).collect() == expected
    path = sorted(spool.glob("q.*"))[-1]
    data = path.read_bytes()
    path.write_bytes(data[:99_000] + bytes([255]) * 900 + data[99_900:])
    damaged = {"onCorrupt": "permissive"}
    left = pipeline.state(spark, str(spool), **damaged).orderBy(*order).collect()
    assert left == pipeline.state(spark, str(spool), useSummaries="false", **damaged).orderBy(*order).collect()


def test_a_spool_with_sidecars_packs_to_the_same_state(spark: SparkSession, tmp_path: Path) -> None:
    spool = spill(long_history(8).world.disk, tmp_path / "spool")
    before = state_in_words(replayed(files(spool, "q")))
    (packed,) = pack(spark, str(spool), {}, JournalDialect.DOCUMENTS)
    assert packed.files > 3 and packed.after_bytes < packed.before_bytes / 2
    assert state_in_words(replayed(files(spool, "q"))) == before
    assert list((spool / ".staniel" / "segments").iterdir()) == []


@pytest.mark.parametrize("dialect", JournalDialect)
def test_a_packed_spool_replays_to_the_same_state(spark: SparkSession, spool: Path, dialect: JournalDialect) -> None:
    before = {queue: state_in_words(replayed(files(spool, queue))) for queue in ("jobs", "mail")}
    packed = pack(spark, str(spool), {}, dialect)
    assert [(each.queue, each.files) for each in packed] == [("jobs", 3), ("mail", 2)]
    assert all(each.after_bytes < each.before_bytes for each in packed)
    assert all(len(files(spool, queue)) == 2 for queue in before)
    assert {queue: state_in_words(replayed(files(spool, queue))) for queue in before} == before


def test_a_spool_that_a_server_has_open_is_not_packed(spark: SparkSession, spool: Path) -> None:
    disk = OsFs()
    disk.make_folder(str(spool / ".staniel"))
    disk.lock(str(spool / ".staniel" / "lock"))
    with pytest.raises(SpoolInUse, match="stop it first"):
        pack(spark, str(spool), {}, JournalDialect.DOCUMENTS)
    disk.close()


def test_verification_names_the_damaged_file_and_no_other(spark: SparkSession, spool: Path) -> None:
    damaged = sorted(spool.glob("jobs.*"))[1]
    size = damaged.stat().st_size
    damaged.write_bytes(damaged.read_bytes() + b"\xff rubbish")
    found = verify(spark, str(spool), {})
    assert len(found) == 7
    assert [(each.file, each.at, each.wrong) for each in found if each.bad] == [
        (damaged.name, size, "unknown opcode 255")
    ]


def test_verification_finds_a_flipped_bit_in_an_item_where_there_are_checksums(
    spark: SparkSession, tmp_path: Path
) -> None:
    spool = spill(long_history(9).world.disk, tmp_path / "spool")
    names = [path.name for path in files(spool, "q")]
    assert [(each.file, each.flaws) for each in verify(spark, str(spool), {})] == [
        *((name, []) for name in names[:-1]),
        ("q", None),
    ]
    path = spool / names[1]
    data = path.read_bytes()
    at = data.index(b"xxxxxx", 100_000)
    path.write_bytes(data[:at] + b"y" + data[at + 1 :])
    (bad,) = [each for each in verify(spark, str(spool), {}) if each.bad]
    block = at // 16384 * 16384
    assert (bad.file, bad.wrong, bad.flaws) == (path.name, "", [Flaw(block, 16384, CHECKSUM_MISMATCH)])
    first, second = bad.lines()
    assert first.endswith("items: damaged") and second == f"{path.name}: byte {block}, 16384 bytes: {CHECKSUM_MISMATCH}"


def test_an_archive_takes_only_what_is_new_and_fills_queues_again(spark: SparkSession, tmp_path: Path) -> None:
    spool, out = tmp_path / "spool", tmp_path / "lake"
    scribe = history(21, 800)
    write(spool, "jobs", scribe, 1)
    told: list[dict[str, object]] = []
    first = archive(spark, str(spool), str(out), {}, told.append)
    for step in range(50):
        scribe.step(1_700_000_100_000 + step, "add", b"late %d" % step, 0)
    write(spool, "jobs", scribe, 1)
    second = archive(spark, str(spool), str(out), {"maxBytesPerTrigger": "512"}, told.append)
    assert first > 800 and second == 50 and [each["batch"] for each in told] == list(range(1, len(told) + 1))
    lake = spark.read.parquet(str(out))
    rows = spark.read.format("staniel-journal").load(str(spool))
    columns = ["file", "offset", "op", "xid", "value", "addTime", "flags"]
    assert lake.select(*columns).exceptAll(rows.select(*columns)).count() == 0 and lake.count() == first + second
    assert {row.queue for row in lake.select("queue").distinct().collect()} == {"jobs"}
    with running(tmp_path / "server") as server:
        rows = items_of(spark, str(out), True, {})
        options = {"servers": server_address(server), "queue": "again"}
        assert refill(rows, "2023-11-14T22:15:00", "", ["jobs"], options, 0) == 50
        assert [item.data for item in taken(server_address(server), "again")] == [b"late %d" % n for n in range(50)]


def test_a_report_counts_what_replay_counts_and_draws_it(spark: SparkSession, spool: Path, tmp_path: Path) -> None:
    found = gather(spark, str(spool), {})
    assert [row.queue for row in found.rows] == ["jobs", "mail"]
    for row in found.rows:
        held = contents(replayed(files(spool, row.queue)))
        assert (row.depth, row.opens) == (len(held), sum(each[0] == "open" for each in held))
        assert row.added - row.removed == row.depth
        line = found.series["queues"][row.queue]
        assert line.depth is not None and line.removed is not None
        assert (line.depth[-1], sum(line.added), sum(line.removed)) == (row.depth, row.added, row.removed)
    total = found.series["all"][""]
    assert total.depth is not None and total.depth[-1] == sum(row.depth for row in found.rows)
    page = write_page(found, tmp_path / "report")
    assert page.name == "report.html" and 1_000_000 < page.stat().st_size < 6_000_000


def test_a_fleet_is_converted_and_back_and_what_is_refused_says_why(spark: SparkSession, tmp_path: Path) -> None:
    spools = [tmp_path / "one", tmp_path / "two"]
    for number, spool in enumerate(spools):
        for queue in ("jobs", "mail"):
            (spool / queue).parent.mkdir(exist_ok=True)
            (spool / queue).write_bytes(b"".join(addx(b"%d %d" % (number, at)) for at in range(20)))
    busy = OsFs()
    busy.make_folder(str(tmp_path / "busy" / ".staniel"))
    busy.lock(str(tmp_path / "busy" / ".staniel" / "lock"))
    paths = [*map(str, spools), str(tmp_path / "busy")]
    first = convert(spark, paths, ["j*"], Format.LIBKESTREL)
    busy.close()
    assert [(each.queue, each.items) for each in first] == [("jobs", 20), ("jobs", 20), ("", 0)]
    assert "stop it first" in first[2].refusal
    assert {each.items for each in convert(spark, paths[:2], ["jobs"], Format.LIBKESTREL)} == {-1}
    assert [each.items for each in convert(spark, paths[:2], ["jobs"], Format.KESTREL)] == [20, 20]
    rows = spark.read.format("staniel-journal").options(view="state", queue="jobs").load(paths[1]).collect()
    assert [bytes(row.value) for row in rows] == [b"1 %d" % at for at in range(20)]


def test_what_a_pack_left_for_consumed_items_is_not_put_again(spark: SparkSession, tmp_path: Path) -> None:
    spool, out, old = tmp_path / "spool", tmp_path / "lake", tmp_path / "old"
    spool.mkdir()
    (spool / "q.7.pack").write_bytes(addx(b"", 0) * 3 + addx(b"packed") + addx(b""))
    (spool / "q").write_bytes(b"\1\1" + addx(b"new"))
    assert archive(spark, str(spool), str(out), {}, lambda _: None) == 8
    rows = spark.read.parquet(str(out))
    made_earlier = "if(op = 'stand_in', 'add', op) op", "nvl(value, binary('')) value", "nvl(size, bigint(0)) size"
    rows.selectExpr("queue", *made_earlier, "file", "offset", "addTime", "expireTime", "flags").write.parquet(str(old))
    everything = {"view": "ops"}
    for source in (items_of(spark, str(out), True, {}), items_of(spark, str(old), True, {}),
                   items_of(spark, str(spool), False, everything)):  # fmt: skip
        assert sorted(bytes(row.value) for row in source.collect()) == [b"", b"new", b"packed"]
