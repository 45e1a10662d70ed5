"""What a parser does in one go is bounded, whatever has arrived; the rest comes in later ones, and nothing is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from staniel.protocol.limits import REQUESTS_PER_FEED, WORK_PER_FEED, Limits
from staniel.protocol.memcache.commands import KEYS_AT_ONCE
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import WINDOW_BYTES, MemcacheParser
from staniel.protocol.memcache.requests import Dialect, GetKeys, GetMany
from staniel.protocol.requests import Invalid, More
from staniel.protocol.text.parser import ITEMS_A_WORK, TextParser
from staniel.protocol.text.requests import TextPut
from staniel.protocol.thrift.parser import ThriftParser
from staniel.protocol.thrift.requests import ThriftVersion
from staniel.protocol.thrift.service import ELEMENTS_MAX, NESTED_ELEMENTS
from staniel.protocol.workq.commands import INVALID_ARGS, WORDS_MAX
from staniel.protocol.workq.parser import WorkqParser
from staniel.protocol.workq.requests import LeaseJob
from tests.support.feeding import all_of, whole
from tests.support.thrift_calls import call


def memcache() -> MemcacheParser:
    return MemcacheParser(Dialect.MEMCACHED, Limits())


@pytest.mark.parametrize(
    ("parser", "line"), [(memcache(), b"\n"), (TextParser(Limits()), b"\n"), (WorkqParser(Limits()), b"x\r\n")]
)
def test_many_lines_are_understood_some_at_a_time(parser: Any, line: bytes) -> None:
    slices = [parser.feed(line * 5000)]
    while isinstance(slices[-1][-1], More):
        assert len(slices[-1]) <= WORK_PER_FEED + 1
        slices.append(slices[-1][-1].resume())
    assert sum(isinstance(request, Invalid) for found in slices for request in found) == 5000
    assert parser.pending_bytes == 0


def test_what_arrives_between_two_slices_is_understood_behind_them() -> None:
    parser = memcache()
    lines = b"".join(b"get between%d\r\n" % number for number in range(WORK_PER_FEED + 10))
    found = parser.feed(lines + b"set q 0 0 4\r\nab")
    assert parser.feed(b"cd\r\nget last\r\n") == parser.feed(b"") == []
    found = whole(found)
    assert found[-2:] == [Set("q", b"abcd"), Get(b"last", "last")] and len(found) == WORK_PER_FEED + 12


@pytest.mark.parametrize(
    ("parser", "one"),
    [
        (memcache(), lambda number: b"set new%d 0 0 1\r\nx\r\n" % number),
        (TextParser(Limits()), lambda number: b"put new%d:\nx\n\n" % number),
        (WorkqParser(Limits()), lambda number: b"lease new%d 0\r\n" % number),
        (ThriftParser(Limits()), lambda number: call("peek", queue_name=f"{number}")),
    ],
    ids=["memcache", "text", "workq", "thrift"],
)
def test_requests_keep_their_order_however_late_a_slice_has_its_turn(parser: Any, one: Callable[[int], bytes]) -> None:
    """A client that sends faster than its requests are done has several reads under way, and one `More` among them."""
    backlog, done, data = deque[Any](), [], deque(one(number) for number in range(2000))
    while data or backlog:
        for _ in range(2):
            backlog.extend(
                parser.feed(b"".join([data.popleft() for _ in range(min(500, len(data)))]))
            ) if data else None
        request = backlog.popleft()
        if isinstance(request, More):
            backlog.extendleft(reversed(request.resume()))
        else:
            done.append(request)
    # Afterwards: what was understood once is known to every parser, and costs a slice nothing.
    alone = type(parser)(Dialect.MEMCACHED, Limits()) if isinstance(parser, MemcacheParser) else type(parser)(Limits())
    wanted = [request for number in range(2000) for request in alone.feed(one(number))]
    assert done == wanted and parser.pending_bytes == 0


def test_long_lines_count_as_many() -> None:
    line = b"get " + b" ".join(b"%x" % number for number in range(2500)) + b"\r\n"
    found = memcache().feed(line * 30)
    assert len(found) <= 4 and isinstance(found[-1], More)
    assert len(all_of(memcache(), line * 30)) == 30


def test_a_get_of_many_keys_is_not_taken_apart_before_its_turn() -> None:
    keys = tuple(b"k%d" % number for number in range(KEYS_AT_ONCE + 1))
    assert memcache().feed(b"gets " + b" ".join(keys) + b"\r\n") == [GetKeys(keys, with_id=True)]
    assert isinstance(memcache().feed(b"get " + b" ".join(keys[1:]) + b"\r\n")[0], GetMany)


def test_known_lines_are_bounded_too() -> None:
    parser = memcache()
    parser.feed(b"get q\r\n")
    found = parser.feed(b"get q\r\n" * 60_000)
    assert len(found) <= REQUESTS_PER_FEED + WINDOW_BYTES // 7 + 2 and isinstance(found[-1], More)
    assert len(whole(found)) == 60_000


def test_the_items_of_a_text_put_are_read_some_at_a_time() -> None:
    parser = TextParser(Limits())
    data = b"put q:\n" + b"x\n" * 20_000 + b"\n"
    feeds = 1
    found = parser.feed(data)
    while found and isinstance(found[-1], More):
        found = found[-1].resume()
        feeds += 1
    assert found == [TextPut("q", (b"x",) * 20_000)] and feeds >= 20_000 // (WORK_PER_FEED * ITEMS_A_WORK)


def test_thrift_calls_are_read_some_at_a_time() -> None:
    parser = ThriftParser(Limits())
    found = parser.feed(call("get_version") * 1000)
    assert len(found) <= WORK_PER_FEED and isinstance(found[-1], More)
    found = whole(found)
    assert len(found) == 1000 and all(isinstance(request, ThriftVersion) for request in found)


def test_nested_structs_weigh_what_the_library_takes_to_build_them() -> None:
    nested = ELEMENTS_MAX // NESTED_ELEMENTS + 1
    begin = call("get_version")[4:-1]
    frame = begin + b"\x0f\x00\x09\x0c" + nested.to_bytes(4, "big") + b"\x00" * nested + b"\x00"
    (found,) = ThriftParser(Limits()).feed(len(frame).to_bytes(4, "big") + frame)
    assert isinstance(found, Invalid) and f"more than {ELEMENTS_MAX} elements" in found.why


def test_a_lease_names_only_so_many_queues() -> None:
    names = [b"q%d" % number for number in range(WORDS_MAX - 1)]
    (lease,) = WorkqParser(Limits()).feed(b"lease " + b" ".join(names) + b" 0\r\n")
    assert isinstance(lease, LeaseJob) and len(lease.names) == WORDS_MAX - 1
    assert WorkqParser(Limits()).feed(b"lease " + b" ".join([*names, b"a", b"b"]) + b" 0\r\n") == [INVALID_ARGS]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("end", [b"\n", b"yz\r\n"])
def test_blocks_that_do_not_end_with_cr_lf_are_read_some_at_a_time(dialect: Dialect, end: bytes) -> None:
    """They leave the loop of known lines, and take as long as a line that is read for the first time."""
    data = (b"set q 0 0 1\r\nx" + end) * 3000
    parser = MemcacheParser(dialect, Limits())
    slices = [parser.feed(data)]
    while slices[-1] and isinstance(slices[-1][-1], More):
        slices.append(slices[-1][-1].resume())
    assert max(map(len, slices)) <= 2 * WORK_PER_FEED + 1
    drip = MemcacheParser(dialect, Limits())
    wanted = [request for at in range(0, len(data), 50) for request in drip.feed(data[at : at + 50])]
    assert [request for found in slices for request in found if not isinstance(request, More)] == wanted
