"""A client that closes its sending side: what it has asked for is answered, and a wait of it is over."""

from __future__ import annotations

import pytest

from tests.support.process import Server, until
from tests.support.wire import Wire, drain, stats


def test_what_was_asked_before_is_done_and_answered(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.say(b"set q 0 0 1\r\na\r\nset q 0 0 1\r\nb\r\nget q\r\n").end_sending()
        assert wire.rest() == b"STORED\r\nSTORED\r\nVALUE q 0 1\r\na\r\nEND\r\n"


@pytest.mark.parametrize("wait", [b"get q/t=60000", b"get none/t=60000/open", b"monitor q 60", b"mg q/t=60000 v"])
def test_a_wait_and_what_stands_behind_it_are_dropped_because_the_client_may_have_gone(
    server: Server, wait: bytes
) -> None:
    with Wire(server.address) as wire, Wire(server.address) as other:
        other.put("r", b"kept")
        wire.say(b"version\r\n" + wait + b"\r\nget r\r\nset q 0 0 1\r\nx\r\n").end_sending()
        assert wire.rest().count(b"\r\n") == 1
        assert until(lambda: stats(server.address)["curr_connections"] == "2")
        assert other.put("q", b"later") == b"STORED"
    assert (drain(server.address, "q"), drain(server.address, "r")) == ([b"later"], [b"kept"])
