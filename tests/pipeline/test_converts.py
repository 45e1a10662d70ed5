"""Converting the queues of a spool: what is said of files that cannot be read. No Spark here: a task is a function."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC, encode_put, encode_read_head
from staniel.journal.tools import convert as converting
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.lake.folders import LocalFolder
from staniel.pipeline.tasks.convert import Converted, convert_spool
from staniel.queues.config import Format
from staniel.queues.item import Item
from tests.support.process import run_staniel
from tests.support.records import NOW_MS, addx


def converted(spool: Path, wanted: Format) -> Converted:
    (one,) = convert_spool((str(spool), "", wanted, NOW_MS))
    return one


def test_a_damaged_queue_is_converted_as_far_as_it_can_be_read_and_the_rest_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.5").write_bytes(addx(b"a") + b"\xff" + addx(b"lost"))
    (tmp_path / "jobs").write_bytes(addx(b"b"))
    one = converted(tmp_path, Format.LIBKESTREL)
    assert (one.queue, one.items, one.is_whole) == ("jobs", 2, False)
    (line,) = one.left
    assert line.startswith("jobs.5: byte 22, 26 bytes: unknown opcode 255; left behind, kept as ")
    assert Path(line.rpartition(" ")[2]).read_bytes() == b"\xff" + addx(b"lost")


def test_a_damaged_segment_is_named_too(tmp_path: Path) -> None:
    puts = [encode_put(Item(b"item", NOW_MS), n, 0) for n in (1, 2)]
    (tmp_path / "jobs.5").write_bytes(SEGMENT_MAGIC + puts[0] + b"\xff" * 40)
    (tmp_path / "jobs.read.").write_bytes(READER_MAGIC + encode_read_head(0))
    one = converted(tmp_path, Format.KESTREL)
    assert (one.items, one.is_whole, len(one.left)) == (1, False, 1) and one.left[0].startswith(
        "jobs.5: byte 33, 40 bytes: "
    )


def test_the_torn_end_of_a_file_that_was_being_written_is_named_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a") + addx(b"torn")[:-2])
    one = converted(tmp_path, Format.LIBKESTREL)
    assert (one.items, one.is_whole, len(one.left)) == (1, True, 1)


def test_the_command_without_spark_says_so_and_fails(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a") + b"\xff" * 30)
    done = run_staniel("journal", "convert", str(tmp_path), "--queue", "jobs", "--to", "libkestrel")
    assert done.returncode == 1 and "1 items moved" in done.stdout
    assert "jobs: byte 22, 30 bytes: unknown opcode 255; left behind, kept as " in done.stderr


def test_a_spool_whose_conversion_is_not_over_is_no_shorter_queue_but_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("jobs", "mail"):
        (tmp_path / queue).write_bytes(addx(b"a"))

    def killed(*_: object) -> None:
        (tmp_path / "jobs").rename(tmp_path / ".staniel" / "jobs")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(converting, "carry_out", killed)
        with pytest.raises(KeyboardInterrupt):
            converted(tmp_path, Format.LIBKESTREL)
    for wanted in ("auto", "kestrel", "libkestrel"):
        with pytest.raises(ValueError, match=r"a conversion in .* is not over.*convert again or start a server"):
            list_segments(LocalFolder(str(tmp_path)), wanted)
    (tmp_path / ".staniel" / "jobs").rename(tmp_path / "jobs")
    convert_spool((str(tmp_path), "", Format.LIBKESTREL, NOW_MS))
    assert sorted(list_segments(LocalFolder(str(tmp_path)), "libkestrel")[1]) == ["jobs", "mail"]
