"""What is in a backup of a server that is at work: all queues as they were at one moment, whatever becomes of the files
meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.server.admin.asking import Operator, SpoolConnection
from tests.server.backup.copies import SMALL, back_up, drained, held, restored, staniel
from tests.support.job_world import job_id
from tests.support.process import Server, running, until
from tests.support.wire import Wire

PAD = b"." * 200


@contextmanager
def at_work(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """Threads that do this again and again until the block ends; what goes wrong in one fails the test."""
    stop, wrong = threading.Event(), list[BaseException]()

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stop)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not wrong, wrong


def goes_on(pairs: Pairs, put: int) -> bool:
    """Until so many more were put."""
    wanted = pairs.put + put
    return until(lambda: pairs.put > wanted)


def numbers(items: list[bytes]) -> list[int]:
    return [int(item.partition(b".")[0]) for item in items]


class Pairs:
    """Puts 1, 2, 3, … into one queue after the other, and takes half of them: the files are rotated and packed."""

    def __init__(self, server: Server, queues: tuple[str, ...]) -> None:
        self.server, self.queues = server, queues
        self.put = 0
        self.taken = 0

    def __call__(self, stop: threading.Event) -> None:
        with Wire(self.server.address) as wire:
            while not stop.is_set():
                number = self.put + 1
                for queue in self.queues:
                    assert wire.put(queue, b"%d%b" % (number, PAD)) == b"STORED"
                self.put = number
                if number % 4:
                    for queue in self.queues:
                        assert wire.get(queue) is not None
                    self.taken += 1


def check_pairs(found: dict[str, list[bytes]], pairs: Pairs, answered: tuple[int, int]) -> None:
    """All queues at one moment, not before what was answered when the backup began. An item of the second queue is put
    after that of the first, and taken after it.
    """
    put, taken = answered
    spans = []
    for queue in pairs.queues:
        items = numbers(found[queue])
        assert items == list(range(items[0], items[-1] + 1)), queue
        spans.append((items[0], items[-1]))
        assert items[-1] >= put and items[0] > taken
    (first, last), *others = spans
    for other_first, other_last in others:
        assert last - other_last in (0, 1) and first - other_first in (0, 1), spans


@pytest.mark.slow
def test_a_backup_of_a_server_at_work_has_all_queues_of_all_formats_at_one_moment(tmp_path: Path) -> None:
    with running(tmp_path / "server", "--sync", "os", config=SMALL) as server:
        queues = ("orders", "mail", "calls")
        pairs = Pairs(server, queues)
        answers = []
        with at_work(pairs):
            assert until(lambda: pairs.put > 500)
            for _ in range(5):
                answered = pairs.put, pairs.taken
                answers.append((back_up(server.spool, tmp_path / "dest"), answered))
                assert goes_on(pairs, 300)
        assert until(lambda: not held(server.spool))
        assert list(server.spool.glob("orders.*"))
    assert "0 faults" in staniel("backup", "verify", tmp_path / "dest").stdout
    for made, answered in answers:
        folder = restored(tmp_path / "dest", tmp_path / "copy", "--backup", made["id"])
        found = drained(folder, queues)
        check_pairs(found, pairs, answered)
        assert made["items"] == sum(map(len, found.values()))
        assert made["queues"] == 3


def test_no_item_on_its_way_between_two_queues_is_in_both_or_in_none(tmp_path: Path) -> None:
    items = 300
    with running(tmp_path / "server", config=SMALL) as server:
        operator = Operator(server.spool)
        with Wire(server.address) as wire:
            for number in range(items):
                assert wire.put("here", b"%d%b" % (number, PAD)) == b"STORED"

        def move(stop: threading.Event) -> None:
            while not stop.is_set():
                for source, target in (("here", "mail"), ("mail", "there"), ("there", "here")):
                    assert operator.ask("POST", f"/api/queues/{source}/move", {"to": target}).status == 200

        with at_work(move):
            made = [back_up(server.spool, tmp_path / "dest") for _ in range(4)]
    for each in made:
        found = drained(
            restored(tmp_path / "dest", tmp_path / "copy", "--backup", each["id"]), ("here", "mail", "there")
        )
        everywhere = sorted(number for queue in found.values() for number in numbers(queue))
        assert everywhere == list(range(items))


def test_what_was_deleted_or_renamed_while_it_was_copied_is_in_the_backup(tmp_path: Path) -> None:
    """The copier looks at the files that the server holds only after a queue is gone and another was rotated."""
    with running(tmp_path / "server", config=SMALL) as server, Wire(server.address) as wire:
        for number in range(30):
            assert wire.put("gone", b"%d" % number) == wire.put("stays", b"%d%b" % (number, PAD)) == b"STORED"
        connection = SpoolConnection(server.spool)
        connection.request("POST", "/api/backup", "{}", {"content-type": "application/json"})
        answer = connection.getresponse()
        lines = [answer.readline() for _ in range(3)]
        assert b'"items": 60' in lines[0]
        assert wire.ask(b"delete gone") == b"DELETED"
        assert not (server.spool / "gone").exists()
        for number in range(200):
            assert wire.put("stays", b"%d%b" % (number, PAD)) == b"STORED"
        assert list(server.spool.glob("stays.*"))
        names = held(server.spool)
        assert len(names) >= 2
        inodes = {(server.spool / ".staniel" / "held" / name).stat().st_ino for name in names}
        assert {path.stat().st_ino for path in server.spool.glob("stays*")} & inodes
        answer.close()
        connection.close()
        assert until(lambda: not held(server.spool))


def test_open_reads_and_jobs_come_back_as_a_start_gives_them_back(tmp_path: Path) -> None:
    with running(tmp_path / "server", config=SMALL) as server:
        with Wire(server.address) as wire, Wire(server.workq_address) as worker:
            for number in range(3):
                assert wire.put("orders", b"%d" % number) == wire.put("mail", b"%d" % number) == b"STORED"
            assert wire.get("orders/open") == b"0" and wire.get("mail/open") == b"0"
            for number in range(40):
                line = b"add %b work 60000 600000 200" % job_id(number).encode()
                assert worker.ask(line + b"\r\n" + PAD) == b"+OK"
            made = back_up(server.spool, tmp_path / "dest")
        assert (made["items"], made["jobs"]) == (6, 40)
        assert len(list(server.spool.glob(".staniel/cmdlog/*.log"))) > 1
    folder = restored(tmp_path / "dest", tmp_path / "copy")
    with running(folder, config=SMALL) as server, Wire(server.address) as wire:
        assert "40 jobs" in server.greeting
        for queue in ("orders", "mail"):
            assert [wire.get(queue) for _ in range(4)] == [b"0", b"1", b"2", None]


def test_a_command_log_elsewhere_comes_back_into_the_spool(tmp_path: Path) -> None:
    config = SMALL + f'cmdlog_path = "{tmp_path}/log"\n'
    with running(tmp_path / "server", config=config) as server:
        with Wire(server.workq_address) as worker:
            for number in range(40):
                line = b"add %b work 60000 600000 200" % job_id(number).encode()
                assert worker.ask(line + b"\r\n" + PAD) == b"+OK"
        assert back_up(server.spool, tmp_path / "dest")["jobs"] == 40
        assert until(lambda: not list((tmp_path / "log" / ".staniel-held").iterdir()))
        server.stop()
        at_rest = staniel("backup", tmp_path / "dest", "--config", server.config, "--spool", server.spool)
        assert "copied 1 file, " in at_rest.stdout  # the note of the clock, which the stop has written
    folder = restored(tmp_path / "dest", tmp_path / "copy")
    with running(folder, config=SMALL) as server:
        assert "40 jobs" in server.greeting


def test_a_redo_log_that_is_in_use_is_not_needed_by_the_copy(tmp_path: Path) -> None:
    config = SMALL.replace("[server]", '[server]\nredo_log = "1MB"')
    with running(tmp_path / "server", config=config) as server:
        pairs = Pairs(server, ("orders", "calls"))
        with at_work(pairs):
            version = server.spool / ".staniel" / "version"
            assert until(lambda: version.read_text().startswith("staniel-spool 2") and pairs.put > 100)
            answered = pairs.put, pairs.taken
            back_up(server.spool, tmp_path / "dest")
        server.kill()
        said = staniel("backup", tmp_path / "dest", "--spool", server.spool, code=1)
        assert "was not stopped cleanly" in said.stderr
    folder = restored(tmp_path / "dest", tmp_path / "copy")
    assert {path.name for path in (folder / "spool" / ".staniel").iterdir()} <= {
        "version", "lock", "intents", "paused", "status", "clock", "segments"
    }  # fmt: skip
    check_pairs(drained(folder, pairs.queues), pairs, answered)


def test_status_and_pauses_are_in_the_copy(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server, Wire(server.address) as wire:
        assert wire.put("orders", b"1") == b"STORED"
        assert wire.ask(b"pause orders") == b"OK"
        assert wire.ask(b"status readonly") == b"END"
        back_up(server.spool, tmp_path / "dest")
    with running(restored(tmp_path / "dest", tmp_path / "copy")) as server:
        assert "status readonly" in server.greeting and "1 paused queue" in server.greeting
