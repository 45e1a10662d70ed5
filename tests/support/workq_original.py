"""The original's reader of command logs, as strict as it is: what it would refuse to start on is raised.

Written from what is known of it, to judge the logs that we write. Shares no code with ours, but the CRC.
"""

from __future__ import annotations

import re
from binascii import hexlify

import google_crc32c

NAME = re.compile(rb"[A-Za-z0-9_.\-]{1,255}")
TTL_MAX_MS = 2_592_000_000
TTR_MAX_MS = 86_400_000
YEAR_1_NS = 62_135_596_800 * 10**9
NO_TIME = bytes.fromhex("01000000000000000000000000ffff")


class Refused(Exception):
    """The original would not start; the text is what it would say."""


class Reader:
    """Bytes with a position."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise Refused("unexpected EOF")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    def time(self) -> bytes:
        time = self.take(15)
        if time[0] != 1:
            raise Refused("Time.UnmarshalBinary: unsupported version")
        assert time[13:] == b"\xff\xff", "the zone of the real files"
        return time


def ns(time: bytes) -> int:
    return int.from_bytes(time[1:9], "big") * 10**9 + int.from_bytes(time[9:13], "big") - YEAR_1_NS


class Original:
    """Jobs by id, as dicts, after `replay` of the segments in order."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.jobs: dict[str, dict[str, object]] = {}
        self.record_times: list[int] = []

    def replay(self, segments: list[bytes]) -> Original:
        for data in segments:
            if data[:8] != b"wqwq\x00\x00\x00\x01":
                raise Refused("invalid segment header")
            reader = Reader(data, 8)
            while reader.at < len(data):
                self.record(reader)
        return self

    def record(self, reader: Reader) -> None:
        start = reader.at
        self.record_times.append(ns(reader.time()))
        payload = reader.take(reader.varint())
        stop = reader.at
        if int.from_bytes(reader.take(4), "big") != google_crc32c.value(reader.data[start:stop]):
            raise Refused("crc mismatch")
        body = Reader(payload)
        kind, id = body.take(1)[0], hexlify(body.take(16)).decode()
        {1: self.add, 2: self.add, 3: self.finish, 4: self.finish, 5: self.remove, 6: self.remove,
         7: self.attempt, 8: self.timeout}[kind](kind, id, body)  # fmt: skip
        if body.at != len(payload):
            raise Refused("trailing garbage detected")

    def add(self, kind: int, id: str, body: Reader) -> None:
        name = body.take(body.varint())
        ttr, ttl, _, attempts, fails = (body.varint() for _ in range(5))
        data = body.take(body.varint())
        time, created = body.time(), body.time()
        assert (kind == 1) == (time == NO_TIME)
        limit_ms = ns(created if kind == 1 else time) // 10**6 + ttl
        if limit_ms <= self.now_ms:
            return
        if id[12] != "4" or id[16] not in "89ab":
            raise Refused("Invalid ID")
        if (
            NAME.fullmatch(name) is None
            or not 1 <= ttr <= TTR_MAX_MS
            or not 1 <= ttl <= TTL_MAX_MS
            or len(data) > 1 << 20
        ):
            raise Refused("Invalid Name, TTR, TTL or payload")
        if id in self.jobs:
            raise Refused("Duplicate job")
        assert attempts <= 255 and fails <= 255
        self.jobs[id] = {"name": name, "payload": data, "state": 0, "attempts": 0, "max": attempts, "result": b""}

    def finish(self, kind: int, id: str, body: Reader) -> None:
        result = body.take(body.varint())
        job = self.jobs.get(id)
        if job is None:
            return
        if job["state"] in (1, 2):
            raise Refused("Duplicate result")
        job["state"], job["result"] = kind - 2, result

    def remove(self, kind: int, id: str, body: Reader) -> None:
        self.jobs.pop(id, None)

    def attempt(self, kind: int, id: str, body: Reader) -> None:
        job = self.jobs.get(id)
        if job is None:
            return
        if job["state"] == 4:
            raise Refused("Job already leased")
        if job["state"] in (1, 2):
            raise Refused("Job already processed")
        assert isinstance(job["attempts"], int)
        job["attempts"] += 1
        job["state"] = 4

    def timeout(self, kind: int, id: str, body: Reader) -> None:
        job = self.jobs.get(id)
        if job is None or job["state"] in (1, 2):
            return
        assert isinstance(job["attempts"], int) and isinstance(job["max"], int)
        job["state"] = 2 if job["attempts"] >= job["max"] > 0 else 3
