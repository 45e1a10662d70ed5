"""Memory that clients have given back is the system's again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support.process import Server, running, until
from tests.support.wire import Wire, stats

PIECE_BYTES = 2 << 20
CROWD = 12
LONG_BYTES = 20 << 20


def resident_bytes(server: Server) -> int:
    return 4096 * int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])


def begin(wire: Wire, length: int, sent: int) -> None:
    wire.say(b"set q 0 0 %d\r\n" % length + bytes(sent))


def test_unfinished_bodies_leave_no_holes_behind_one_that_stays(tmp_path: Path) -> None:
    config = 'default.max_item_size = "32MB"\n'
    with running(tmp_path, config=config) as server, ExitStack() as stack:
        start = resident_bytes(server)
        with Wire(server.address) as first:
            begin(first, 30 << 20, LONG_BYTES)  # by itself glibc learns from it that blocks so long share a heap
            assert until(lambda: resident_bytes(server) - start > LONG_BYTES * 9 // 10)
        assert until(lambda: resident_bytes(server) - start < LONG_BYTES // 2)
        looks = [0]  # it may still be giving memory back
        assert until(lambda: looks.append(resident_bytes(server)) or looks[-2] == looks[-1])
        before = looks[-1]
        wires = [stack.enter_context(Wire(server.address)) for _ in range(CROWD)]
        for wire in wires:
            begin(wire, 4 * PIECE_BYTES, 0)
        for grown in range(1, 4):  # one beside the other
            for wire in wires:
                wire.say(bytes(PIECE_BYTES))
            expected = grown * CROWD * PIECE_BYTES * 9 // 10
            assert until(lambda least=expected: resident_bytes(server) - before > least)
        for wire in wires[:-1]:
            wire.sock.close()
        assert until(lambda: stats(server.address)["curr_connections"] == "2")
        assert until(lambda: resident_bytes(server) - before < 6 * PIECE_BYTES)
