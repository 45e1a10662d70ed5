"""`staniel get` removes an item once it is printed, and read: never one that its reader did not get."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.server.admin.asking import Operator, SpoolConnection
from tests.support.process import STANIEL, Server
from tests.support.wire import Wire


def fill(server: Server, count: int) -> None:
    with Wire(server.address) as wire:
        for number in range(count):
            assert wire.put("q", b"item %d" % number) == b"STORED"


def left(server: Server) -> int:
    return int(Operator(server.spool).ask("GET", "/api/queues/q").json["items"])


def shell(server: Server, line: str) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "STANIEL_SPOOL": str(server.spool)}
    return subprocess.run(["bash", "-c", f'staniel() {{ {STANIEL[0]} "$@"; }}; {line}'], env=env, capture_output=True)


def test_a_reader_that_goes_takes_what_it_has_read_and_no_more(server: Server) -> None:
    fill(server, 10)
    assert shell(server, "staniel get q -n 10 | head -n 1").stdout == b"item 0\n"
    assert left(server) == 9
    assert shell(server, "staniel get q -n 10 | true").returncode == 0
    assert left(server) == 9


def test_a_full_disk_costs_no_item(server: Server) -> None:
    fill(server, 3)
    for options in ("", "-n 3", "-n 3 --json"):
        assert shell(server, f"staniel get q {options} > /dev/full").returncode == 1
        assert left(server) == 3


def test_items_are_printed_in_their_order_and_gone(server: Server) -> None:
    fill(server, 40)
    assert shell(server, "staniel get q -n 20").stdout == b"".join(b"item %d\n" % number for number in range(20))
    assert shell(server, "staniel get q -n 50 --json").stdout.count(b'"data"') == 20
    assert left(server) == 0
    assert shell(server, "staniel get q").returncode == 1


def test_what_a_connection_has_open_is_confirmed_on_it_or_goes_back(server: Server, tmp_path: Path) -> None:
    fill(server, 2)
    connection = SpoolConnection(server.spool)

    def take(body: str) -> tuple[int, bytes]:
        connection.request("POST", "/api/queues/q/take", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert take('{"count": 2, "open": true}')[1].count(b'"data"') == 2
    assert left(server) == 0
    assert take('{"count": 0, "confirm": 1}') == (200, b'{"items":[]}\n')
    assert take('{"count": 0, "confirm": 2}')[0] == 409
    connection.close()
    for _ in range(100):
        if left(server) == 1:
            break
    assert left(server) == 1
