"""What an operator sees over HTTP of a real server, on a port and by the socket of its spool."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from staniel.compiled import BUILD
from tests.server.admin.asking import Operator
from tests.support.process import Server, running
from tests.support.wire import Wire

CONFIG = """
admin = { port = 0 }
queues.old = { max_memory_size = 4096, sync_journal = "os" }
queues.s.journal_format = "libkestrel"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=CONFIG) as server:
        yield server


def test_a_queue_is_shown_as_it_is(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        for data in (b"one", b"three"):
            assert wire.put("mail", data) == b"STORED"
        assert wire.get("mail/open") == b"one"
        (shown,) = operator.get("/api/queues")
        assert shown == operator.get("/api/queues/mail") | {"age_ms": shown["age_ms"], "oldest_ms": shown["oldest_ms"]}
        assert (shown["name"], shown["items"], shown["bytes"], shown["sync"]) == ("mail", 1, 5, "always")
        assert (shown["open_reads"], shown["waiters"], shown["put_items"]) == (1, 0, 2)
        assert shown["unsynced_bytes"] == 0 and shown["journal_bytes"] > 8
        (held,) = operator.get("/api/queues/mail/open")
        assert (held["xid"], held["deliveries"], held["data_bytes"]) == (1, 1, 3)
        clients = operator.get("/api/clients")
        assert held["client"] in [each["address"] for each in clients if each["open_reads"] == 1]
        assert {each["protocol"] for each in clients} == {"memcache", "admin"}


def test_unsynced_bytes_are_those_that_a_power_cut_could_take(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        assert wire.put("old", b"x" * 100) == b"STORED"
        assert wire.put("mail", b"x" * 100) == b"STORED"
    assert operator.get("/api/queues/old")["unsynced_bytes"] > 100
    assert operator.get("/api/queues/mail")["unsynced_bytes"] == 0


def test_items_are_browsed_in_their_order_wherever_they_are_and_stay(server: Server, operator: Operator) -> None:
    items = [b"%04d" % number + b"." * 60 for number in range(300)]
    for queue in ("old", "s"):
        with Wire(server.address) as wire:
            for data in items:
                assert wire.put(queue, data) == b"STORED"
            assert wire.get(f"{queue}/open") == items[0]
            assert wire.ask(b"get %b/abort" % queue.encode()) == b"END"
        assert queue == "s" or operator.get("/api/queues/old")["memory_items"] < 300, "some are in the journal only"
        for offset in (0, 1, 60, 63, 64, 65, 200, 299):
            page = operator.get(f"/api/queues/{queue}/items?offset={offset}&limit=3")
            assert page["items_total"] == 300
            assert [each["data"].encode() for each in page["items"]] == items[offset : offset + 3]
            assert [each["offset"] for each in page["items"]] == [*range(offset, 300)][:3]
        assert operator.get(f"/api/queues/{queue}/items?offset=300")["items"] == []
        assert operator.get(f"/api/queues/{queue}/items?limit=1")["items"][0]["deliveries"] == 1
        with Wire(server.address) as wire:
            assert [wire.get(queue) for _ in items] == items


def test_a_long_item_is_cut_and_bytes_that_are_no_text_are_base64(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        assert wire.put("mail", b"a" * 10_000) == b"STORED"
        assert wire.put("mail", b"\xff\x00") == b"STORED"
        assert wire.put("mail", "é".encode() * 3000) == b"STORED"
    long, raw, letters = operator.get("/api/queues/mail/items?bytes=101")["items"]
    assert (long["data"], long["data_bytes"], long["is_cut"]) == ("a" * 101, 10_000, True)
    assert (raw["data"], raw["encoding"], raw["is_cut"]) == ("/wA=", "base64", False)
    assert (letters["data"], letters["encoding"]) == ("é" * 50, "text"), "half a letter is left out"


def test_a_page_reads_little_of_a_journal_though_it_shows_nothing_of_its_items(
    server: Server, operator: Operator
) -> None:
    with Wire(server.address) as wire:
        for _ in range(40):
            assert wire.put("old", b"x" * 100_000) == b"STORED"
    assert operator.get("/api/queues/old")["memory_items"] < 5
    page = operator.get("/api/queues/old/items?offset=5&limit=1000&bytes=0")
    assert 10 <= len(page["items"]) <= 16 and page["items"][0]["data_bytes"] == 100_000


def test_what_others_have_confirmed_is_no_item_of_a_page(server: Server, operator: Operator) -> None:
    items = [b"%d" % number for number in range(6)]
    server.config.write_text(CONFIG + "queues.s.max_memory_size = 1\n")
    with Wire(server.address) as one, Wire(server.address) as other:
        for data in items:
            assert one.put("s", data) == b"STORED"
        assert one.get("s/open") == items[0]
        assert other.get("s/open") == items[1]
        assert other.ask(b"get s/close") == b"END"
        server.kill()
    operator = Operator(server.start().second_port)
    for offset in range(5):
        page = operator.get(f"/api/queues/s/items?offset={offset}")
        assert [each["data"].encode() for each in page["items"]] == [items[0], *items[2:]][offset:]


@pytest.mark.parametrize("path", ["/stats.json", "/stats.txt"])
def test_kestrels_statistics_of_many_queues_are_one_answer_in_the_order_of_names(
    server: Server, operator: Operator, path: str
) -> None:
    with Wire(server.address) as wire:
        for number in range(150):
            assert wire.put(f"q{number}", b"1") == b"STORED"
        assert wire.put("q1+x", b"1") == b"STORED"
    body = operator.ask("GET", path).body
    if path.endswith(".json"):
        found = {kind: list(values) for kind, values in json.loads(body).items()}
    else:
        found = {}
        for line in body.decode().splitlines():
            name, _, _ = line.strip().rpartition(":") if line.endswith(":") else line.strip().partition(": ")
            (found.setdefault(name, []) if not line.startswith(" ") else found[[*found][-1]].append(name))
    assert list(found) == ["counters", "gauges", "labels", "metrics"]
    assert all(names == sorted(names) for names in found.values())
    assert sum(name.endswith("/items") for name in found["gauges"]) == 151
    assert {"cmd_set", "q/q149/total_items", "total_items"} <= set(found["counters"])


def test_a_queue_whose_file_name_is_no_utf_8_is_shown(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / os.fsdecode(b"a\xff")).touch()
    with running(tmp_path, config=CONFIG) as server:
        operator = Operator(server.second_port)
        assert [each["name"] for each in operator.get("/api/queues")] == ["a\udcff"]
        assert b'{queue="a\\\\udcff"} 0\n' in operator.ask("GET", "/metrics").body
        assert "q/a\udcff/items" in operator.get("/stats.json")["gauges"]
        assert b"  q/a\\udcff/items: 0\n" in operator.ask("GET", "/stats.txt").body
        assert operator.get("/api/queues/a%FF")["name"] == "a\udcff"
        assert operator.post("/api/queues/a%FF/put", {"data": "x"}) == {"stored": 1}
        number = operator.post("/api/queues/a%FF/purge")["undo"]
        assert operator.post(f"/api/undo/{number}")["queue"] == "a\udcff"
        assert [each["queue"] for each in operator.get("/api/audit")] == ["a\udcff"] * 4
        server.restart()
        operator = Operator(server.second_port)
        assert {each["queue"] for each in operator.get("/api/audit")} == {"a\udcff"}
        assert operator.get("/api/queues/a%FF")["items"] == 1
        assert operator.ask("GET", "/api/queues/a%FE").status == 404


def test_health_says_what_is_wrong_and_what_mends_it(server: Server, operator: Operator) -> None:
    assert operator.get("/health/live") == {"status": "ok"}
    health = operator.get("/health/ready")
    assert health["ready"] is True and health["build"] == operator.get("/api/server")["build"] == BUILD
    assert operator.post("/api/status", {"status": "readonly"}) == {"status": "readonly"}
    reply = operator.ask("GET", "/health/ready")
    assert reply.status == 200 and reply.json["ready"] is True, "consumers can still drain it"
    strict = operator.ask("GET", "/health/ready?for=puts")
    assert strict.status == 503 and strict.json["ready_for_puts"] is False
    assert operator.ask("GET", "/health/ready?for=gets").status == 200
    assert "for is gets or puts" in operator.ask("GET", "/health/ready?for=fun").json["error"]
    (reason,) = [each for each in reply.json["reasons"] if each["name"] == "status"]
    assert "readonly" in reason["text"] and reason["mend"] == "staniel status up"
    operator.post("/api/status", {"status": "quiescent"})
    reply = operator.ask("GET", "/health/ready")
    assert reply.status == 503 and reply.json["ready"] is False


def test_metrics_are_prometheus_text(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        assert wire.put('a"b\\c', b"12345") == b"STORED"
    reply = operator.ask("GET", "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    assert '\nstaniel_queue_bytes{queue="a\\"b\\\\c"} 5\n' in text
    sample = re.compile(r'(?:staniel|process)_[a-z_]+(\{[a-z]+="(\\.|[^"\\\n])*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    seen: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            seen.append(name)
            names = {name + suffix for suffix in suffixes.get(kind, ("",))}
        elif not line.startswith("#"):
            assert sample.fullmatch(line), line
            assert re.split("[{ ]", line)[0] in names, "all samples of a metric stand together"
    assert len(seen) == len(set(seen)) > 20


def test_a_scrape_has_the_figures_of_the_process(server: Server, operator: Operator) -> None:
    def scraped() -> dict[str, float]:
        lines = operator.ask("GET", "/metrics").body.decode().splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("process_")}

    def of_kernel(name: str) -> int:
        status = Path(f"/proc/{server.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)[1]) << 10  # type: ignore[index]

    found, began = scraped(), Path(f"/proc/{server.pid}").stat().st_mtime
    assert set(found) == {
        "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes",
        "process_open_fds", "process_max_fds", "process_start_time_seconds",
    }  # fmt: skip
    assert abs(found["process_resident_memory_bytes"] - of_kernel("VmRSS")) < 32 << 20
    assert abs(found["process_virtual_memory_bytes"] - of_kernel("VmSize")) < 64 << 20
    assert abs(found["process_start_time_seconds"] - began) < 5
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(Wire(server.address)).ask(b"version")
        assert scraped()["process_open_fds"] >= found["process_open_fds"] + 40
    assert found["process_open_fds"] < found["process_max_fds"] and found["process_cpu_seconds_total"] > 0


def test_every_path_of_the_description_is_served_and_says_what_it_promises(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        assert wire.put("mail", b"1") == b"STORED"
    number = operator.post("/api/queues/mail/purge")["undo"]
    document = operator.get("/openapi.json")
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        if "get" not in methods:
            assert operator.ask("GET", path.format(queue="mail", xid="1", number="1", hold="archive")).status == 405
            continue
        if "text/event-stream" in methods["get"]["responses"]["200"].get("content", {}):
            continue  # it has no end; see test_events.py
        reply = operator.ask("GET", path.format(queue="mail", number=number))
        if path == "/cluster":  # this server stands alone
            assert reply.status == 404
            continue
        assert reply.status == 200, path
        schema = methods["get"]["responses"]["200"].get("content", {}).get("application/json", {}).get("schema")
        if schema is not None:
            check(reply.json, schema, document["components"]["schemas"])


def check(value: object, schema: dict[str, object], known: dict[str, dict[str, object]]) -> None:
    """`value` has the fields, all of them, and the types that the schema names."""
    if "$ref" in schema:
        schema = known[str(schema["$ref"]).rpartition("/")[2]]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}
    if "anyOf" in schema:
        options = [each for each in schema["anyOf"] if each != {"type": "null"}]  # type: ignore[attr-defined]
        if value is not None:
            check(value, *options, known)
        return
    if "enum" in schema:
        assert value in schema["enum"]  # type: ignore[operator]
        return
    assert isinstance(value, kinds[str(schema["type"])]), (value, schema)
    if isinstance(value, list):
        for each in value:
            check(each, schema["items"], known)  # type: ignore[arg-type]
    elif isinstance(value, dict):
        properties = schema["properties"]
        assert isinstance(properties, dict) and set(value) == set(properties)
        for name, each in value.items():
            check(each, properties[name], known)


def test_what_is_not_there_is_named(operator: Operator) -> None:
    for path, status in (("/api/queues/none", 404), ("/nope", 404), ("/api/queues/none/items", 404)):
        reply = operator.ask("GET", path)
        assert reply.status == status and reply.json["error"]
    assert operator.ask("POST", "/metrics", {}).headers["allow"] == "GET"
    assert operator.ask("HEAD", "/api/server").body == b""


def test_many_queues_come_in_pieces_and_whole(server: Server, operator: Operator) -> None:
    names = [f"q{number:04}" for number in range(700)]
    with Wire(server.address) as wire:
        for name in names:
            assert wire.put(name, b"1") == b"STORED"
    assert [each["name"] for each in operator.get("/api/queues")] == names
    assert len(operator.get("/api/queues?prefix=q01")) == 100
    text = operator.ask("GET", "/metrics").body.decode()
    assert text.count("staniel_queue_items{") == 700


def test_kestrels_paths_answer_as_scripts_expect(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        assert wire.put("mail", b"12345") == b"STORED"
    assert operator.ask("GET", "/ping").body == b"pong\n"
    stats = operator.get("/stats.json")
    assert set(stats) == {"counters", "gauges", "labels", "metrics"}
    assert (stats["gauges"]["q/mail/items"], stats["counters"]["q/mail/total_items"]) == (1, 1)
    assert "q/mail/items: 1" in operator.ask("GET", "/stats.txt").body.decode()
    assert operator.ask("GET", "/server_info.txt").body.startswith(b"name: staniel\n")
    assert operator.ask("GET", "/shutdown").status == 404


def test_what_one_sync_of_many_queues_has_covered_is_safe(server: Server, operator: Operator) -> None:
    """More than eight files are synced all at once."""
    names = [f"q{number}" for number in range(30)]
    wires = [Wire(server.address) for _ in names]
    for wire, name in zip(wires, names, strict=True):
        wire.say(b"set %b 0 0 5\r\n12345\r\n" % name.encode())
    assert [wire.line() for wire in wires] == [b"STORED"] * len(names)
    for wire in wires:
        wire.sock.close()
    assert [each["unsynced_bytes"] for each in operator.get("/api/queues")] == [0] * len(names)
