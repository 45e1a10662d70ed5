"""What counts against max_pending_size_total besides unfinished requests: unread replies, requests behind a wait."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.server.test_debts import is_dropped
from tests.support.process import running
from tests.support.wire import Wire

LITTLE_BYTES = 4096


def test_who_is_owed_most_and_reads_nothing_is_dropped_first(tmp_path: Path) -> None:
    config = '[server]\nmax_pending_size_total = "12MB"\n'
    with running(tmp_path, config=config) as server, Wire(server.address) as polite:
        for name, size in (("small", 5_000_000), ("large", 9_000_000)):
            assert polite.put(name, bytes(size)) == b"STORED"
        with Wire(server.address, LITTLE_BYTES) as slow, Wire(server.address, LITTLE_BYTES) as deaf:
            slow.say(b"get small/peek\r\n")
            assert slow.line() == b"VALUE small/peek 0 5000000"
            deaf.say(b"get large/peek\r\n")
            assert deaf.line() == b"VALUE large/peek 0 9000000"
            assert len(deaf_hears(deaf)) < 9_000_000
            assert slow.hear(5_000_000) == bytes(5_000_000) and (slow.line(), slow.line()) == (b"", b"END")
            assert polite.ask(b"version").startswith(b"VERSION")
    assert server.stderr.count(" client.cut ") == 1


def deaf_hears(wire: Wire) -> bytes:
    try:
        return wire.hear(9_000_000)
    except ConnectionError:
        return b""


def test_what_is_asked_behind_waits_counts_too(tmp_path: Path) -> None:
    config = '[server]\nmax_pending_size_total = "900KB"\n'
    with running(tmp_path, config=config) as server, ExitStack() as stack:
        *small, large = [stack.enter_context(Wire(server.address)) for _ in range(6)]
        for wire in (*small, large):
            wire.say(b"get nothing/t=60000\r\n")
        for wire in small:
            wire.say(b"set q 0 0 150000\r\n" + bytes(150_000) + b"\r\n")
        large.say(b"set q 0 0 240000\r\n" + bytes(240_000) + b"\r\n")
        assert is_dropped(large.sock, 5)
        assert not any(is_dropped(wire.sock, 0.1) for wire in small)


def test_a_large_body_behind_a_wait_is_read_once_the_wait_is_over(tmp_path: Path) -> None:
    data = bytes(5_000_000)
    with running(tmp_path) as server, Wire(server.address) as wire, Wire(server.address) as other:
        wire.say(b"get nothing/t=500\r\n")
        assert other.ask(b"version").startswith(b"VERSION")
        wire.say(b"set q 0 0 %d\r\n%b\r\n" % (len(data), data))
        assert (wire.line(), wire.line()) == (b"END", b"STORED")
        assert other.get("q") == data


def test_clients_that_are_dropped_again_and_again_leave_one_line(tmp_path: Path) -> None:
    config = '[server]\nmax_pending_size_total = "100KB"\n'
    with running(tmp_path, config=config) as server:
        for _ in range(10):
            with Wire(server.address) as wire:
                wire.say(b"set q 0 0 1000000\r\n" + bytes(200_000))
                assert is_dropped(wire.sock, 5)
        assert server.stderr.count(" client.cut ") == 1
