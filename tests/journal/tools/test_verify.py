"""What an inspection of a spool finds: every flipped bit that a checksum covers, every cut, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.disk.replace_file import replace_file
from staniel.journal.errors import Flaw
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.sidecar import BEHIND, CHECKSUM_MISMATCH, MISSING, WRONG_SIDECAR, verify_checksums
from staniel.journal.spool_listing import MIXED, list_spool
from staniel.journal.tools.verify import Inspection, inspect
from staniel.journal.workq.dump import dump_segment
from staniel.sim.disk.disk import Disk
from tests.journal.kestrel.test_derived_effect import DIALECTS, MORE, STEPS, History, Steps
from tests.journal.kestrel.test_recovery_by_sidecars import without_sidecars
from tests.support.job_world import LOG
from tests.support.records import addx
from tests.support.spool import content_of, put_file
from tests.support.streams import SMALL, asks, fill
from tests.support.workq_log import Script, by_chance, everything
from tests.support.world import World

AMID = "the file ends inside a record"


def kestrel_disk() -> Disk:
    """Two sealed files of 17 and 21 blocks, and a current one."""
    history = History("documents", 'queues.q.max_memory_size = "1MB"\nqueues.q.max_journal_size = "1GB"')
    for count in 900, 1100:
        history.run([("burst", count), ("open", 2), ("abort", 0), ("seal",)])
    history.run([("burst", 9)])
    return history.world.disk


def stream_disk() -> Disk:
    """Segments of libkestrel's format with an item each, and the files of two readers."""
    world = World(SMALL)
    asks(world, "get q+a")
    fill(world, *(f"{number:040}" for number in range(6)))
    asks(world, "get q+a")
    return world.disk


def log_disk() -> Disk:
    script = Script()
    everything(script)
    return script.world.disk


def found_on(disk: Disk, folder: str = "s", *queues: str) -> dict[str, Inspection]:
    found = {each.path.partition("/")[2]: each for each in inspect(disk, folder, frozenset(queues))}
    for each in found.values():
        assert each.bytes == disk.size(each.path)
        assert all(flaw.why for flaw in each.flaws)
    return found


def damaged_in(disk: Disk, folder: str = "s") -> list[str]:
    return [name for name, each in found_on(disk, folder).items() if each.is_damaged]


def flawed_in(disk: Disk, folder: str = "s") -> list[str]:
    return [name for name, each in found_on(disk, folder).items() if each.flaws]


def changed(disk: Disk, path: str, data: bytes) -> Disk:
    left = disk.copy()
    replace_file(left, path, data)
    return left


def flipped(data: bytes, at: int, bit: int = 2) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, dialect=DIALECTS, more=MORE, at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_spool_of_kestrel_s_is_sound_and_each_flipped_bit_of_a_sealed_file_is_found(
    steps: Steps, dialect: str, more: str, at: float, bit: int
) -> None:
    history = History(dialect, more)
    history.run([*steps, ("burst", 3), ("seal",)])
    disk = history.world.disk
    found = found_on(disk)
    sealed = [segment.name for segment in history.log.segments.sealed]
    assert [name for name, each in found.items() if each.has_checksums] == sealed
    assert not flawed_in(disk)
    for name in sealed:
        data = content_of(disk, f"s/{name}")
        assert damaged_in(changed(disk, f"s/{name}", data + b"\1")) == [name]
        if data:
            assert damaged_in(changed(disk, f"s/{name}", flipped(data, int(len(data) * at), bit))) == [name]
            assert damaged_in(changed(disk, f"s/{name}", data[: int(len(data) * at)])) == [name]


def test_records_of_all_formats_are_counted() -> None:
    disk = kestrel_disk()
    assert [each.records for each in found_on(disk).values()] == [1 + 900 + 2 + 1, 1100 + 2 + 1, 9]
    assert [each.records for each in found_on(stream_disk(), "s", "q").values()][:3] == [1, 1, 1]
    log = log_disk()
    shown = [
        record for name, _ in log.list(LOG) if name.endswith(".log") for record in dump_segment(log, f"{LOG}/{name}")
    ]
    assert sum(each.records for each in found_on(log, LOG).values()) == len(shown) > 9


def test_neighbouring_damaged_blocks_are_one_place() -> None:
    disk = kestrel_disk()
    name = next(iter(found_on(disk)))
    data = content_of(disk, f"s/{name}")
    for at in (5000, 9000, 20_000, len(data) - 1):
        data = flipped(data, at)
    flaws = [flaw for flaw in found_on(changed(disk, f"s/{name}", data))[name].flaws if flaw.why == CHECKSUM_MISMATCH]
    last = len(data) // 4096 * 4096
    assert flaws == [
        Flaw(at, size, CHECKSUM_MISMATCH) for at, size in [(4096, 8192), (16384, 4096), (last, len(data) - last)]
    ]


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, 30_000])
def test_what_is_missing_at_the_end_of_a_sealed_file_or_was_added_is_told(count: int) -> None:
    disk = kestrel_disk()
    name = next(iter(found_on(disk)))
    data = content_of(disk, f"s/{name}")
    described = sidecar.load(disk, "s", name)
    assert described is not None
    for left, flaw in (
        (data[:-count], Flaw(len(data) - count, count, MISSING)),
        (data + bytes(count), Flaw(len(data), count, BEHIND)),
    ):
        assert verify_checksums(described, changed(disk, f"s/{name}", left), f"s/{name}") == [flaw]


def test_checksums_of_another_file_are_told_as_such() -> None:
    disk = kestrel_disk()
    name, other, _ = found_on(disk)
    data = content_of(disk, f"s/{other}")[: disk.size(f"s/{name}")]
    assert Flaw(0, len(data), WRONG_SIDECAR) in found_on(changed(disk, f"s/{name}", data))[name].flaws
    swapped = changed(disk, f"s/.staniel/segments/{name}", content_of(disk, f"s/.staniel/segments/{other}"))
    assert not flawed_in(swapped) and not found_on(swapped)[name].has_checksums


def test_without_checksums_only_what_cannot_be_read_is_found() -> None:
    disk = without_sidecars(kestrel_disk())
    name = next(iter(found_on(disk)))
    data = content_of(disk, f"s/{name}")
    payload, head = data.index(b"400."), data.index(b"400.") - 21
    assert not flawed_in(changed(disk, f"s/{name}", flipped(data, payload)))
    (flaw,) = found_on(changed(disk, f"s/{name}", flipped(data, head, 7)))[name].flaws
    assert flaw == Flaw(head, len(data) - head, "unknown opcode 130")


def test_of_the_file_that_is_written_to_a_torn_end_is_no_damage() -> None:
    disk = kestrel_disk()
    data = content_of(disk, "s/q")
    for cut in range(1, len(data)):
        left = changed(disk, "s/q", data[:-cut])
        assert not damaged_in(left)
        assert flawed_in(left) == ([] if cut % 81 == 0 else ["q"])
    assert damaged_in(changed(disk, "s/q", data + b"\xff")) == ["q"]
    assert damaged_in(changed(disk, "s/q", flipped(data, 81 * 4, 7))) == ["q"]


def test_of_libkestrel_s_files_the_newest_segment_and_readers_may_be_torn() -> None:
    disk = stream_disk()
    assert not flawed_in(disk)
    *older, newest, reader, _ = found_on(disk)
    assert reader == "q.read.a" and len(older) == 5
    for name in older:
        data = content_of(disk, f"s/{name}")
        assert damaged_in(changed(disk, f"s/{name}", data[:-3])) == [name]
        assert damaged_in(changed(disk, f"s/{name}", b"\0" + data[1:])) == [name]
        assert damaged_in(changed(disk, f"s/{name}", data + bytes(9) + b"\1")) == [name]
        assert not flawed_in(changed(disk, f"s/{name}", data + bytes(300_000)))
    for name in newest, reader:
        data = content_of(disk, f"s/{name}")
        for size in range(len(data)):
            assert not damaged_in(changed(disk, f"s/{name}", data[:size]))
        assert flawed_in(changed(disk, f"s/{name}", data[:-3])) == [name]
        assert flawed_in(changed(disk, f"s/{name}", data[:3])) == [name]
    data = content_of(disk, f"s/{newest}")
    assert damaged_in(changed(disk, f"s/{newest}", data[:4] + b"\x86\xff\xff\xff\xff" + data[9:])) == [newest]


@pytest.mark.parametrize("seed", range(3))
def test_every_flipped_bit_and_every_cut_of_a_command_log_is_found(seed: int) -> None:
    script = Script()
    by_chance(seed)(script)
    disk = script.world.disk
    assert not flawed_in(disk, LOG)
    chance = random.Random(seed)
    *older, newest = found_on(disk, LOG)
    for name in chance.sample([*older, newest], 2):
        data = content_of(disk, f"{LOG}/{name}")
        for at in range(0, len(data), 3):
            left = changed(disk, f"{LOG}/{name}", flipped(data, at, chance.randrange(8)))
            assert flawed_in(left, LOG) == [name]
    data = content_of(disk, f"{LOG}/{older[0]}")
    assert damaged_in(changed(disk, f"{LOG}/{older[0]}", data[:-1]), LOG) == [older[0]]
    data = content_of(disk, f"{LOG}/{newest}")
    assert not any(damaged_in(changed(disk, f"{LOG}/{newest}", data[:size]), LOG) for size in range(len(data)))
    assert damaged_in(changed(disk, f"{LOG}/{newest}", data + b"\xff" * 40), LOG) == [newest]


def test_a_command_log_in_a_spool_is_looked_at_unless_queues_are_named() -> None:
    disk = kestrel_disk()
    log = log_disk()
    disk.make_folder("s/.staniel/cmdlog")
    for name in found_on(log, LOG):
        replace_file(disk, f"s/.staniel/cmdlog/{name}", content_of(log, f"{LOG}/{name}"))
    assert list(found_on(disk))[3:] == [f".staniel/cmdlog/{name}" for name in found_on(log, LOG)]
    assert len(found_on(disk, "s", "q")) == 3 and found_on(disk, "s", "other") == {}


def test_files_of_both_formats_under_one_name_are_each_read_in_their_own() -> None:
    disk = stream_disk()
    segments = found_on(disk)
    put_file(disk, "q", addx(b"mine"))
    put_file(disk, "q.3", addx(b"mine"))
    assert list_spool(disk, "s").mixed["q"] == MIXED
    assert set(found_on(disk)) == {"q", "q.3", *segments} and not flawed_in(disk)


def test_a_file_that_cannot_be_read_is_refused_and_not_damaged_and_the_others_are_read() -> None:
    disk = kestrel_disk()
    name = next(iter(found_on(disk)))
    disk.fail("read", name, 5, times=9)
    assert damaged_in(disk) == []
    refused = [each.refusal for each in inspect(disk, "s") if each.refusal]
    assert len(refused) == 1 and f"{name}: Input/output error; look at the disk" in refused[0], refused
