"""MultiClient over a cluster: the leader is found, remembered, followed and searched for again. Over servers that
play a script, and over a real one that a scripted follower names.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

import pytest

from staniel.client import Busy, ConnectionLost, Full, MultiClient, NoLeader, NotOpen, Outcome, PutOutcome, Refused
from staniel.client.blocking.leading import ask_leader
from staniel.client.cluster import Cluster, may_search_on
from staniel.client.servers import REDIRECTS_MAX, Address
from staniel.client.sockets import no_answer
from tests.client.fake_server import HANG_UP, Answer, FakeServer, Last, playing, scripted
from tests.client.fake_server import item as item_of
from tests.client.kinds import each_kind, play
from tests.support.process import running
from tests.support.wire import drain

Make = Callable[..., Any]
STORED, END, DELETED, TOUCHED = b"STORED\r\n", b"END\r\n", b"DELETED\r\n", b"TOUCHED\r\n"
NOWHERE = ("127.0.0.1", 1)
A, B, C, D = ("a", 1), ("b", 1), ("c", 1), ("d", 1)


def item(data: bytes, number: int = 9) -> bytes:
    return item_of(data, b"q", number)


def names(leader: Address, times: int = 1) -> bytes:
    """Return the refusals that name a leader."""
    return b"SERVER_ERROR not the leader: %b:%d\r\n" % (leader[0].encode(), leader[1]) * times


def cluster(kind: str, body: Callable[[Make], Any], **options: Any) -> None:
    """Run `body` with clients that begin with the first member, and search once."""

    def fixed(make: Make) -> Make:
        def made(members: list[Address], **more: Any) -> Any:
            client = make(members, **{"cluster": True, "leader_wait_s": 0, **options, **more})
            inner = client.blocking if kind == "blocking" else client
            inner._cluster.members = members
            return client

        return made

    async def whole(make: Make) -> None:
        await body(fixed(make))

    play(kind, whole, of="MultiClient")


def set_script(server: FakeServer, *answers: Answer) -> None:
    server._script = iter(answers)


@each_kind
def test_the_leader_that_a_member_names_gets_this_request_and_all_later_ones(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address]) as client:
            assert await client.put("q", b"a") is PutOutcome.STORED
            await client.put_many("q", [b"a", b"b"])
            assert (await client.get("q")).data == b"c"
            assert await client.get("q") is None
            assert (await client.next_items("q", 1)).items[0].server == leader.address
            await client.flush("q")
            assert await client.delete("q") is True

    script = [STORED, STORED * 2, item(b"c"), DELETED, END, item(b"d", 10), END, DELETED]
    with scripted([], list(script)) as (follower, leader):
        set_script(follower, names(leader.address))
        cluster(kind, body)
        assert (len(follower.heard), len(leader.heard)) == (1, len(script))


@each_kind
def test_a_member_that_is_lost_before_a_put_is_sent_to_it_does_not_end_the_search(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([ending.address, leader.address], name="worker-1") as client:
            assert await client.put("q", b"a") is PutOutcome.STORED

    with scripted([HANG_UP], [b"ERROR\r\n", STORED]) as (ending, leader):
        cluster(kind, body)
        assert ending.heard == [b"client_name worker-1\r\n"]


def test_a_search_begins_with_the_members_if_another_thread_forgets_the_leader_meanwhile() -> None:
    class Forgotten(Cluster):
        @property  # type: ignore[override]
        def leader(self) -> Address | None:
            return known.pop() if known else None

        @leader.setter
        def leader(self, address: Address | None) -> None:
            return

    known = [C]
    search = Forgotten([A, B], lambda: 0.0).search()
    assert [search.next_server() for _ in range(4)] == [C, A, B, None]


def test_silent_members_hold_a_search_up_for_one_request_and_the_wait_for_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, asked = 0.0, []

    def ask(address: Address, patience_s: float) -> None:
        nonlocal now_s
        asked.append((address, patience_s))
        now_s += min(patience_s, 30)
        try:
            raise no_answer(min(patience_s, 30))
        except TimeoutError:
            raise ConnectionLost("no answer") from None

    monkeypatch.setattr("staniel.client.blocking.leading.time.monotonic", lambda: now_s)
    with pytest.raises(NoLeader):
        ask_leader(Cluster([A, B, C], lambda: 0.0), ask, lambda error: True, 5)
    assert asked == [(A, inf), (B, 5), (C, 1)]


@each_kind
def test_a_batch_that_a_follower_refuses_is_put_on_its_leader(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address]) as client:
            await client.put_many("q", [b"a", b"b"])

    with scripted([], [STORED * 2]) as (follower, leader):
        set_script(follower, names(leader.address, 2))
        cluster(kind, body)


@each_kind
def test_a_leader_holds_a_waiting_get_for_as_long_as_it_may_and_the_others_are_not_asked(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([leader.address, follower.address]) as client:
            assert await client.get("q") is None
            assert (await client.get("q", wait_s=3600)).data == b"a"

    with scripted([END, item(b"a"), DELETED], []) as (leader, follower):
        cluster(kind, body)
        assert int(leader.heard[1].partition(b"/t=")[2].partition(b"/")[0]) > 3_500_000
        assert follower.heard == []


@each_kind
def test_a_leader_that_no_longer_leads_ends_a_wait_and_the_next_one_holds_it(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([old.address, new.address]) as client:
            await client.put("q", b"a")
            assert (await client.get("q", wait_s=3600)).server == new.address
            await client.put("q", b"b")

    with scripted([], [item(b"a"), DELETED, STORED]) as (old, new):
        set_script(old, STORED, names(new.address))
        cluster(kind, body)
        assert len(old.heard) == 2


@each_kind
@pytest.mark.parametrize("end", ["confirm", "abort", "extend", "history", "next_items"])
def test_an_item_of_a_server_that_no_longer_leads_is_not_open_any_more(kind: str, end: str) -> None:
    async def body(make: Make) -> None:
        async with make([old.address, new.address]) as client:
            taken = await client.open("q")
            if end == "next_items":
                assert await client.next_items("q", 0, confirm=[taken]) == ([], [taken])
            else:
                with pytest.raises(NotOpen) as gone:
                    await getattr(client, end)(taken)
                assert (gone.value.item, gone.value.outcome) == (taken, Outcome.NOT_DONE)
            with pytest.raises(NotOpen):
                await client.confirm(taken)
            again = await client.open("q")
            assert (again.data, again.server) == (b"a", new.address)
            await client.confirm(again)

    with scripted([], [item(b"a"), DELETED]) as (old, new):
        set_script(old, item(b"a"), names(new.address), names(new.address))
        cluster(kind, body)


@each_kind
def test_a_reservation_whose_server_no_longer_leads_ends_with_not_open(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([old.address, new.address]) as client:
            with pytest.raises(NotOpen):
                async with client.reserve("q"):
                    pass
            assert (await client.get("q")).data == b"a"

    with scripted([], [item(b"a"), DELETED]) as (old, new):
        set_script(old, item(b"a"), names(new.address), names(new.address))
        cluster(kind, body)


@each_kind
def test_a_get_whose_confirm_is_refused_gives_the_item_of_the_new_leader(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([old.address, new.address]) as client:
            taken = await client.get("q")
            assert (taken.data, taken.server) == (b"a", new.address)

    with scripted([], [item(b"a"), DELETED]) as (old, new):
        set_script(old, item(b"a"), names(new.address))
        cluster(kind, body)


@each_kind
def test_servers_that_name_each_other_end_in_an_error_that_says_so(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([one.address, other.address, NOWHERE]) as client:
            for call in (client.put("q", b"a"), client.get("q", wait_s=60), client.flush("q")):
                with pytest.raises(NoLeader) as none:
                    await call
                text = str(none.value)
                assert text.startswith("no server leads the cluster: ")
                for server, named in ((one, other), (other, one)):
                    assert f"127.0.0.1:{server.address[1]} names 127.0.0.1:{named.address[1]}" in text
                assert "127.0.0.1:1 is lost: no connection to 127.0.0.1:1" in text
                assert none.value.outcome is Outcome.NOT_DONE

    with scripted([], []) as (one, other):
        set_script(one, *[names(other.address)] * 9)
        set_script(other, *[names(one.address)] * 9)
        cluster(kind, body)
        assert (len(one.heard), len(other.heard)) == (3, 3)


@each_kind
def test_while_no_server_leads_the_search_goes_on(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([one.address, other.address], leader_wait_s=60) as client:
            await client.put("q", b"a")
            assert (await client.get("q", wait_s=60)).data == b"a"

    with scripted([], []) as (one, other):
        set_script(one, names(other.address), b"SERVER_ERROR not the leader\r\n", STORED, Last(names(other.address)))
        set_script(other, names(one.address), names(one.address), names(one.address), item(b"a"), DELETED)
        cluster(kind, body)


@each_kind
@pytest.mark.parametrize("many", [False, True])
def test_a_put_of_unknown_outcome_is_put_nowhere_else_unless_that_is_asked_for(kind: str, many: bool) -> None:
    async def body(make: Make) -> None:
        def put(client: Any) -> Any:
            return client.put_many("q", [b"a"]) if many else client.put("q", b"a")

        async with make([ill.address, well.address]) as client:
            with pytest.raises(ConnectionLost) as lost:
                await put(client)
            assert (lost.value.outcome, well.heard) == (Outcome.UNKNOWN, [])
        async with make([ill.address, well.address], repeat_unknown=True) as client:
            await put(client)
        async with make([ill.address, NOWHERE], repeat_unknown=True) as client:
            with pytest.raises(NoLeader) as none:
                await put(client)
            assert none.value.outcome is Outcome.UNKNOWN

    with scripted([HANG_UP] * 3, [STORED]) as (ill, well):
        cluster(kind, body)
        assert (len(ill.heard), len(well.heard)) == (3, 1)


@each_kind
@pytest.mark.parametrize("call", ["put", "get", "open", "next_items"])
def test_when_the_leader_is_lost_the_other_members_are_asked_at_once(kind: str, call: str) -> None:
    async def body(make: Make) -> None:
        async with make([leader.address, NOWHERE, member.address]) as client:
            await client.put("q", b"a")
            assert leader.is_left.wait(60)
            if call == "put":
                await client.put("q", b"b")
            else:
                taken = await getattr(client, call)("q", *([5] if call == "next_items" else []))
                assert taken.items == [] if call == "next_items" else taken is None

    with scripted([Last(STORED)], []) as (leader, member):
        set_script(member, STORED if call == "put" else END * (5 if call == "next_items" else 1))
        cluster(kind, body)
        assert (len(leader.heard), len(member.heard)) == (1, 1)


@each_kind
def test_a_refusal_of_the_leader_is_the_cluster_s(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([leader.address, member.address]) as client:
            with pytest.raises(Full):
                await client.put("q", b"a")
            with pytest.raises(Refused, match="SERVER_ERROR puts to q are paused"):
                await client.put("q", b"a")
            with pytest.raises(Refused, match="CLIENT_ERROR no"):
                await client.get("q")

    answers: list[Answer] = [b"NOT_STORED\r\n", b"SERVER_ERROR puts to q are paused\r\n", b"CLIENT_ERROR no\r\n"]
    with scripted(answers, []) as (leader, member):
        cluster(kind, body)
        assert member.heard == []


@each_kind
def test_all_members_are_asked_for_their_version_and_that_changes_no_leader(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([leader.address, member.address, NOWHERE]) as client:
            await client.put("q", b"a")
            assert await client.version() == {leader.address: "1", member.address: "2"}
            await client.put("q", b"b")

    with scripted([STORED, b"VERSION 1\r\n", STORED], [b"VERSION 2\r\n"]) as (leader, member):
        cluster(kind, body)


@each_kind
def test_items_of_a_real_leader_are_put_read_and_ended_over_a_restart(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address], name="shop") as client:
            assert await client.put("jobs", b"a", key="k") is PutOutcome.STORED
            assert await client.put("jobs", b"a", key="k") is PutOutcome.ALREADY_STORED
            await client.put_many("jobs", [b"b", b"c", b"d"])
            async with client.reserve("jobs") as first:
                assert (first.data, first.server) == (b"a", leader.address)
            async with client.monitor("jobs", wait_s=60, max_items=1) as items:
                assert [one.data async for one in items] == [b"b"]
            held = await client.open(["other", "jobs"])
            leader.restart()
            set_script(follower, *[names(leader.address)] * 9)
            with pytest.raises(NotOpen):
                await client.confirm(held)
            assert (await client.get("jobs", wait_s=60)).data == b"c"

    with running(tmp_path) as leader, playing(*[names(leader.address)] * 9) as follower:
        cluster(kind, body, leader_wait_s=30)
        assert drain(leader.address, "jobs") == [b"d"]


@each_kind
def test_without_a_cluster_a_key_belongs_to_one_of_the_servers(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        for _ in range(4):  # each begins with any of the servers
            async with make([one.address, other.address]) as client:
                stored.extend([await client.put("jobs", b"%d" % n, key=f"order-{n}") for n in range(8)])
        async with make([one.address, other.address, NOWHERE]) as client:
            outcomes = set()
            for number in range(30):
                try:
                    outcomes.add(await client.put("keys", b"%d" % number, key=f"order-{number}"))
                except ConnectionLost as lost:
                    outcomes.add(lost.outcome)
            assert outcomes == {PutOutcome.STORED, Outcome.NOT_DONE}

    stored: list[PutOutcome] = []
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running(tmp_path / "a") as one, running(tmp_path / "b") as other:
        play(kind, body, of="MultiClient")
        assert stored == [PutOutcome.STORED] * 8 + [PutOutcome.ALREADY_STORED] * 24
        assert len(drain(one.address, "jobs")) + len(drain(other.address, "jobs")) == 8


def refusal(leader: Address) -> Refused:
    return Refused(names(leader).decode().strip())


def test_a_search_asks_the_leader_first_then_those_that_are_named_and_no_server_twice() -> None:
    group = Cluster([A, B, C], lambda: 0.4)
    assert group.members == [B, C, A]
    search = group.search()
    assert search.next_server() == B
    search.note_failure(B, refusal(D))
    assert search.next_server() == D
    search.note_failure(D, refusal(B))
    assert [search.next_server(), search.next_server(), search.next_server()] == [C, A, None]
    search.note_leader(D)
    again = group.search()
    assert again.next_server() == D
    again.note_failure(D, ConnectionLost("gone", Outcome.NOT_DONE))
    assert (group.leader, again.next_server()) == (None, B)
    assert "d:1 is lost: gone" in str(again.error)


def test_servers_that_name_new_ones_for_ever_end_a_search() -> None:
    search = Cluster([A], lambda: 0.0).search()
    for number in count():
        server = search.next_server()
        if server is None:
            break
        search.note_failure(server, refusal((f"further-{number}", 1)))
    assert number == 1 + REDIRECTS_MAX


@pytest.mark.parametrize(
    ("error", "goes_on"),
    [
        (refusal(A), True),
        (Refused("SERVER_ERROR not the leader"), True),
        (Refused("SERVER_ERROR disk full"), False),
        (Full("q is full"), False),
        (Busy("busy"), False),
        (ConnectionLost("gone", Outcome.NOT_DONE), True),
        (ConnectionLost("gone", Outcome.UNKNOWN), False),
    ],
)
def test_only_who_does_not_lead_and_what_may_be_repeated_lets_a_search_go_on(error: Any, goes_on: bool) -> None:
    assert may_search_on(error, lambda lost: lost.outcome is Outcome.NOT_DONE) is goes_on


@pytest.mark.parametrize("wait_s", [-1, float("nan")])
def test_a_wait_that_is_none_is_refused(wait_s: float) -> None:
    with pytest.raises(ValueError, match="leader_wait_s"):
        MultiClient([NOWHERE], cluster=True, leader_wait_s=wait_s)
