"""Nobody's library: a person or a script that ends lines with LF alone, types slowly and makes mistakes."""

from __future__ import annotations

import subprocess

import pytest

from tests.foreign_clients.waiting import WAIT_MS, item_for_the_waiter, takes_about
from tests.support.process import Server
from tests.support.wire import Wire, drain


def test_lines_may_end_with_lf_alone(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.say(b"set jobs 0 0 5\nhello\n").line() == b"STORED"
        assert wire.say(b"get jobs/open\n").line() == b"VALUE jobs/open 0 5"
        assert [wire.line(), wire.line()] == [b"hello", b"END"]
        assert wire.say(b"get jobs/close\n").line() == b"END"
        assert wire.say(b"delete jobs\n").line() == b"DELETED"
        assert wire.say(b"flush_all\n").line() == b"OK"
        assert wire.say(b"version\n").line().startswith(b"VERSION ")


def test_a_whole_conversation_may_arrive_byte_by_byte(server: Server) -> None:
    with Wire(server.address) as wire:
        for byte in b"set jobs 3 0 2 noreply\nhi\nget jobs\n":
            wire.say(bytes([byte]))
        assert [wire.line(), wire.line(), wire.line()] == [b"VALUE jobs 3 2", b"hi", b"END"]


def test_a_wait_ends_when_its_time_is_over_or_an_item_comes(server: Server) -> None:
    with Wire(server.address) as wire:
        with takes_about(WAIT_MS):
            assert wire.get(f"jobs/t={WAIT_MS}") is None
        with item_for_the_waiter(server, "jobs", b"here"):
            assert wire.get("jobs/t=4000/open") == b"here"


def test_what_is_typed_behind_a_wait_is_answered_behind_it(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"get jobs/t=100\nversion\n")
        assert wire.line() == b"END"
        assert wire.line().startswith(b"VERSION ")


@pytest.mark.parametrize(
    ("typed", "heard"),
    [
        (b"hello", b"ERROR"),
        (b"", b"ERROR"),
        (b"get", b"CLIENT_ERROR no key"),
        (b"get jobs/open/peek", b"CLIENT_ERROR"),
        (b"get a.b", b"CLIENT_ERROR"),
        (b"set jobs 0 0", b"CLIENT_ERROR"),
        (b"incr jobs 1", b"CLIENT_ERROR"),
    ],
)
def test_a_mistake_is_named_and_the_connection_stays(server: Server, typed: bytes, heard: bytes) -> None:
    with Wire(server.address) as wire:
        assert wire.say(typed + b"\n").line().startswith(heard)
        assert wire.ask(b"version").startswith(b"VERSION ")


def test_a_block_of_the_wrong_length_is_refused_and_the_next_line_is_read(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.say(b"set jobs 0 0 2\nhello\n").line() == b"CLIENT_ERROR bad data chunk"
        assert wire.put("jobs", b"good") == b"STORED"
        assert drain(server.address, "jobs") == [b"good"]


def test_a_second_plain_get_beside_an_open_read_is_refused(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.put("jobs", b"a")
        assert wire.get("jobs/open") == b"a"
        assert wire.ask(b"get jobs").startswith(b"CLIENT_ERROR")
        assert wire.get("jobs/peek") is None
        assert wire.ask(b"get jobs/abort") == b"END"
        assert wire.get("jobs") == b"a"


def test_quit_ends_the_connection(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.say(b"quit\nversion\n").closed_by_server()


def test_a_binary_client_is_hung_up_on(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.say(b"\x80\x0b" + bytes(22)).closed_by_server()


@pytest.mark.programs("nc")
def test_a_script_pipes_its_requests_through_nc(server: Server) -> None:
    requests = b"set jobs 0 0 5\r\nhello\r\nget jobs\r\nquit\r\n"
    nc = ["nc", "-w", "5", "127.0.0.1", str(server.port)]
    said = subprocess.run(nc, input=requests, capture_output=True, timeout=60)
    assert said.stdout == b"STORED\r\nVALUE jobs 0 5\r\nhello\r\nEND\r\n"


@pytest.mark.programs("nc")
def test_a_script_that_shuts_its_side_hears_every_answer(server: Server) -> None:
    requests = b"".join(b"set jobs 0 0 3\r\n%03d\r\n" % number for number in range(500)) + b"get jobs\r\n"
    nc = ["nc", "-N", "-w", "5", "127.0.0.1", str(server.port)]
    said = subprocess.run(nc, input=requests, capture_output=True, timeout=60)
    assert said.stdout == b"STORED\r\n" * 500 + b"VALUE jobs 0 3\r\n000\r\nEND\r\n"
