"""A reader of workq's command log, whole files at once, written from the format's document.

Where the document and the files of the original server differ, the files count: the zone is -1, complete and fail
carry a result, the priority is zigzag, the checksum is CRC-32C and big-endian. No name is longer than the protocol
allows, and no record than its largest payload and 64 KiB. Histories that the original refuses to
start on have no meaning in the documents: the jobs that they are about are `odd`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

MAGIC = b"wqwq" + (1).to_bytes(4, "big")
YEAR_1_S = -62_135_596_800
NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)
TIME_BYTES, CRC_BYTES = 15, 4
VARINT_BYTES = 10  # of 64 bits
NAME_BYTES_MAX = 255
PAYLOAD_BYTES_MAX = (1 << 20) + (64 << 10)


class Damaged(Exception):
    pass


def crc_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


TABLE = crc_table()


def crc32c(data: bytes) -> int:
    """Castagnoli's."""
    crc, table = 0xFFFFFFFF, TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Cursor:
    """Bytes with a position. What lies behind them raises Damaged."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise Damaged
        self.at += count
        return self.data[self.at - count : self.at]

    def unsigned(self) -> int:
        number = 0
        for place in range(VARINT_BYTES):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if number >= 1 << 64:
                    break
                return number
        raise Damaged

    def signed(self) -> int:
        number = self.unsigned()
        return number // 2 if number % 2 == 0 else -(number + 1) // 2

    def block(self) -> bytes:
        return self.take(self.unsigned())

    def time(self) -> int | None:
        """Nanoseconds since 1970, in any zone; None: Go's zero time."""
        data = self.take(TIME_BYTES)
        seconds, nanos = int.from_bytes(data[1:9], "big", signed=True), int.from_bytes(data[9:13], "big", signed=True)
        if data[0] != 1 or not 0 <= nanos < 10**9:
            raise Damaged
        return None if not seconds and not nanos else (seconds + YEAR_1_S) * 10**9 + nanos


@dataclass
class Command:
    """What one record says. The fields behind `id` are those of an add or schedule, `result` of a complete or fail."""

    kind: int
    id: bytes
    name: bytes = b""
    ttr_ms: int = 0
    ttl_ms: int = 0
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    payload: bytes = b""
    time_ns: int | None = None
    created_ns: int = 0
    result: bytes = b""


def command_in(payload: bytes) -> Command:
    """Raises Damaged: an unknown type, a field that is missing, bytes behind the last one."""
    cursor = Cursor(payload)
    command = Command(cursor.take(1)[0], cursor.take(16))
    if command.kind in (1, 2):
        command.name = cursor.block()
        if len(command.name) > NAME_BYTES_MAX:
            raise Damaged
        command.ttr_ms, command.ttl_ms = cursor.unsigned() % 2**32, cursor.unsigned()
        command.priority = cursor.signed()
        command.max_attempts, command.max_fails = cursor.unsigned() % 2**8, cursor.unsigned() % 2**8
        command.payload = cursor.block()
        time_ns = cursor.time() if command.kind == 2 else cursor.take(TIME_BYTES) and None
        command.time_ns, command.created_ns = time_ns, cursor.time() or 0
    elif command.kind in (3, 4):
        command.result = cursor.block() if cursor.at < len(payload) else b""
    elif command.kind not in (5, 6, 7, 8):
        raise Damaged
    if cursor.at != len(payload):
        raise Damaged
    return command


def frame_at(data: bytes, at: int) -> tuple[bytes, int]:
    """(payload, where the next record begins) of the record at byte `at`, whose checksum is right. Raises Damaged."""
    cursor = Cursor(data, at)
    if cursor.take(TIME_BYTES)[0] != 1:
        raise Damaged
    payload = cursor.block()
    end = cursor.at
    if not 0 < len(payload) <= PAYLOAD_BYTES_MAX or int.from_bytes(cursor.take(CRC_BYTES), "big") != crc32c(
        data[at:end]
    ):
        raise Damaged
    return payload, cursor.at


def frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(where it begins, payload) of each record. Behind a damaged one comes the next whose checksum is right."""
    at = len(MAGIC)
    while at < len(data):
        try:
            payload, end = frame_at(data, at)
        except Damaged:
            at = data.find(b"\x01", at + 1)
            if at < 0:
                return
            continue
        yield at, payload
        at = end


@dataclass
class Job:
    """A job, and the addition that it came with."""

    added: Command
    state: int = NEW
    attempts: int = 0
    result: bytes = b""


@dataclass
class Log:
    """The jobs after the records read so far. `odd`: ids with a history that the original refuses, or does not write: a
    lease or a result before its addition. `early`: by id, when that was, in ns since 1970.
    """

    now_ms: int
    jobs: dict[bytes, Job] = field(default_factory=dict)
    odd: set[bytes] = field(default_factory=set)
    early: dict[bytes, int] = field(default_factory=dict)
    additions: dict[bytes, list[Command]] = field(default_factory=dict)

    def apply(self, command: Command, at_ns: int) -> None:
        """The record was written at `at_ns`, in ns since 1970."""
        job = self.jobs.get(command.id)
        if command.kind in (1, 2):
            self._add(command, job)
        elif job is None:
            if command.kind in (3, 4, 7):
                self.early[command.id] = at_ns
        elif command.kind in (3, 4):
            if job.state in (COMPLETED, FAILED):
                self.odd.add(command.id)
            else:
                job.state, job.result = command.kind - 2, command.result
        elif command.kind in (5, 6):
            del self.jobs[command.id]
        elif command.kind == 7:
            if job.state in (LEASED, COMPLETED, FAILED):
                self.odd.add(command.id)
            job.attempts += 1
            job.state = LEASED
        elif job.state not in (COMPLETED, FAILED):
            is_last = job.attempts >= job.added.max_attempts > 0
            job.state, job.result = (FAILED, b"") if is_last else (PENDING, job.result)

    def _add(self, command: Command, job: Job | None) -> None:
        self.additions.setdefault(command.id, []).append(command)
        start_ns = command.created_ns if command.time_ns is None else command.time_ns
        if start_ns // 10**6 + command.ttl_ms <= self.now_ms:
            return
        if job is not None or self.early.get(command.id, -1) >= command.created_ns:
            self.odd.add(command.id)
        self.jobs[command.id] = Job(command)

    def order(self, name: bytes, *, ready: bool) -> list[bytes]:
        """The ids of one queue's jobs that wait to be leased, or for their time, in their order."""
        now_ns = self.now_ms * 10**6
        waiting = [
            (-job.added.priority, job.added.time_ns or 0, job.added.created_ns, job.added.id)
            for job in self.jobs.values()
            if job.added.name == name and job.state in (NEW, PENDING) and ((job.added.time_ns or 0) <= now_ns) is ready
        ]
        return [row[-1] for row in sorted(waiting)]


def written_ns(data: bytes, at: int) -> int:
    """When the record at `at` was written, in ns since 1970, whatever stands there."""
    seconds, nanos = int.from_bytes(data[at + 1 : at + 9], "big", signed=True), data[at + 9 : at + 13]
    return (seconds + YEAR_1_S) * 10**9 + int.from_bytes(nanos, "big", signed=True)


def segments_of(files: Mapping[str, bytes]) -> list[str]:
    """The names that count, in their order."""
    return sorted(name for name in files if re.fullmatch(r"[0-9]{9}\.log", name) and files[name][:8] == MAGIC)


def read(files: Mapping[str, bytes], now_ms: int) -> Log:
    """What the files (name to content) of a folder say."""
    log = Log(now_ms)
    for name in segments_of(files):
        for at, payload in frames(files[name]):
            try:
                log.apply(command_in(payload), written_ns(files[name], at))
            except Damaged:
                continue
    return log
