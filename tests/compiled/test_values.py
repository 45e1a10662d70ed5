"""What has a .pyx beside its .py: both say the same of any values, and C fields end where they should."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import struct
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from staniel.compiled import stem_of
from staniel.queues.jobs.states import ATTEMPTS_MAX, JobState

pytestmark = pytest.mark.compiled

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 0, 1, -1, 2**31, 2**32])
ID = st.integers(0, 2**80)
ANY = st.integers(-(2**80), 2**80)
RAW_ID = st.binary(max_size=16)
ITEM = {"data": st.binary(max_size=40), "added_ms": INT64, "expires_ms": INT64, "flags": INT64}
TIMES = {"ttl_ms": st.none() | INT64, "expires_ms": INT64, "noreply": st.booleans()}
VALUES: dict[str, dict[str, dict[str, Any]]] = {
    "staniel.queues.item": {
        "Item": ITEM,
        "Numbered": ITEM | {"id": INT64, "errors": INT64},
        "ItemWithXid": ITEM | {"xid": INT64, "past": st.binary(max_size=9)},
        "ItemWithPast": ITEM | {"past": st.binary(max_size=9)},
        "Delivery": {"item": None, "id": ID, "deliveries": INT64, "xid": ANY, "opened_ms": INT64, "seq": INT64}
        | {"client": st.text(max_size=9)},
    },
    "staniel.queues.changes": {
        "Added": {"item": None},
        "Removed": {"id": ID},
        "Cleared": {"count": INT64},
        "Opened": {"id": ID, "xid": INT64},
        "Confirmed": {"id": ID, "xid": INT64},
        "Aborted": {"id": ID, "xid": INT64},
    },
    "staniel.protocol.memcache.item_requests": {
        "Set": {"queue": st.text(max_size=9), "data": st.binary(max_size=40), "flags": INT64, **TIMES},
        "Get": {"key": st.binary(max_size=9), "queue": st.text(max_size=9), "wait_ms": INT64}
        | dict.fromkeys(("open", "close", "abort", "peek", "with_id"), st.booleans()),
        "SetHead": {"length": INT64, "queue": st.text(max_size=9), "flags": INT64, **TIMES, "meta": st.none()},
    },
    "staniel.protocol.workq.job_requests": {
        "AddJob": {"id": RAW_ID, "terms": st.none(), "payload": st.binary(max_size=40)},
        "LeaseJob": {
            "names": st.lists(st.binary(max_size=9)).map(tuple),
            "wait_ms": INT64,
            "has_invalid_name": st.booleans(),
        },
        "DeleteJob": {"id": RAW_ID},
    },
    "staniel.queues.jobs.job": {
        "Terms": {
            "queue": st.none(),
            "ttr_ms": INT64,
            "ttl_ms": ANY,
            **dict.fromkeys(("priority", "max_attempts", "max_fails"), INT64),
            **dict.fromkeys(("coded", "shown"), st.binary(max_size=9)),
        },
        "Job": {
            "id": RAW_ID,
            "terms": None,
            "payload": st.binary(max_size=40),
            **dict.fromkeys(("created_ns", "time_ns"), ANY),
            "state": st.sampled_from(JobState),
            **dict.fromkeys(("attempts", "fails"), INT64),
            "until_ms": ANY,
            "result": st.binary(max_size=9),
            "holder": st.text(max_size=9),
            "origin": INT64,
        },
    },
}
INNER = {"item": ("staniel.queues.item", "Item"), "terms": ("staniel.queues.jobs.job", "Terms")}
SAMPLES: dict[str, Any] = {
    "past": b"past",
    "client": "client",
    **dict.fromkeys(("data", "key", "payload", "coded", "shown", "result"), b"x"),
    **dict.fromkeys(("queue", "holder"), "q"),
    **dict.fromkeys(("ttl_ms", "meta"), None),
    "names": (b"x",),
    "noreply": False,
}
FUNCTIONS = (
    "staniel.journal.kestrel.adds",
    "staniel.journal.libkestrel.put_record",
    "staniel.journal.kestrel.addx",
    "staniel.journal.workq.job_records",
    "staniel.protocol.memcache.item_reply",
    "staniel.protocol.workq.job_texts",
    "staniel.queues.jobs.times",
)
CASES = [(module, name) for module, classes in VALUES.items() for name in classes]
FACTORIES = {
    "Item": "new_item",
    "Delivery": "new_delivery",
    "Added": "added",
    "Removed": "removed",
    "Opened": "opened",
    "Confirmed": "confirmed",
    "Set": "new_set",
    "AddJob": "new_add",
    "DeleteJob": "new_delete",
}


def in_python(module: str) -> ModuleType:
    """The module as its .py has it, beside the one that is loaded."""
    loader = SourceFileLoader(f"plain_{module.rpartition('.')[2]}", stem_of(module) + ".py")
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    found = module_from_spec(spec)
    loader.exec_module(found)
    return found


PLAIN = {module: in_python(module) for module in (*VALUES, *FUNCTIONS)}
COMPILED = {module: importlib.import_module(module) for module in PLAIN}


def fields_of(module: str, name: str, draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same values for the compiled class and for the plain one."""
    for_compiled: dict[str, Any] = {}
    for_plain: dict[str, Any] = {}
    for field, strategy in VALUES[module][name].items():
        if strategy is None:
            inner, kind = INNER[field]
            values = {each: draw(drawn) for each, drawn in VALUES[inner][kind].items()}
            for_compiled[field] = getattr(COMPILED[inner], kind)(**values)
            for_plain[field] = getattr(PLAIN[inner], kind)(**values)
        else:
            for_compiled[field] = for_plain[field] = draw(strategy)
    return for_compiled, for_plain


def sample_of(module: str, name: str, build: dict[str, ModuleType]) -> dict[str, Any]:
    """A value for each field."""
    found = {field: SAMPLES.get(field, 1) for field in VALUES[module][name]}
    for field, values in VALUES[module][name].items():
        if values is RAW_ID:
            found[field] = b"id"
        elif values is None:
            inner, kind = INNER[field]
            found[field] = getattr(build[inner], kind)(**sample_of(inner, kind, build))
    return found


def test_all_twins_are_compared() -> None:
    root = Path(stem_of("staniel.x")).parent
    folders = [root / each for each in ("queues", "journal", "protocol", "broker", "server")]
    found = {
        str(path.resolve().relative_to(root.resolve().parents[1])) for each in folders for path in each.rglob("*.pyx")
    }
    known = {module.removeprefix("staniel.").replace(".", "/") + ".pyx" for module in PLAIN}
    with_own_tests = {"queues/deques.pyx", "server/client_socket.pyx", "server/poller.pyx"}  # beside this one
    assert found == known | with_own_tests
    for module, name in CASES:
        assert COMPILED[module].__file__ != PLAIN[module].__file__
        assert not hasattr(getattr(COMPILED[module], name), "__struct_fields__"), "not the compiled one"


@pytest.mark.parametrize(("module", "name"), CASES)
@given(data=st.data())
def test_a_value_says_the_same(module: str, name: str, data: st.DataObject) -> None:
    for_compiled, for_plain = fields_of(module, name, data.draw)
    made, plain = getattr(COMPILED[module], name)(**for_compiled), getattr(PLAIN[module], name)(**for_plain)
    assert made.__match_args__ == type(plain).__match_args__
    assert repr(made) == repr(plain)
    if not plain.__struct_config__.gc:
        assert not gc.is_tracked(made), "a million of them would be work for the collector"
        assert not gc.is_tracked(plain)
    by_position = getattr(COMPILED[module], name)(*for_compiled.values())
    assert repr(by_position) == repr(made)
    assert (by_position == made) == (getattr(PLAIN[module], name)(*for_plain.values()) == plain)
    assert made != object()
    assert repr(copy.copy(made)) == repr(made) == repr(pickle.loads(pickle.dumps(made)))
    if name in FACTORIES:
        assert repr(getattr(COMPILED[module], FACTORIES[name])(*for_compiled.values())) == repr(made)


@pytest.mark.parametrize(("module", "name"), CASES)
def test_what_may_be_left_out_may_be_left_out_in_both(module: str, name: str) -> None:
    plain = getattr(PLAIN[module], name)
    needed = plain.__struct_fields__[: len(plain.__struct_fields__) - len(plain.__struct_defaults__)]
    for_compiled, for_plain = (
        {field: value for field, value in sample_of(module, name, build).items() if field in needed}
        for build in (COMPILED, PLAIN)
    )
    assert repr(getattr(COMPILED[module], name)(**for_compiled)) == repr(plain(**for_plain))
    with pytest.raises(TypeError):
        getattr(COMPILED[module], name)(**{field: for_compiled[field] for field in needed[1:]})


@pytest.mark.parametrize(("module", "name"), CASES)
def test_a_number_that_does_not_fit_is_an_error(module: str, name: str) -> None:
    """Nothing wraps round: a C field takes 64 bits, or raises."""
    kind = getattr(COMPILED[module], name)
    numbers = [field for field, values in VALUES[module][name].items() if values is INT64]
    usual = sample_of(module, name, COMPILED)
    for field in numbers:
        for value in (2**63, -(2**63) - 1, 2**64, 2**100):
            with pytest.raises(OverflowError):
                kind(**{**usual, field: value})
        for value in (2**63 - 1, -(2**63)):
            assert getattr(kind(**{**usual, field: value}), field) == value


@given(data=st.binary(max_size=100), added_ms=INT64, expires_ms=INT64)
def test_the_record_of_a_put_is_the_same(data: bytes, added_ms: int, expires_ms: int) -> None:
    made = COMPILED["staniel.journal.kestrel.addx"].addx_record(
        COMPILED["staniel.queues.item"].Item(data, added_ms, expires_ms)
    )
    plain = PLAIN["staniel.queues.item"].Item(data, added_ms, expires_ms)
    assert made == PLAIN["staniel.journal.kestrel.addx"].addx_record(plain)


def in_a_row(records: list[tuple[bytes, int]]) -> bytes:
    addx = PLAIN["staniel.journal.kestrel.addx"].addx_record
    item = PLAIN["staniel.queues.item"].Item
    return b"".join([addx(item(data, 5, expires_ms)) for data, expires_ms in records])


ADDS = st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([0, 9, -1]))).map(in_a_row)
SIZE = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([15, 16, 17, -1, 2**31 - 1])


@given(
    adds=ADDS,
    more=st.binary(max_size=40),
    size=SIZE,
    skipped=st.integers(0, 60),
    cut=st.integers(0, 60),
    data=st.data(),
)
def test_records_in_a_row_are_counted_alike(
    adds: bytes, more: bytes, size: int, skipped: int, cut: int, data: st.DataObject
) -> None:
    """Whole ones, one cut off, one whose size cannot be, other bytes behind them; from any byte to any byte."""
    damaged = b"\2" + size.to_bytes(4, "little", signed=True) + bytes(16)
    piece = adds + data.draw(st.sampled_from([b"", damaged])) + more
    at, end = min(skipped, len(piece)), max(0, len(piece) - cut)
    for begin, stop in ((0, len(piece)), (0, end), (at, end)):
        found = [each["staniel.journal.kestrel.adds"].count_adds(piece, begin, stop) for each in (COMPILED, PLAIN)]
        assert found[0] == found[1]


@given(
    adds=ADDS,
    more=st.binary(max_size=40),
    size=SIZE,
    skipped=st.integers(0, 60),
    cut=st.integers(0, 60),
    there=st.integers(0, 3),
    count_max=st.integers(0, 12),
    stops=st.booleans(),
    at_stand_in=st.booleans(),
)
def test_records_in_a_row_are_read_alike(
    adds: bytes,
    more: bytes,
    size: int,
    skipped: int,
    cut: int,
    there: int,
    count_max: int,
    stops: bool,
    at_stand_in: bool,
) -> None:
    """As above; with items there already, few wanted, and a stand-in among them."""
    stand_in = b"\2" + (16).to_bytes(4, "little") + bytes(16)
    damaged = b"\2" + size.to_bytes(4, "little", signed=True) + bytes(16)
    piece = adds + (stand_in + adds if at_stand_in else damaged) + more
    at, end = min(skipped, len(piece)), max(0, len(piece) - cut)
    for begin, stop in ((0, len(piece)), (0, end), (at, end)):
        found = []
        for each in (COMPILED, PLAIN):
            items = there * [each["staniel.queues.item"].Item(b"", 1)]
            done = each["staniel.journal.kestrel.adds"].read_adds(piece, begin, stop, items, count_max, stops)
            found.append((done, [(item.data, item.added_ms, item.expires_ms, item.flags) for item in items]))
        assert found[0] == found[1]


def test_bytes_outside_of_a_piece_are_not_read() -> None:
    read_adds = COMPILED["staniel.journal.kestrel.adds"].read_adds
    for at, end in ((-1, 2), (0, 4)):
        with pytest.raises(IndexError):
            read_adds(b"abc", at, end, [], 9, False)
    for data, items in ((None, []), (b"abc", None)):
        with pytest.raises(TypeError):
            read_adds(data, 0, 0, items, 9, False)


def test_bytes_outside_of_a_piece_are_not_counted() -> None:
    count_adds = COMPILED["staniel.journal.kestrel.adds"].count_adds
    for at, end in ((-1, 2), (0, 4)):
        with pytest.raises(IndexError):
            count_adds(b"abc", at, end)
    with pytest.raises(TypeError):
        count_adds(None, 0, 0)


@given(data=st.binary(max_size=100), added_ms=INT64, item_id=INT64, errors=st.integers(-(2**31), 2**31 - 1))
def test_the_record_of_a_put_in_libkestrels_format_is_the_same(
    data: bytes, added_ms: int, item_id: int, errors: int
) -> None:
    made, plain = (
        build["staniel.journal.libkestrel.put_record"].put_record(
            build["staniel.queues.item"].Numbered(data, added_ms, 0, 0, item_id, errors)
        )
        for build in (COMPILED, PLAIN)
    )
    assert made == plain


@given(records=st.lists(st.binary(min_size=1, max_size=9).map(lambda rest: b"\x86" + rest) | st.binary(min_size=1)))
def test_puts_are_counted_alike(records: list[bytes]) -> None:
    of_each = [each["staniel.journal.libkestrel.put_record"].size_of_puts for each in (COMPILED, PLAIN)]
    assert of_each[0](records) == of_each[1](records)
    with pytest.raises(IndexError):
        of_each[0]([b"\x86", b""])


def test_errors_that_do_not_fit_the_record_of_a_put_are_an_error() -> None:
    put_record = COMPILED["staniel.journal.libkestrel.put_record"].put_record
    for errors in (2**31, -(2**31) - 1, 2**40):
        with pytest.raises((OverflowError, struct.error)):
            put_record(COMPILED["staniel.queues.item"].Numbered(b"data", 1, 0, 0, 1, errors))


XID = st.integers(-(2**31), 2**31 - 1)
WAITING = st.lists(
    st.tuples(st.just("item"), st.binary(max_size=30), INT64)
    | st.tuples(st.just("flagged"), st.binary(max_size=30), XID)
    | st.tuples(st.just("xid"), st.sampled_from((4, 5, 6, 9)), XID)
    | st.tuples(st.just("removed"), st.none(), st.none()),
    max_size=12,
)


def waiting(build: dict[str, ModuleType], records: list[tuple[str, Any, Any]]) -> list[Any]:
    """Records as they wait for the write."""
    addx, item = build["staniel.journal.kestrel.addx"], build["staniel.queues.item"].Item
    found = []
    for kind, first, second in records:
        if kind == "item":
            found.append(addx.waiting_record(item(first, 7, second)))
        elif kind == "flagged":
            flags = addx.xid_record(4, second) + addx.xid_record(4, 0)
            found.append(flags + addx.addx_record(item(first, 7, second, 1)))
        else:
            found.append(addx.xid_record(first, second) if kind == "xid" else b"\x01")
    return found


@given(records=WAITING, stride_bytes=st.integers(0, 90))
def test_what_waits_for_a_write_is_the_same(records: list[tuple[str, Any, Any]], stride_bytes: int) -> None:
    found = []
    for build in (COMPILED, PLAIN):
        addx, there = build["staniel.journal.kestrel.addx"], waiting(build, records)
        places = addx.boundaries(there, 5000, 100, 4000, 50, stride_bytes)
        found.append((addx.joined(there), addx.size_of(there), places))
    assert found[0] == found[1]
    assert found[0][1] == len(found[0][0])


@pytest.mark.parametrize("xid", [2**31, -(2**31) - 1, 2**63])
def test_a_transaction_id_that_does_not_fit_is_an_error(xid: int) -> None:
    for build in (COMPILED, PLAIN):
        with pytest.raises((OverflowError, struct.error)):
            build["staniel.journal.kestrel.addx"].xid_record(4, xid)


def test_ends_and_lost_are_the_same() -> None:
    compiled, plain = COMPILED["staniel.queues.item"], PLAIN["staniel.queues.item"]
    assert compiled.LOST_MS == plain.LOST_MS
    compiled_get = COMPILED["staniel.protocol.memcache.item_requests"]
    plain_get = PLAIN["staniel.protocol.memcache.item_requests"]
    fields = (b"q/open/close/t=9", "q", 9, True, True, False, False, True)
    ended = [repr(each.without_ends(each.Get(*fields))) for each in (compiled_get, plain_get)]
    assert ended[0] == ended[1]


@given(key=st.binary(max_size=600), flags=INT64, data=st.binary(max_size=300), with_id=st.booleans(), item_id=ID)
def test_the_answer_to_a_get_is_the_same(key: bytes, flags: int, data: bytes, with_id: bool, item_id: int) -> None:
    found = []
    for each in (COMPILED, PLAIN):
        get = each["staniel.protocol.memcache.item_requests"].Get(key, "q", with_id=with_id)
        out: list[bytes] = []
        for times in (1, 1, 1000, 1):  # the compiled one keeps the head of the last reply
            for shown in (flags, flags ^ 1):
                each["staniel.protocol.memcache.item_reply"].append_item(out, get, times * data, shown, item_id)
        found.append(b"".join(out))
    assert found[0] == found[1]


EDGES = st.sampled_from([each + near for each in (2**46, 2**62, 2**63) for near in (-1, 0, 1)])


@given(added_ms=INT64 | EDGES.filter(lambda ms: ms < 2**63), last_id=ANY | EDGES)
def test_the_next_id_is_the_same(added_ms: int, last_id: int) -> None:
    compiled, plain = (each["staniel.queues.item"].id_after(added_ms, last_id) for each in (COMPILED, PLAIN))
    assert compiled == plain == max(added_ms << 16, last_id + 1)


@given(created_ns=ANY, time_ns=ANY)
def test_a_new_job_is_the_same(created_ns: int, time_ns: int) -> None:
    compiled, plain = (each["staniel.queues.jobs.job"] for each in (COMPILED, PLAIN))
    made, expected = (
        each.new_job(b"id", each.Terms(None, 1, 2), b"x", created_ns, time_ns) for each in (compiled, plain)
    )
    assert repr(made) == repr(expected)
    assert (made.limit_ms, made.is_run, made.is_processed) == (
        expected.limit_ms,
        expected.is_run,
        expected.is_processed,
    )
    assert made.terms.attempts_max == expected.terms.attempts_max == ATTEMPTS_MAX
    with pytest.raises(AssertionError):
        made.become(made.state)


def test_a_job_frees_its_neighbours_when_it_leaves_a_ring() -> None:
    module = COMPILED["staniel.queues.jobs.job"]
    job, ring = module.Job(b"id", module.Terms(None, 1, 2), b"x", 1), module.Ring()
    assert not gc.is_tracked(ring)
    before = sys.getrefcount(ring), sys.getrefcount(job)
    ring.prev = ring.next = job
    job.prev = job.next = ring
    with pytest.raises(TypeError):
        job.next = object()
    job.prev = job.next = ring.prev = ring.next = None
    assert (sys.getrefcount(ring), sys.getrefcount(job)) == before


@given(created_ns=ANY, time_ns=st.just(0) | ANY, ttl_ms=ANY, now_ms=INT64, last_ns=ANY, mark=st.integers(0, 62))
@example(2**63 - 1, 0, 2**63 - 1, 2**63 - 1, 2**63 - 1, 0)
@example(0, 0, 2**63 - 1, 9_000_000_000_000, 0, 3)
@example(10**6, 0, 2**63 - 2, 0, -1, 6)
@example(-1, 0, 0, -1, -1, 0)
def test_the_moments_of_a_job_are_the_same(
    created_ns: int, time_ns: int, ttl_ms: int, now_ms: int, last_ns: int, mark: int
) -> None:
    compiled, plain = (each["staniel.queues.jobs.times"] for each in (COMPILED, PLAIN))
    assert compiled.end_ms(created_ns, time_ns, ttl_ms) == plain.end_ms(created_ns, time_ns, ttl_ms)
    assert compiled.next_ns(now_ms, last_ns, mark) == plain.next_ns(now_ms, last_ns, mark)
    assert (compiled.NS_A_MS, compiled.NEVER_MS, compiled.MARKS) == (plain.NS_A_MS, plain.NEVER_MS, plain.MARKS)


SIXTEEN = st.binary(min_size=16, max_size=16)
TIME = st.binary(min_size=15, max_size=15)


@given(
    at_ns=ANY,
    number=st.integers(0, 2**64 - 1),
    time=TIME,
    kind=st.integers(1, 8),
    id=SIXTEEN,
    data=st.binary(),
    later=TIME,
)
@example(-1, 2**64 - 1, bytes(15), 1, bytes(16), bytes(5000), bytes(15))
@example(2**63, 2**63, bytes(15), 2, bytes(16), bytes(1 << 20), bytes(15))
def test_the_records_of_jobs_are_the_same(
    at_ns: int, number: int, time: bytes, kind: int, id: bytes, data: bytes, later: bytes
) -> None:
    compiled, plain = (each["staniel.journal.workq.job_records"] for each in (COMPILED, PLAIN))
    assert compiled.encode_time(at_ns) == plain.encode_time(at_ns)
    assert compiled.encode_unsigned(number) == plain.encode_unsigned(number)
    assert compiled.crc_of(data) == plain.crc_of(data)
    assert compiled.encode_bare(time, kind, id) == plain.encode_bare(time, kind, id)
    terms = data[:40]
    made = compiled.addition(time, kind, id, terms, data, later)
    assert made == plain.addition(time, kind, id, terms, data, later)


def test_a_record_takes_no_time_or_id_of_another_length() -> None:
    module = COMPILED["staniel.journal.workq.job_records"]
    for time, id in ((bytes(14), bytes(16)), (bytes(15), bytes(15)), (bytes(16), bytes(16))):
        with pytest.raises(ValueError, match="15 bytes"):
            module.encode_bare(time, 1, id)
        with pytest.raises(ValueError, match="15 bytes"):
            module.addition(time, 1, id, b"", b"", bytes(15))
    with pytest.raises(ValueError, match="15 bytes"):
        module.addition(bytes(15), 1, bytes(16), b"", b"", b"")
    for number in (2**64, -1):
        with pytest.raises(OverflowError):
            module.encode_unsigned(number)


HEX = st.text("0123456789abcdefABCDEF", min_size=32, max_size=32)
TEXT_OF_ID = st.builds(lambda text: "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])), HEX)


def altered(text: str, at: int, byte: bytes) -> bytes:
    return text.encode()[:at] + byte + text.encode()[at + 1 :]


ID_TEXTS = st.one_of(
    TEXT_OF_ID.map(str.encode),
    st.builds(lambda text: (text[:14] + "4" + text[15:19] + "a" + text[20:]).encode(), TEXT_OF_ID),
    st.builds(altered, TEXT_OF_ID, st.integers(0, 35), st.binary(max_size=2)),
    st.binary(min_size=36, max_size=36),
)


@given(
    text=ID_TEXTS, before=st.binary(max_size=9), behind=st.binary(max_size=9), raw=SIXTEEN, data=st.binary(max_size=50)
)
def test_the_texts_of_jobs_are_the_same(text: bytes, before: bytes, behind: bytes, raw: bytes, data: bytes) -> None:
    compiled, plain = (each["staniel.protocol.workq.job_texts"] for each in (COMPILED, PLAIN))
    assert compiled.read_id(text) == plain.read_id(text)
    line = before + text + behind
    for at in (*range(len(line) + 3), 2**40):
        assert compiled.job_id_at(line, at) == plain.job_id_at(line, at)
    assert compiled.is_job_id(raw) == plain.is_job_id(raw)
    assert compiled.show_id(raw) == plain.show_id(raw)
    assert compiled.leased(raw, data, 30 * data) == plain.leased(raw, data, 30 * data)


def test_what_is_no_id_is_refused() -> None:
    module = COMPILED["staniel.protocol.workq.job_texts"]
    assert module.job_id_at(bytes(50), -1) is None
    for raw in (b"", bytes(15), bytes(17)):
        with pytest.raises(ValueError, match="16 bytes"):
            module.show_id(raw)
        with pytest.raises(ValueError, match="16 bytes"):
            module.leased(raw, b"", b"")


def test_the_fields_of_the_command_log_end_at_64_bits() -> None:
    segment = importlib.import_module("staniel.journal.workq.segments").CmdLogSegment(2**63 - 1)
    for field in ("number", "size", "adds", "dead", "corrupt_ranges", "invalid_records"):
        setattr(segment, field, 2**63 - 1)
        assert getattr(segment, field) == 2**63 - 1
        with pytest.raises(OverflowError):
            setattr(segment, field, 2**63)
    segment.limits_ms, segment.adds = 2**80, 2
    segment.settle_due()
    assert segment.due_ms == 2**79


def test_a_moment_of_a_timer_ends_at_64_bits() -> None:
    timers = importlib.import_module("staniel.queues.jobs.timers")
    module = COMPILED["staniel.queues.jobs.job"]
    job, found = module.Job(b"id", module.Terms(None, 1, 2), b"x", 1), timers.JobTimers()
    for at_ms in (0, 1_700_000_000_000, timers.NEVER_MS):
        found.set(job, at_ms, 1_700_000_000_000)
        assert 0 < found.next_ms() <= max(at_ms, 1_700_000_000_000 + timers.SLOT_MS)
    with pytest.raises(OverflowError):
        found.set(job, 2**63, 0)
    found.clear()
