"""Clients that never read, never finish, never stop, lie about sizes, or leave in the middle.

The others notice nothing.
"""

from __future__ import annotations

import socket
import struct
import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.process import Server, running, until
from tests.support.wire import Wire, drain, stats

MB = 1 << 20


def answers_others(server: Server, seconds_max: float = 30.0) -> bool:
    """Whether a newcomer is served within the time, which a busy machine may need; a hostile client has more."""
    with Wire(server.address) as wire:
        wire.sock.settimeout(seconds_max)
        try:
            return wire.put("polite", b"x") == b"STORED" and wire.get("polite") == b"x"
        except TimeoutError:
            return False


def waits(server: Server, count: int) -> bool:
    """Whether so many clients wait in `jobs`."""
    return stats(server.address).get("queue_jobs_waiters") == str(count)


def reset(wire: Wire) -> None:
    """Leave without a goodbye: the server gets a reset."""
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sock.close()


def flood(wire: Wire, data: bytes, seconds_max: float = 1.0) -> int:
    """Send `data` again and again until the socket takes no more for a while; bytes taken."""
    wire.sock.settimeout(0.3)
    taken, give_up = 0, time.monotonic() + seconds_max
    try:
        while time.monotonic() < give_up:
            taken += wire.sock.send(data)
    except TimeoutError:
        pass
    return taken


def test_a_client_that_never_reads_costs_little_memory(server: Server) -> None:
    with Wire(server.address) as polite, Wire(server.address, receive_buffer_bytes=4096) as deaf:
        polite.put("jobs", bytes(MB))
        before = server.memory_bytes()
        flood(deaf, b"get jobs/peek\r\n" * 5000)
        assert answers_others(server)
        assert server.memory_bytes() - before < 48 * MB


def test_a_client_that_never_read_and_leaves_stops_nobody(server: Server) -> None:
    with Wire(server.address) as polite, Wire(server.address, receive_buffer_bytes=4096) as deaf:
        polite.put("jobs", bytes(MB))
        deaf.say(b"get jobs/peek\r\n" * 100)
        assert answers_others(server)
    assert answers_others(server)
    assert until(lambda: stats(server.address)["curr_connections"] == "1")


def test_what_a_client_read_late_is_complete(server: Server) -> None:
    data = bytes(range(256)) * 1024
    with Wire(server.address, receive_buffer_bytes=4096) as slow:
        slow.put("jobs", data)
        slow.say(b"get jobs/peek\r\n" * 40)
        assert answers_others(server)
        for _ in range(40):
            assert slow.line() == b"VALUE jobs/peek 0 %d" % len(data)
            assert slow.hear(len(data)) == data
            assert [slow.line(), slow.line()] == [b"", b"END"]


def test_a_flood_behind_a_wait_costs_little_memory(server: Server) -> None:
    with Wire(server.address) as waiting:
        before = server.memory_bytes()
        waiting.say(b"get jobs/t=60000\r\n")
        flood(waiting, b"version\r\n" * 5000)
        assert answers_others(server)
        assert server.memory_bytes() - before < 48 * MB


def test_a_set_that_claims_ten_gigabytes_is_refused_before_it_costs_anything(server: Server) -> None:
    with Wire(server.address) as liar:
        before = server.memory_bytes()
        assert liar.say(b"set jobs 0 0 10737418240\r\n").line().startswith(b"CLIENT_ERROR")
        assert liar.closed_by_server()
        assert answers_others(server)
        assert server.memory_bytes() - before < 8 * MB


def test_a_set_over_the_limit_is_read_past_without_keeping_it(server: Server) -> None:
    length = 100 * MB
    with Wire(server.address) as liar:
        before = server.memory_bytes()
        liar.say(b"set jobs 0 0 %d\r\n" % length)
        for _ in range(100):
            liar.say(bytes(MB))
        assert server.memory_bytes() - before < 16 * MB
        assert liar.say(b"\r\n").line().startswith(b"CLIENT_ERROR object too large: ")
        assert liar.put("jobs", b"small") == b"STORED"


def test_an_unfinished_set_costs_no_more_than_it_sent(server: Server) -> None:
    wires = [Wire(server.address) for _ in range(50)]
    before = server.memory_bytes()
    for wire in wires:
        wire.say(b"set jobs 0 0 16000000\r\nhello")
    assert answers_others(server)
    assert server.memory_bytes() - before < 16 * MB
    for wire in wires:
        wire.sock.close()
    assert drain(server.address, "jobs") == []


def test_an_item_of_fifteen_megabytes_survives_a_kill(server: Server) -> None:
    data = bytes(range(256)) * (60 * 1024)
    with Wire(server.address) as wire:
        assert wire.put("jobs", data) == b"STORED"
    server.restart()
    assert drain(server.address, "jobs") == [data]


def test_a_queue_may_allow_less_than_the_server_reads(tmp_path: Path) -> None:
    with running(tmp_path, config='[queues.small]\nmax_item_size = "1KB"\n') as server, Wire(server.address) as wire:
        assert wire.put("small", bytes(1024)) == b"STORED"
        assert wire.put("small", bytes(1025)).startswith(b"CLIENT_ERROR object too large: 1025 bytes")
        assert wire.put("large", bytes(1025)) == b"STORED"


def test_a_line_without_an_end_is_refused(server: Server) -> None:
    with Wire(server.address) as endless:
        endless.say(b"get " + b"x" * 40_000)
        assert endless.line().startswith(b"CLIENT_ERROR")
        assert endless.closed_by_server()


def test_one_byte_at_a_time_is_slow_only_for_the_one_who_sends_it(server: Server) -> None:
    with Wire(server.address) as slow:
        for byte in b"set jobs 0 0 100\r\n" + b"x" * 100:
            slow.say(bytes([byte]))
        assert answers_others(server)
        assert slow.say(b"\r\n").line() == b"STORED"


def test_a_long_pipeline_starves_nobody(server: Server) -> None:
    with Wire(server.address) as greedy, Wire(server.address) as polite:
        greedy.sock.setblocking(False)
        pipeline = memoryview(b"set greedy 0 0 5\r\nhello\r\nget greedy\r\n" * 20_000)
        heard, worst_s, answered = bytearray(), 0.0, 0
        stop = time.monotonic() + 120
        while len(heard) < 20_000 * len(b"STORED\r\nVALUE greedy 0 5\r\nhello\r\nEND\r\n"):
            assert time.monotonic() < stop
            try:
                pipeline = pipeline[greedy.sock.send(pipeline[: 1 << 18]) :] if pipeline else pipeline
            except BlockingIOError:
                pass
            try:
                heard += greedy.sock.recv(1 << 18)
            except BlockingIOError:
                pass
            began = server.cpu_seconds()  # a busy machine makes others wait, too
            assert polite.put("polite", b"x") == b"STORED"
            worst_s = max(worst_s, server.cpu_seconds() - began)
            answered += 1
        assert bytes(heard) == b"STORED\r\nVALUE greedy 0 5\r\nhello\r\nEND\r\n" * 20_000
        assert answered >= 5 and worst_s < 2.0, (answered, worst_s)


def test_a_client_that_sent_more_than_is_kept_unread_is_heard_again(server: Server) -> None:
    with Wire(server.address) as wire:
        for _ in range(4):
            assert wire.say(b"get jobs\r\n" * 60_000).hear(60_000 * len(b"END\r\n")) == b"END\r\n" * 60_000


def test_a_client_that_half_closes_behind_a_wait_loses_no_item(server: Server) -> None:
    with Wire(server.address) as gone:
        gone.say(b"get jobs/t=500\r\n").end_sending()
        assert gone.rest() in (b"", b"END\r\n")
    with Wire(server.address) as wire:
        assert wire.put("jobs", b"a") == b"STORED"
    assert drain(server.address, "jobs") == [b"a"]


def test_what_a_client_asked_before_it_half_closed_is_answered(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"set jobs 0 0 1\r\na\r\nget jobs/open\r\nget jobs/close\r\n").end_sending()
        assert wire.rest() == b"STORED\r\nVALUE jobs/open 0 1\r\na\r\nEND\r\nEND\r\n"
    assert drain(server.address, "jobs") == []


def test_large_answers_pipelined_before_a_half_close_leave_the_server_alive(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", bytes(600_000))
        wire.say(b"get jobs/peek\r\n" * 20).end_sending()
        assert answers_others(server)
        assert len(wire.rest()) > 20 * 600_000


def test_a_large_upload_before_a_half_close_is_stored_to_its_last_item(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"set jobs 0 0 1\r\nx\r\n" * 40_000).end_sending()
        assert wire.rest().count(b"STORED") == 40_000


def test_a_half_closed_client_that_does_not_read_costs_no_processor_time(server: Server) -> None:
    with Wire(server.address, receive_buffer_bytes=4096) as deaf:
        deaf.put("jobs", bytes(8 * MB))
        deaf.say(b"get jobs/peek\r\n").end_sending()
        assert answers_others(server)
        before = server.cpu_seconds()
        until(lambda: server.cpu_seconds() - before > 0.3, 2.0)
        assert server.cpu_seconds() - before < 0.3


@pytest.mark.parametrize("leave", ["reset", "close"])
def test_hang_ups_among_fifty_waiters_lose_nothing_and_keep_the_order(server: Server, leave: str) -> None:
    waiters = [Wire(server.address) for _ in range(50)]
    for count, wire in enumerate(waiters, 1):
        wire.say(b"get jobs/t=300000/open\r\n")
        assert until(partial(waits, server, count))
    for wire in waiters[::2]:
        reset(wire) if leave == "reset" else wire.sock.close()
    assert until(partial(waits, server, 25))
    with Wire(server.address) as producer:
        for number in range(30):
            assert producer.put("jobs", b"%02d" % number) == b"STORED"
    for number, wire in enumerate(waiters[1::2]):
        assert wire.line() == b"VALUE jobs/t=300000/open 0 2"
        assert wire.line() == b"%02d" % number
    for wire in waiters[1::2]:
        reset(wire) if leave == "reset" else wire.sock.close()
    assert until(lambda: stats(server.address)["queue_jobs_items"] == "30")
    assert sorted(drain(server.address, "jobs")) == [b"%02d" % number for number in range(30)]


def test_waiters_that_leave_while_items_come_lose_nothing(server: Server) -> None:
    waiters = [Wire(server.address) for _ in range(50)]
    for wire in waiters:
        wire.say(b"get jobs/t=300000/open\r\n")
    with Wire(server.address) as producer:
        producer.say(b"".join(b"set jobs 0 0 2\r\n%02d\r\n" % number for number in range(60)))
        for wire in waiters:
            reset(wire)
        assert [producer.line() for _ in range(60)] == [b"STORED"] * 60
    assert until(lambda: stats(server.address)["queue_jobs_items"] == "60")
    assert sorted(drain(server.address, "jobs")) == [b"%02d" % number for number in range(60)]


def test_several_reads_of_one_lost_client_come_back_in_their_order(server: Server) -> None:
    with Wire(server.address) as worker:
        for number in range(10):
            worker.put("jobs", b"%d" % number)
        for number in range(5):
            assert worker.get("jobs/open") == b"%d" % number
        reset(worker)
    assert until(lambda: stats(server.address)["queue_jobs_items"] == "10")
    assert drain(server.address, "jobs") == [b"%d" % number for number in range(10)]
