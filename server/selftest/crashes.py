"""The checks with a real server on the tested disk: it is killed under load, its files are torn, its writes and syncs
fail. After each accident every acknowledged item must be there exactly once.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from random import Random

from staniel.broker.broker import Broker
from staniel.broker.config.load import load
from staniel.journal.disk.fs import File, JournalFailure, SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import SpoolError
from staniel.queues.item import Item
from staniel.server.selftest.child import CONFIG, QUEUES, Child, ChildFailed
from staniel.server.selftest.findings import UNTRIED, CheckResult, Verdict, fail, ok, warning
from staniel.server.selftest.machine import CRASH_BYTES_MIN, CRASH_FILES_MIN, ROOM, has_room_for_crashes
from staniel.server.text import human_size

LIFE_S = (0.05, 0.4)
LIVES_MIN = 3
PIPELINE = 16
FILLER_BYTES = 200
TORN_ITEMS = 64
TORN_CUTS = 5
FILE_BYTES_MAX = 20 << 20  # above the ballast's 16 MB
AGAIN = "try another folder on this disk"
SOFTWARE = "this is the disk's fault or the program's: run it again, then report it with this line"
ONE_LONG_FILE = """
[queues.big]
max_memory_size = "1GB"
default_journal_size = "1GB"
max_journal_size = "8GB"
"""
QUEUE_OF_CUTS = "plain"


def crash(folder: str, seconds: float, random: Random) -> Iterator[CheckResult]:
    """Run each crash in a folder of its own below `folder`. Raises OSError: the disk fails."""
    if not has_room_for_crashes(folder):
        need = f"{human_size(CRASH_BYTES_MIN)} and {CRASH_FILES_MIN} files"
        yield warning(UNTRIED, f"not tried: the servers of this test take up to {need}", ROOM)
        return
    for name, check in (
        ("kill -9", lambda place: kills(place, seconds * 0.6, random)),
        ("torn files", lambda place: torn_files(place, random)),
        ("a write fails", failed_write),
        ("a sync fails", failed_sync),
    ):
        place = f"{folder}/{name.replace(' ', '_')}"
        try:
            result = check(place)
        except (ChildFailed, SpoolError, OSError) as error:
            result = fail(name, f"a server cannot work here: {error}", SOFTWARE)
        if result.verdict is Verdict.FAIL and not has_room_for_crashes(folder):  # others have filled the disk meanwhile
            result = fail(name, result.text, ROOM)
        yield result
        shutil.rmtree(place, ignore_errors=True)  # the next one has its room


class Books:
    """The record of replies. An item is `NUMBER:` and letters that follow from its number."""

    def __init__(self) -> None:
        self.number = 0
        self.kept: dict[str, set[int]] = {queue: set() for queue in QUEUES}  # answered STORED
        self.open: dict[str, set[int]] = {queue: set() for queue in QUEUES}  # not answered: may be there or not
        self.gone: dict[str, set[int]] = {queue: set() for queue in QUEUES}  # handed out for good
        self.wrong: list[str] = []

    def compare(self, queue: str, items: list[bytes]) -> None:
        """Compare a queue's items after a start with the replies; the comparison takes them all."""
        numbers = [number_of(item) for item in items]
        there = set(numbers)
        damaged = sum(number < 0 for number in numbers)
        lost, doubled = self.kept[queue] - there, len(numbers) - len(there) - max(0, damaged - 1)
        back = there & self.gone[queue]
        for count, what in (
            (damaged, "are damaged"),
            (len(lost), "are lost"),
            (doubled, "are there twice"),
            (len(back), "came back"),
        ):
            if count:
                self.wrong.append(f"{count} answered items of {queue} {what}")
        self.gone[queue] |= there
        self.kept[queue].clear()
        self.open[queue].clear()


def item_for(number: int) -> bytes:
    return b"%010d:" % number + bytes([97 + number % 26]) * FILLER_BYTES


def number_of(item: bytes) -> int:
    """Return an item's number; -1 if it is not an item that was put."""
    head = item.partition(b":")[0]
    return int(head) if head.isdigit() and item == item_for(int(head)) else -1


def kills(folder: str, seconds: float, random: Random) -> CheckResult:
    """Kill a server under load again and again. Raises ChildFailed, OSError."""
    books, lives = Books(), 0
    answered = 0
    until_s = time.monotonic() + seconds
    child = Child(folder)
    child.start()
    try:
        while lives < LIVES_MIN or time.monotonic() < until_s:
            answered += live(child, books, random.uniform(*LIFE_S))
            lives += 1
            child.start()
            client = child.client()
            for queue in QUEUES:
                books.compare(queue, client.drain(queue))
            client.close()
    finally:
        child.kill()
    if books.wrong:
        return fail("kill -9", f"after {lives} kills {'; '.join(books.wrong[:3])}", SOFTWARE)
    text = f"{lives} kills of a server under load, {answered:,} answers: each answered item was there, once"
    return ok("kill -9", text)


def live(child: Child, books: Books, seconds: float) -> int:
    """Put, take and close for some seconds; then kill the server with requests in flight. Return the number of
    replies.
    """
    answered, until_s = 0, time.monotonic() + seconds
    client = child.client()
    while True:
        sent: list[tuple[str, int]] = []
        for queue in QUEUES:
            for _ in range(PIPELINE // 4):
                books.number += 1
                books.open[queue].add(books.number)
                sent.append((queue, books.number))
        client.send(b"".join(_put(queue, number) for queue, number in sent))
        if is_last := time.monotonic() >= until_s:
            child.kill()
        for queue, number in sent:
            if client.line() == b"STORED":
                books.open[queue].discard(number)
                books.kept[queue].add(number)
                answered += 1
        if is_last:
            client.close()
            return answered
        for queue in QUEUES[:2]:
            if (item := client.item(queue)) is not None:
                books.kept[queue].discard(number_of(item))
                books.gone[queue].add(number_of(item))
                answered += 1


def _put(queue: str, number: int) -> bytes:
    item = item_for(number)
    return b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(item), item)


def torn_files(folder: str, random: Random) -> CheckResult:
    """Recover copies of a journal, cut at places where a power cut may cut it. Raises ChildFailed, OSError."""
    child = Child(f"{folder}/whole")
    child.start()
    try:
        client = child.client()
        client.send(b"".join(_put(QUEUE_OF_CUTS, number) for number in range(TORN_ITEMS)))
        if any(client.line() != b"STORED" for _ in range(TORN_ITEMS)):
            return fail("torn files", "puts are refused", SOFTWARE)
        client.close()
    finally:
        child.kill()
    journal = f"{folder}/whole/spool/{QUEUE_OF_CUTS}"
    size = os.path.getsize(journal)
    record, fs = size // TORN_ITEMS, OsFs()
    for _ in range(TORN_CUTS):
        cut = random.randrange(size)
        copy = Child(f"{folder}/torn")
        shutil.copytree(f"{folder}/whole/spool", f"{folder}/torn/spool", ignore=shutil.ignore_patterns("ballast"))
        fs.truncate(f"{folder}/torn/spool/{QUEUE_OF_CUTS}", cut)
        copy.start()
        try:
            client = copy.client()
            numbers = [number_of(item) for item in client.drain(QUEUE_OF_CUTS)]
            client.close()
        finally:
            copy.kill()
        if numbers != list(range(cut // record)):
            text = f"of a journal cut at byte {cut:,} {len(numbers)} items came back, and {cut // record} were whole"
            return fail("torn files", text, SOFTWARE)
        shutil.rmtree(f"{folder}/torn")
    return ok("torn files", f"{TORN_CUTS} journals cut in the middle: every whole item came back, and no torn one")


def failed_write(folder: str) -> CheckResult:
    """Let a write fail: a limit on the size of files simulates a disk that stays full. Raises ChildFailed, OSError."""

    def ignore_limit_signal() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    child = Child(folder, CONFIG + ONE_LONG_FILE, ignore_limit_signal)
    child.start()
    child.limit(resource.RLIMIT_FSIZE, FILE_BYTES_MAX)  # a start refuses a limit below what its journals need
    stored, data = 0, bytes(1 << 20)
    try:
        client = child.client()
        for _ in range(2 * (FILE_BYTES_MAX >> 20)):
            client.send(b"set big 0 0 %d\r\n%b\r\n" % (len(data), data))
            if client.line() != b"STORED":
                break
            stored += 1
        else:
            return warning("a write fails", "files grow beyond the limit of the process: it cannot be tried", AGAIN)
        client.close()
        code = child.wait()
    except OSError:
        code = child.wait()
    finally:
        child.kill()
    again = Child(folder)
    again.start()
    try:
        client = again.client()
        there = len(client.drain("big"))
        client.close()
    finally:
        again.kill()
    if there < stored or code != 1:
        return fail("a write fails", f"of {stored} answered items {there} were there; exit code {code}", SOFTWARE)
    text = f"the server ended, and the {stored} items that it had answered were there at the next start"
    return ok("a write fails", text)


class Failing(OsFs):
    """A disk on which every sync of a journal fails once `is_failing` is set."""

    is_failing = False

    def append(self, path: str) -> File:
        return FailingFile(super().append(path), self)


class FailingFile:
    """A file of a Failing disk."""

    def __init__(self, file: File, fs: Failing) -> None:
        self._file, self._fs = file, fs
        self.write, self.close, self.is_at = file.write, file.close, file.is_at

    @property
    def size(self) -> int:
        return self._file.size

    @size.setter
    def size(self, size: int) -> None:
        self._file.size = size

    def read(self, at: int, count: int) -> bytes:
        return self._file.read(at, count)

    def sync(self) -> None:
        if self._fs.is_failing:
            raise SyncFailed(errno.EIO, os.strerror(errno.EIO))
        self._file.sync()


def failed_sync(folder: str) -> CheckResult:
    """Run the server's own code on this disk with a failing sync, then start a real server. Raises ChildFailed,
    OSError.
    """
    child, fs = Child(folder), Failing()
    now_ms = int(time.time() * 1000)
    broker = Broker(load(f"{folder}/staniel.toml"), fs)
    broker.recover(now_ms)
    queue = broker.queues.make("kestrel", now_ms)
    queue.add(Item(item_for(1), now_ms), now_ms)
    broker.commit_all(now_ms)
    fs.is_failing = True
    queue.add(Item(item_for(2), now_ms), now_ms)
    try:
        broker.commit_all(now_ms)
    except JournalFailure:
        pass
    else:
        return fail("a sync fails", "the server went on after it", SOFTWARE)
    finally:
        fs.close()
    child.start()
    try:
        client = child.client()
        numbers = [number_of(item) for item in client.drain("kestrel")]
        client.close()
    finally:
        child.kill()
    if numbers[:1] != [1] or "spool.renewed" not in child.said():
        return fail("a sync fails", f"the next start had {numbers} and did not write its files anew", SOFTWARE)
    return ok("a sync fails", "the server ended, and the next start wrote anew what the disk may not have")
