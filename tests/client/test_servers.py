"""Which of several servers is asked next: turns, those that are set aside, leaders. Without sockets or a clock."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest

from staniel.client.servers import ASIDE_S_MAX, ASIDE_S_MIN, FOLLOWER_ASIDE_S, Servers, leader_of

A, B, C = ("a", 1), ("b", 1), ("c", 1)


def at(first: int) -> Callable[[], float]:
    """Chances by which one of two or three servers is the first."""
    chances = cycle([first / 2, 0.0, 0.99, 0.5])
    return lambda: next(chances)


def test_each_call_begins_with_the_next_server() -> None:
    servers = Servers([A, B, C], lambda: 0.4)
    assert [servers.in_turn(0) for _ in range(4)] == [[B, C, A], [C, A, B], [A, B, C], [B, C, A]]


def test_clients_do_not_all_begin_with_the_same_server() -> None:
    assert {Servers([A, B, C], partial(float, number / 10)).in_turn(0)[0] for number in range(10)} == {A, B, C}


def test_a_lost_server_is_set_aside_and_asked_again_after_longer_and_longer_times() -> None:
    servers = Servers([A, B], at(0))
    now_s = 100.0
    for times in range(1, 15):
        servers.lost(A, now_s)
        again_s = servers.next_due_s(now_s)
        assert again_s is not None
        longest = min(ASIDE_S_MAX, ASIDE_S_MIN * 2 ** (times - 1))
        assert longest / 2 <= again_s - now_s <= longest + 1e-9
        assert servers.in_turn(again_s - 0.001) == [B]
        assert set(servers.in_turn(again_s)) == {A, B}
        now_s = again_s
    servers.heard(A)
    servers.lost(A, now_s)
    again_s = servers.next_due_s(now_s)
    assert again_s is not None and again_s - now_s <= ASIDE_S_MIN + 1e-9


def test_if_all_are_set_aside_the_one_whose_time_comes_first_is_asked() -> None:
    servers = Servers([A, B], at(0))
    servers.lost(A, 0)
    for _ in range(5):
        servers.lost(B, 0)
    assert servers.in_turn(0) == [A]


def test_a_leader_is_asked_instead_of_the_server_that_names_it() -> None:
    servers = Servers([A, B], at(0))
    servers.lost(B, 0)
    servers.follows(A, B, 0)
    assert servers.in_turn(0) == [B]
    servers.follows(B, C, 1)
    assert (servers.in_turn(1), servers.addresses) == ([C], [A, B, C])
    assert set(servers.in_turn(1 + FOLLOWER_ASIDE_S)) == {A, B, C}


def test_the_followers_of_a_lost_leader_are_asked_at_once_and_those_of_another_are_not() -> None:
    servers = Servers([A, B, C], at(0))
    servers.follows(A, ("leader", 1), 0)
    servers.follows(B, C, 0)
    servers.lost(("leader", 1), 1)
    assert sorted(servers.in_turn(1)) == [A, C]
    assert (servers.due_beside([C], 1), servers.due_beside([A, C], 1)) == ([A], [])
    servers.lost(B, 1)  # a follower that was lost itself is not asked because its leader is lost as well
    servers.lost(C, 1)
    assert servers.in_turn(1) == [A]


@pytest.mark.parametrize(
    ("text", "leader"),
    [
        ("SERVER_ERROR not the leader: queue-2.example:22133", ("queue-2.example", 22133)),
        ("SERVER_ERROR not the leader: [2001:db8::7]:22133", ("2001:db8::7", 22133)),
        ("SERVER_ERROR not the leader: 10.0.0.7:1", ("10.0.0.7", 1)),
        ("SERVER_ERROR not the leader: 10.0.0.7:0", None),
        ("SERVER_ERROR not the leader: 10.0.0.7:70000", None),
        ("SERVER_ERROR not the leader: ", None),
        ("SERVER_ERROR not the leader: a b:1", None),
        ("CLIENT_ERROR not the leader: a:1", None),
        ("SERVER_ERROR disk full", None),
    ],
)
def test_the_leader_is_read_from_the_refusal(text: str, leader: tuple[str, int] | None) -> None:
    assert leader_of(text) == leader


@pytest.mark.parametrize("addresses", [[], [A, A]])
def test_no_server_and_the_same_server_twice_are_refused(addresses: list[tuple[str, int]]) -> None:
    with pytest.raises(ValueError, match="one address"):
        Servers(addresses, lambda: 0.0)
