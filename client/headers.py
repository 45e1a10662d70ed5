"""Headers of an item, such as the context of a trace: a few lines in front of its payload, where a program asks for it.

    %staniel-headers/1 71\r\n                                                   the size of the lines that follow
    traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n
    the payload

The protocol has no room for headers, and flags have 32 bits. A reader that does not ask for headers gets these lines as
a part of the data; one that asks for them also reads items without.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import field

from staniel.protocol.client.replies import Item
from staniel.protocol.client.workq.replies import Job

MARK = b"%staniel-headers/1 "
HEAD_BYTES_MAX = 64 << 10
_HEAD = re.compile(re.escape(MARK) + rb"([0-9]{1,5})\r\n")
_NAME = re.compile(r"[!-9;-~]+")


class ItemWithHeaders(Item, frozen=True):
    """An item of a client that was asked for headers: `data` is its payload, `headers` is empty if it had none."""

    headers: dict[str, str] = field(default_factory=dict)


class JobWithHeaders(Job, frozen=True):
    """A job of a client that was asked for headers, like ItemWithHeaders."""

    headers: dict[str, str] = field(default_factory=dict)


class Tracing(Protocol):
    """The headers that a client writes and reads: `staniel.client.otel.Tracing`, or one of the program's own."""

    def sending(self, queue: str, count: int) -> AbstractContextManager[Mapping[str, str]]:
        """Return a block around a put of `count` items, or the adding of a job, which yields their headers."""

    def processing(self, queue: str, item: ItemWithHeaders | JobWithHeaders) -> AbstractContextManager[object]:
        """Return a block around the work on an item, that of `reserve`, or on a job, whose name is `queue`."""


def with_headers(data: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the data of an item with headers. Raises ValueError for names and values that are no lines of ASCII."""
    lines = []
    for name, value in headers.items():
        if _NAME.fullmatch(name) is None or not value.isascii() or not value.isprintable():
            raise ValueError(f"a header is a line of ASCII, `name: value`, not {name!r}: {value!r}")
        lines.append(f"{name}: {value}\r\n")
    head = "".join(lines).encode("ascii")
    if len(head) > HEAD_BYTES_MAX:
        raise ValueError(f"headers have at most {HEAD_BYTES_MAX} bytes, not {len(head)}")
    return b"%b%d\r\n%b%b" % (MARK, len(head), head, data)


def split(item: Item) -> ItemWithHeaders:
    """Return the item with its headers separated. Data without headers, or with an incomplete head, stays as it is."""
    data, headers = _split(item.data)
    return ItemWithHeaders(data, item.flags, item.id, item.key, headers)


def split_job(job: Job) -> JobWithHeaders:
    """Return the job with its headers separated, as `split` does."""
    payload, headers = _split(job.payload)
    return JobWithHeaders(job.id, job.name, job.ttr_ms, payload, headers)


def _split(data: bytes) -> tuple[bytes, dict[str, str]]:
    match = _HEAD.match(data)
    if match is not None:
        end = match.end() + int(match[1])
        head = data[match.end() : end]
        lines = head.decode("latin-1").split("\r\n")
        if len(data) >= end and lines[-1] == "" and all(": " in line for line in lines[:-1]):
            return data[end:], {name: value for name, _, value in (line.partition(": ") for line in lines[:-1])}
    return data, {}
