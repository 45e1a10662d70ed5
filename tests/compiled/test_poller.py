"""The hub's poller and the standard library's: the same events, the same errors."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from staniel.compiled import IS_COMPILED
from staniel.server import poller as module

READABLE_OR_ENDED = select.EPOLLIN | select.EPOLLRDHUP


@pytest.fixture(params=[module.Poller, select.epoll], ids=["the hub's", "the library's"])
def poller(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = request.param()
    yield made
    made.close()
    made.close()


@pytest.mark.compiled
def test_the_compiled_poller_is_used() -> None:
    assert IS_COMPILED
    assert module.Poller is not select.epoll


def test_events_follow_what_is_watched(poller: Any) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        fd = ours.fileno()
        poller.register(fd, READABLE_OR_ENDED)
        assert poller.poll(0, 8) == []
        assert poller.poll(0.001, 8) == []
        other.send(b"x")
        assert poller.poll(0, 8) == poller.poll(0, 8) == [(fd, select.EPOLLIN)]
        poller.modify(fd, select.EPOLLOUT)
        assert poller.poll(-1, 8) == [(fd, select.EPOLLOUT)]
        poller.modify(fd, READABLE_OR_ENDED)
        other.shutdown(socket.SHUT_WR)
        assert poller.poll() == [(fd, READABLE_OR_ENDED)]
        poller.unregister(fd)
        assert poller.poll(0, 8) == []


def test_no_more_events_than_asked_for(poller: Any) -> None:
    pairs = [socket.socketpair() for _ in range(70)]
    for ours, other in pairs:
        poller.register(ours.fileno(), select.EPOLLIN)
        other.send(b"x")
    assert len(poller.poll(0, 5)) == 5
    events = poller.poll(0, 1023)
    assert {fd for fd, _ in events} == {ours.fileno() for ours, _ in pairs}
    assert {mask for _, mask in events} == {select.EPOLLIN}
    for pair in pairs:
        for each in pair:
            each.close()


def test_mistakes_raise_the_errors_of_the_system(poller: Any) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        fd = ours.fileno()
        with pytest.raises(FileNotFoundError):
            poller.modify(fd, select.EPOLLIN)
        with pytest.raises(FileNotFoundError):
            poller.unregister(fd)
        poller.register(fd, select.EPOLLIN)
        with pytest.raises(FileExistsError):
            poller.register(fd, select.EPOLLIN)
    with pytest.raises(OSError):  # EBADF: its descriptor is closed
        poller.register(fd, select.EPOLLIN)


def test_a_wait_of_weeks_is_no_overflow(poller: Any) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        poller.register(ours.fileno(), select.EPOLLOUT)
        assert poller.poll(2_000_000.0, 1) == [(ours.fileno(), select.EPOLLOUT)]
