"""The client of etcd against real etcds."""

from __future__ import annotations

import base64
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from staniel.cluster.etcd.client import Etcd
from staniel.cluster.etcd.errors import EtcdRefusal, EtcdUnreachable, EtcdWentBack, ForeignEtcd
from staniel.cluster.etcd.messages import ChangeKind, KeyValue, NewsKind, Outcome
from tests.cluster.etcd_process import EtcdProcess, started
from tests.cluster.scripted import request, scripted
from tests.support.certificates import Authority

pytestmark = [pytest.mark.programs("etcd")]

PATIENT_S = 30.0  # of a machine that is busy
NO_LEASE = 77
NO_MAJORITY = "no leader|timed out|leader changed|no reply within"


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd for all tests of this file that end none."""
    with started(tmp_path_factory.mktemp("etcd")) as (one,):
        yield one


@pytest.fixture
def key(request: pytest.FixtureRequest) -> bytes:
    """A key for each test."""
    return f"test/{request.node.name}".encode()


def coded(key: bytes) -> str:
    return base64.b64encode(key).decode()


def patient(*members: EtcdProcess, **settings: object) -> Etcd:
    return Etcd([each.url for each in members], timeout_s=PATIENT_S, **settings)  # type: ignore[arg-type]


async def test_a_key_that_is_not_there_has_no_value_but_a_revision(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    reading = await etcd.read_key(key)
    assert reading.values == () and reading.revision >= 1 and reading.cluster_id == etcd.cluster_id != 0


async def test_a_put_is_written_only_over_the_revision_that_it_names(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    first = await etcd.put_if_unchanged(key, 0, b"\x00\xff one")
    assert first.outcome is Outcome.WRITTEN
    assert (await etcd.read_key(key)).values == (KeyValue(key, b"\x00\xff one", first.revision),)
    again = await etcd.put_if_unchanged(key, 0, b"two")
    assert again.outcome is Outcome.REFUSED and again.current == KeyValue(key, b"\x00\xff one", first.revision)
    second = await etcd.put_if_unchanged(key, first.revision, b"")
    assert second.outcome is Outcome.WRITTEN and second.revision > first.revision
    assert (await etcd.read_key(key)).values == (KeyValue(key, b"", second.revision),)
    assert etcd.revision == second.revision


async def test_a_put_over_a_key_that_is_gone_is_refused(member: EtcdProcess, key: bytes) -> None:
    refused = await patient(member).put_if_unchanged(key, 3, b"")
    assert refused.outcome is Outcome.REFUSED and refused.current is None


async def test_of_two_puts_over_one_revision_one_is_written(member: EtcdProcess, key: bytes) -> None:
    outcomes = []

    async def put(value: bytes) -> None:
        outcomes.append((await patient(member).put_if_unchanged(key, 0, value)).outcome)

    async with trio.open_nursery() as nursery:
        for value in (b"a", b"b"):
            nursery.start_soon(put, value)
    assert sorted(outcome.value for outcome in outcomes) == ["refused", "written"]


async def test_a_prefix_has_its_keys_in_order_and_no_others(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    for name in (b"/b", b"/a", b"0"):
        await etcd.put_if_unchanged(key + name, 0, name)
    assert [kv.value for kv in (await etcd.read_prefix(key + b"/")).values] == [b"/a", b"/b"]
    assert (await etcd.read_prefix(b"\xff")).values == ()


async def test_a_key_ends_with_its_lease(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    lease = await etcd.grant_lease(30)
    assert lease.ttl_s >= 30
    assert (await etcd.put_if_unchanged(key, 0, b"alive", lease.lease_id)).outcome is Outcome.WRITTEN
    assert (await etcd.read_key(key)).values[0].lease == lease.lease_id
    assert await etcd.renew_lease(lease.lease_id) == lease.ttl_s
    await etcd.revoke_lease(lease.lease_id)
    assert (await etcd.read_key(key)).values == ()
    assert await etcd.renew_lease(lease.lease_id) == 0
    await etcd.revoke_lease(lease.lease_id)  # it has ended: that is what was wanted


async def test_a_put_with_a_lease_that_is_gone_raises_and_writes_nothing(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    with pytest.raises(EtcdRefusal, match="lease not found"):
        await etcd.put_if_unchanged(key, 0, b"", NO_LEASE)
    assert (await etcd.read_key(key)).values == ()


async def test_a_watch_tells_the_state_and_then_each_change(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    lease = await etcd.grant_lease(30)
    first = await etcd.put_if_unchanged(key, 0, b"1")
    async with etcd.watch(key) as watch:
        news = await watch.next_news()
        assert news.kind is NewsKind.STATE and news.values == (KeyValue(key, b"1", first.revision),)
        second = await etcd.put_if_unchanged(key, first.revision, b"2", lease.lease_id)
        news = await watch.next_news()
        assert news.kind is NewsKind.CHANGES and news.revision == second.revision
        assert [(each.kind, each.kv.value) for each in news.changes] == [(ChangeKind.PUT, b"2")]
        await etcd.revoke_lease(lease.lease_id)
        (change,) = (await watch.next_news()).changes
        assert change.kind is ChangeKind.DELETE and change.kv.mod_revision > second.revision


async def test_a_watch_of_a_prefix_misses_nothing_between_its_connections(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    async with etcd.watch(key, is_prefix=True) as watch:
        assert (await watch.next_news()).values == ()
        written = []
        for name in (b"/a", b"/b", b"/c"):
            await watch.close()  # as if the connection was lost
            written.append((await etcd.put_if_unchanged(key + name, 0, name)).revision)
            news = await watch.next_news()
            assert [(each.kv.key, each.kv.mod_revision) for each in news.changes] == [(key + name, written[-1])]
        await watch.close()
        for revision in written:
            await etcd.put_if_unchanged(key + b"/" + b"abc"[written.index(revision) :][:1], revision, b"again")
        changes: list[bytes] = []
        while len(changes) < 3:
            changes += [each.kv.key for each in (await watch.next_news()).changes]
        assert changes == [key + b"/a", key + b"/b", key + b"/c"]


async def test_a_watch_whose_connections_are_renewed_all_the_time_misses_nothing(
    member: EtcdProcess, key: bytes
) -> None:
    etcd = patient(member, renew_s=0.01)
    revision, seen = 0, 0
    async with etcd.watch(key) as watch:
        await watch.next_news()
        for number in range(20):
            revision = (await etcd.put_if_unchanged(key, revision, b"%d" % number)).revision
        while seen < 20:
            for change in (await watch.next_news()).changes:
                assert change.kv.value == b"%d" % seen
                seen += 1


async def test_a_watch_behind_a_compaction_tells_the_state_again(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    async with etcd.watch(key) as watch:
        await watch.next_news()
        await watch.close()
        revision = 0
        for value in (b"1", b"2", b"3"):
            revision = (await etcd.put_if_unchanged(key, revision, value)).revision
        member.call("kv/compaction", revision=revision)
        news = await watch.next_news()
        assert news.kind is NewsKind.STATE and [kv.value for kv in news.values] == [b"3"]
        last = await etcd.put_if_unchanged(key, revision, b"4")
        news = await watch.next_news()
        assert news.kind is NewsKind.CHANGES and news.revision == last.revision


async def test_a_watch_that_is_cancelled_goes_on_where_it_was(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    async with etcd.watch(key) as watch:
        await watch.next_news()
        with trio.move_on_after(0.01) as scope:
            await watch.next_news()
        assert scope.cancelled_caught
        written = await etcd.put_if_unchanged(key, 0, b"")
        assert (await watch.next_news()).revision == written.revision


async def test_dead_endpoints_are_passed_over_and_named(member: EtcdProcess, key: bytes) -> None:
    dead = "http://127.0.0.1:1"
    etcd = Etcd([dead, member.url], timeout_s=PATIENT_S)
    assert (await etcd.put_if_unchanged(key, 0, b"")).outcome is Outcome.WRITTEN
    assert etcd.failures == {dead: "Connection refused"}
    async with etcd.watch(key) as watch:
        assert (await watch.next_news()).kind is NewsKind.STATE


async def test_an_etcd_that_is_down_is_unreachable_and_a_put_is_not_taken(key: bytes) -> None:
    etcd = Etcd(["http://127.0.0.1:1", "http://127.0.0.1:2"])
    with pytest.raises(EtcdUnreachable, match=r"127\.0\.0\.1:1: Connection refused; http://127\.0\.0\.1:2"):
        await etcd.read_key(key)
    result = await etcd.put_if_unchanged(key, 0, b"")
    assert result.outcome is Outcome.NOT_TAKEN and "Connection refused" in result.why
    async with etcd.watch(key) as watch:
        for _ in range(2):
            with pytest.raises(EtcdUnreachable):
                await watch.next_news()


async def test_an_etcd_that_stands_still_is_waited_for_in_vain_but_not_for_long(tmp_path: Path, key: bytes) -> None:
    with started(tmp_path) as (member,):
        etcd = patient(member)
        await etcd.read_key(key)
        member.signal(signal.SIGSTOP)
        hasty = Etcd([member.url], timeout_s=0.05)
        with pytest.raises(EtcdUnreachable, match=r"no reply within 0\.05 s"):
            await hasty.read_key(key)
        result = await hasty.put_if_unchanged(key, 0, b"")
        assert result.outcome is Outcome.NOT_TAKEN  # it has not said of which etcd it is
        async with hasty.watch(key) as watch:
            with pytest.raises(EtcdUnreachable):
                await watch.next_news()
            member.signal(signal.SIGCONT)
            assert (await etcd.read_key(key)).values == ()


async def test_calls_and_watches_go_on_when_etcd_is_restarted(tmp_path: Path, key: bytes) -> None:
    with started(tmp_path) as (member,):
        etcd = patient(member)
        async with etcd.watch(key) as watch:
            await watch.next_news()
            first = await etcd.put_if_unchanged(key, 0, b"1")
            assert (await watch.next_news()).revision == first.revision
            member.kill()
            with pytest.raises(EtcdUnreachable):
                await watch.next_news()
            member.spawn()
            assert member.wait()
            assert (await etcd.read_key(key)).values == (KeyValue(key, b"1", first.revision),)
            second = await etcd.put_if_unchanged(key, first.revision, b"2")
            assert [each.kv.value for each in (await watch.next_news()).changes] == [b"2"]
            assert second.outcome is Outcome.WRITTEN


async def test_an_etcd_without_a_majority_takes_nothing_and_says_so(tmp_path: Path, key: bytes) -> None:
    with started(tmp_path, "ab") as (one, other):
        etcd = patient(one)
        first = await etcd.put_if_unchanged(key, 0, b"1")
        assert first.outcome is Outcome.WRITTEN
        other.kill()
        refused = Etcd([one.url], timeout_s=PATIENT_S, cluster_id=etcd.cluster_id, revision=etcd.revision)
        with pytest.raises(EtcdUnreachable, match=NO_MAJORITY):
            await refused.read_key(key)
        result = await refused.put_if_unchanged(key, first.revision, b"2")
        assert result.outcome in (Outcome.NOT_TAKEN, Outcome.UNKNOWN), result
        async with refused.watch(key) as watch:
            with pytest.raises(EtcdUnreachable, match=NO_MAJORITY):
                await watch.next_news()
        other.spawn(f"{one.peer},{other.peer}")
        assert other.wait()
        with trio.fail_after(PATIENT_S):
            settled = await etcd.put_if_unchanged(key, first.revision, b"3")
            while settled.outcome is Outcome.NOT_TAKEN:  # they elect a leader
                await trio.sleep(0.05)
                settled = await etcd.put_if_unchanged(key, first.revision, b"3")
        assert settled.outcome in (Outcome.WRITTEN, Outcome.REFUSED)


async def test_a_put_whose_reply_is_lost_is_settled_by_another(member: EtcdProcess, key: bytes) -> None:
    async def lose_second_reply(stream: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", member.port) as to_etcd:
            for _ in range(2):
                await to_etcd.send_all(await request(stream))
                reply = await to_etcd.receive_some()
                if b"txn" not in peer.asked[0]:
                    await stream.send_all(reply)

    async with scripted(lose_second_reply) as peer:
        lost = await Etcd([peer.url], timeout_s=PATIENT_S).put_if_unchanged(key, 0, b"lost")
    assert lost.outcome is Outcome.UNKNOWN
    settled = await patient(member).put_if_unchanged(key, 0, b"settled")
    assert settled.outcome is Outcome.REFUSED and settled.current is not None and settled.current.value == b"lost"


async def test_another_etcd_is_not_written_to(member: EtcdProcess, tmp_path: Path, key: bytes) -> None:
    etcd = patient(member)
    await etcd.read_key(key)
    with started(tmp_path, "foreign") as (foreign, *_):
        wrong = Etcd([foreign.url], timeout_s=PATIENT_S, cluster_id=etcd.cluster_id)
        with pytest.raises(ForeignEtcd, match="correct the list of endpoints"):
            await wrong.read_key(key)
        with pytest.raises(ForeignEtcd):
            await wrong.put_if_unchanged(key, 0, b"1")
        async with wrong.watch(key) as watch:
            with pytest.raises(ForeignEtcd):
                await watch.next_news()
        assert "kvs" not in foreign.call("kv/range", key=coded(key))
        both = Etcd([foreign.url, member.url], timeout_s=PATIENT_S, cluster_id=etcd.cluster_id)
        assert (await both.put_if_unchanged(key, 0, b"1")).outcome is Outcome.WRITTEN
        assert foreign.url in both.failures


async def test_an_etcd_that_was_restored_from_a_backup_is_noticed(member: EtcdProcess, key: bytes) -> None:
    etcd = patient(member)
    known = (await etcd.read_key(key)).revision
    later = patient(member, cluster_id=etcd.cluster_id, revision=known + 1000)
    with pytest.raises(EtcdWentBack, match=f"at revision {known} and was at {known + 1000}"):
        await later.read_key(key)
    async with later.watch(key) as watch:
        with pytest.raises(EtcdWentBack):
            await watch.next_news()


async def test_tls_holds_the_certificate_against_the_authority(tmp_path: Path, key: bytes) -> None:
    authority = Authority(tmp_path)
    with started(tmp_path / "etcd", tls=authority.issue("etcd")) as (member,):
        context = ssl.create_default_context(cafile=str(authority.path))
        etcd = patient(member, tls=context)
        assert (await etcd.put_if_unchanged(key, 0, b"1")).outcome is Outcome.WRITTEN
        async with etcd.watch(key) as watch:
            assert [kv.value for kv in (await watch.next_news()).values] == [b"1"]
        stranger = patient(member, tls=ssl.create_default_context())
        with pytest.raises(EtcdUnreachable, match="TLS: unable to get local issuer certificate"):
            await stranger.read_key(key)
        plain = Etcd([member.url.replace("https", "http")], timeout_s=PATIENT_S)
        with pytest.raises(EtcdUnreachable, match="ended the connection before its reply"):
            await plain.read_key(key)
    with pytest.raises(ValueError, match="needs a TLS context"):
        Etcd(["https://127.0.0.1:2379"])


async def test_a_user_logs_in_and_again_when_the_token_has_expired(tmp_path: Path, key: bytes) -> None:
    allowed = b"orders/"
    with started(tmp_path, options=("--auth-token-ttl", "1")) as (member,):
        member.call("auth/user/add", name="root", password="secret")
        member.call("auth/user/grant", user="root", role="root")
        member.call("auth/role/add", name="orders")
        grant = {"permType": "READWRITE", "key": coded(allowed), "range_end": coded(b"orders0")}
        member.call("auth/role/grant", name="orders", perm=grant)
        member.call("auth/user/add", name="staniel", password="pässword")
        member.call("auth/user/grant", user="staniel", role="orders")
        member.call("auth/enable")
        etcd = patient(member, login=("staniel", "pässword"))
        written = await etcd.put_if_unchanged(allowed, 0, b"1")
        assert written.outcome is Outcome.WRITTEN
        with pytest.raises(EtcdRefusal, match="permission denied"):
            await etcd.read_key(key)
        with pytest.raises(EtcdRefusal, match="permission denied"):
            await etcd.put_if_unchanged(key, 0, b"1")
        async with etcd.watch(allowed, is_prefix=True) as watch:
            await watch.next_news()
            member.kill()  # tokens are in its memory alone
            member.spawn()
            assert member.wait()
            again = await etcd.put_if_unchanged(allowed, written.revision, b"2")
            assert again.outcome is Outcome.WRITTEN
            assert (await watch.next_news()).revision == again.revision
        with pytest.raises(EtcdRefusal, match="authentication failed"):
            await patient(member, login=("staniel", "guess")).read_key(allowed)
        with pytest.raises(EtcdRefusal, match="user name is empty"):
            await patient(member).put_if_unchanged(allowed, 0, b"")
