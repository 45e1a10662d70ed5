"""What any Kestrel or Starling left on a disk, recovered: field by field in this process, and by the real server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import cases, replay
from tests.conformance.conversation import TIMEOUT_MS
from tests.conformance.server import Mismatch, fill, read_folder, serving
from tests.conformance.spool import NOW_MS, Recovered, item_of, recovered
from tests.conformance.wire import ExpectingWire

ROWS = cases.load("kestrel/journal_cases.json")


def each_length(case: cases.Case) -> Iterator[cases.Case]:
    """A sweep is a case for every length of its one file; any other case is itself."""
    if "sweep" not in case["expect"]:
        yield case
        return
    queue = case["queue"]
    for row in case["expect"]["sweep"]:
        content = case["files"][queue][: 2 * row["length"]]
        prefix = {queue: row["valid"]} if row["valid"] < row["length"] else {}
        expect = {"items": row["items"], "valid_prefix": prefix, "open_after_recovery": 0, "restart_stable": True}
        yield {**case, "name": f"{case['name']}-{row['length']}", "files": {queue: content}, "expect": expect}


CASES = [each for case in ROWS for each in each_length(case)]


def named(kind: str) -> list[Any]:
    """Every case; `kind` tells not_yet.py which of the tests below is meant."""
    return cases.params(kind, [(case["name"], case) for case in CASES])


def config_of(case: cases.Case) -> dict[str, Any]:
    return {"queues": {case["queue"]: case["config"]}} if case.get("config") else {}


def expect(what: str, found: object, *allowed: object) -> None:
    if found not in allowed:
        raise Mismatch(f"{what}: {found!r:.600}, expected {' or '.join(f'{each!r:.600}' for each in allowed)}")


@pytest.mark.parametrize("case", named("journal"))
def test_a_recovered_spool_is_what_its_journals_say(case: cases.Case, tmp_path: Path) -> None:
    check_recovery(case, tmp_path)


def check_recovery(case: cases.Case, folder: Path) -> None:
    """Every field of a case, on a spool made in `folder`."""
    spool = folder / "spool"
    spool.mkdir()
    fill(spool, case["files"])
    before = read_folder(spool)
    with recovered(spool, config_of(case)) as found:
        after = read_folder(spool)
        check_state(case, found)
        check_damage(case, found, before, after)
    check_names(case, before, after)
    check_appended(case, before, after)
    copy = shutil.copytree(spool, folder / "copy", ignore=shutil.ignore_patterns(".staniel"))
    check_restart(case, spool, after)
    check_next_xid(case, copy)


def check_state(case: cases.Case, spool: Recovered) -> None:
    wanted = case["expect"]
    items, open_reads = spool.in_memory(case["queue"])
    expect("open reads", open_reads, wanted["open_after_recovery"])
    expect("items in memory", items, *answers(wanted), wanted.get("items_including_expired"))
    if "queues" in wanted:
        expect("queues", spool.queues(), wanted["queues"])


def answers(wanted: cases.Case) -> list[list[str]]:
    """What GETs may deliver."""
    return wanted.get("items_any") or [wanted["items"]]


def check_damage(case: cases.Case, spool: Recovered, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Each damaged file is reported with the length that could be read; what is cut off is kept."""
    valid = case["expect"].get("valid_prefix", {})
    expect("reported damage", {damage.file: damage.at for damage in spool.damages}, valid)
    for damage in spool.damages:
        if damage.file == case["queue"]:
            expect("the tail that was kept", Path(damage.saved_as).read_bytes(), before[damage.file][damage.at :])
        else:
            expect(f"archive {damage.file}", after[damage.file], before[damage.file])


def check_names(case: cases.Case, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    wanted = case["expect"]
    expect("files left that should be gone", set(wanted.get("files_deleted", ())) & set(after), set())
    expect("files gone that should be left", set(wanted.get("files_present", ())) - set(after), set())
    for old, new in wanted.get("renamed", {}).items():
        expect(f"{new}, formerly {old}", after.get(new), before[old])
    untouched = set(before) - set(wanted.get("files_deleted", ())) - {case["queue"]}
    for name in untouched & set(after) - set(wanted.get("renamed", {}).values()):
        expect(f"file {name}", after[name], before[name])
    expect("files gone", untouched - set(after), {name for name in untouched if "~~" in name or name.endswith(".pack")})


def check_appended(case: cases.Case, before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """The current file: its readable part as it was, then one UNREMOVE for each read that was open.

    Items with an id of their own (ADD_XID) that nobody has opened leave another file: written anew, without such ids.
    """
    queue = case["queue"]
    recovered_before = replay.replay(queue, before)
    if any(record.op == 7 for record in recovered_before.items):
        return check_written_anew(recovered_before, queue, after)
    old, new = before.get(queue, b""), after[queue]
    valid = case["expect"].get("valid_prefix", {}).get(queue, len(old))
    expect("the readable part of the file", new[:valid], old[:valid])
    records, readable = replay.read_file(new[valid:])
    expect("bytes appended and readable", readable, len(new) - valid)
    expect("opcodes appended", {record.op for record in records}, set(), {5})
    if "unremoved_xids" in case["expect"] or "next_xid" in case["expect"]:
        expect("ids put back", [record.xid for record in records], case["expect"].get("unremoved_xids", []))


def check_written_anew(wanted: replay.State, queue: str, after: dict[str, bytes]) -> None:
    names = replay.files_of(queue, after)
    contents = [replay.read_file(after[name]) for name in names]
    expect("readable bytes", [length for _, length in contents], [len(after[name]) for name in names])
    expect("items with an id", [record for records, _ in contents for record in records if record.op == 7], [])
    found = replay.replay(queue, after)
    # Opcode 0 knows no add time: those items are taken to be added at the recovery.
    items = [
        (each.data, NOW_MS if each.op == 0 else each.added_ms, each.expires_ms) for each in wanted.after_recovery()
    ]
    expect("items", [(each.data, each.added_ms, each.expires_ms) for each in found.items], items)
    expect("open reads", found.open, {})
    expect("id of the last read", found.counter, wanted.counter)


def check_restart(case: cases.Case, spool: Path, after: dict[str, bytes]) -> None:
    """A second recovery finds nothing to do, and then the items are delivered."""
    with recovered(spool, config_of(case), NOW_MS + 1) as again:
        if case["expect"]["restart_stable"]:
            expect("files after a second recovery", read_folder(spool), after)
            expect("damage after a second recovery", [each for each in again.damages if each.file == case["queue"]], [])
        expect("items delivered", again.drain(case["queue"]), *answers(case["expect"]))


def check_next_xid(case: cases.Case, spool: Path) -> None:
    """A new item is opened under the right id, in the eyes of the judge."""
    if "next_xid" not in case["expect"]:
        return
    queue = case["queue"]
    with recovered(spool, config_of(case)) as again:
        again.drain(queue)
        again.asks(f"set {queue} 0 0 1\r\nx")
        assert item_of(again.asks(f"get {queue}/open")) == "x"
        state = replay.replay(queue, read_folder(spool))
    expect("id of the next open read", list(state.open), [case["expect"]["next_xid"]])


@pytest.mark.parametrize("case", named("closed"))
def test_a_read_that_was_closed_stays_closed_after_the_next_recovery(case: cases.Case, tmp_path: Path) -> None:
    fill(tmp_path, case["files"])
    queue = case["queue"]
    with recovered(tmp_path, config_of(case)) as spool:
        while item_of(spool.asks(f"get {queue}/close/open")) is not None:
            pass
        expect("open reads", spool.in_memory(queue), ([], 0))
        expect("state on the disk", judged(queue, tmp_path), ([], {}))
    with recovered(tmp_path, config_of(case), NOW_MS + 1) as again:
        expect("items delivered twice", again.drain(queue), [])


def judged(queue: str, spool: Path) -> tuple[list[str], dict[int, str]]:
    """(items, open reads) as the judge reads them from the disk."""
    state = replay.replay(queue, read_folder(spool))
    text = [record.data.decode("latin-1") for record in state.items]
    return text, {xid: record.data.decode("latin-1") for xid, record in state.open.items()}


@pytest.mark.parametrize("case", named("judge"))
def test_the_judge_reads_the_same_from_the_files(case: cases.Case) -> None:
    files = {name: bytes.fromhex(content) for name, content in case["files"].items()}
    wanted = case["expect"]
    items = [record.data.decode("latin-1") for record in replay.replay(case["queue"], files).after_recovery()]
    expect(
        "items",
        items,
        *([wanted["items_including_expired"]] if "items_including_expired" in wanted else answers(wanted)),
    )
    lengths = {name: replay.read_file(files[name])[1] for name in replay.files_of(case["queue"], files)}
    valid = {name: at for name, at in lengths.items() if at < len(files[name])}
    expect("readable bytes", valid, wanted.get("valid_prefix", {}))


# All cases in one spool: their files get a prefix, so that each case's queue has a name of its own.


def prefix_of(number: int) -> str:
    return f"c{number}-"


def one_spool() -> tuple[dict[str, Any], dict[str, str]]:
    """(config, files) of every case together."""
    queues: dict[str, Any] = {}
    files: dict[str, str] = {}
    for number, case in enumerate(CASES):
        files |= {prefix_of(number) + name: content for name, content in case["files"].items()}
        queues |= {prefix_of(number) + name: given for name, given in config_of(case).get("queues", {}).items()}
    return {"queues": queues}, files


def drain(port: int) -> dict[str, list[str]]:
    """What GETs deliver from each case's queue, by the case's name."""
    wire = ExpectingWire(port)
    try:
        return {case["name"]: list(deliveries(wire, prefix_of(at) + case["queue"])) for at, case in enumerate(CASES)}
    finally:
        wire.close()


def deliveries(wire: ExpectingWire, queue: str) -> Iterator[str]:
    while True:
        said = wire.says(f"get {queue}\r\n".encode("latin-1"))
        item = wire.hears_item(said + TIMEOUT_MS / 1000)
        if item is None:
            return
        yield item.decode("latin-1")


@pytest.fixture(scope="module")
def delivered() -> dict[str, list[str]]:
    """Started, killed, started again, drained."""
    config, files = one_spool()
    with serving(config, files) as server:
        server.kill9()
        server.start()
        return drain(server.port("memcache"))


@pytest.mark.parametrize("case", named("drained"))
def test_the_server_delivers_what_the_journals_say_after_a_kill(
    case: cases.Case, delivered: dict[str, list[str]]
) -> None:
    expect("items delivered", delivered[case["name"]], *answers(case["expect"]))
