"""The client of etcd against peers that are no etcd, or a sick one: each call ends, with a reason, and keeps little."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.lowlevel
import trio.testing

from staniel.cluster.etcd.client import Etcd
from staniel.cluster.etcd.errors import EtcdError, EtcdRefusal, EtcdUnreachable, ForeignEtcd
from staniel.cluster.etcd.exchange import REPLY_BYTES_MAX
from staniel.cluster.etcd.messages import NewsKind, Outcome, PutResult
from tests.cluster.scripted import (
    HEADER,
    STREAM_HEAD,
    Script,
    message,
    refusal,
    replies,
    replies_and_ends,
    reply,
    request,
    scripted,
    silence,
)

KEY = b"orders"
KV = {"key": "b3JkZXJz", "value": "MQ==", "mod_revision": "4"}
FINE = reply({"kvs": [KV]})
PROBED = reply({"count": "1"})
WRITTEN = reply({"succeeded": True, "responses": [{"response_put": {"header": {"revision": "5"}}}]})
SHORT_S = 0.1  # for what never comes; nothing is expected to come within it
PATIENT_S = 30.0


async def endless_body(stream: trio.SocketStream) -> None:
    await request(stream)
    await stream.send_all(STREAM_HEAD)
    while True:
        await stream.send_all(message(b"x" * 60_000))


async def endless_head(stream: trio.SocketStream) -> None:
    await request(stream)
    await stream.send_all(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        await stream.send_all(b"x" * 60_000)


async def garbage_first(stream: trio.SocketStream) -> None:
    await stream.send_all(b"SSH-2.0-OpenSSH_9.2\r\n")
    await request(stream)


def with_header(**changed: object) -> bytes:
    return reply(json.dumps({"header": {**HEADER, **changed}}).encode())


BAD: dict[str, tuple[Script, str]] = {
    "nothing, and the end": (replies_and_ends(b""), "ended the connection before its reply"),
    "another protocol": (garbage_first, "ended the connection before its reply"),
    "zeros": (replies(bytes(1000)), "not of HTTP"),
    "a web page": (replies(reply(b"<html>", kind="text/html")), "not JSON"),
    "no gateway": (replies(reply(b"Not Found\n", status="404 Not Found", kind="text/plain")), "status 404.*gateway"),
    "a redirect": (replies(reply(b"", status="301 Moved", kind="text/html")), "status 301"),
    "a proxy's error": (replies(reply(b"{}", status="502 Bad Gateway")), "no reason given"),
    "half a head": (replies_and_ends(FINE[:30]), "ended the connection"),
    "half a body": (replies_and_ends(FINE[:-5]), "ends in the middle"),
    "an announced body that is too large": (
        replies(FINE.replace(b"Content-Length: ", b"Content-Length: 99999")),
        "more than 1048576 bytes",
    ),
    "a length that is no number": (replies(FINE.replace(b"Content-Length: ", b"Content-Length: -")), "not of HTTP"),
    "a body without an end": (endless_body, "more than 1048576 bytes"),
    "a head without an end": (endless_head, "not of HTTP"),
    "an interim reply": (replies(b"HTTP/1.1 100 Continue\r\n\r\n"), "as etcd speaks it"),
    "no JSON": (replies(reply(b"oops")), "not what it should be"),
    "JSON that is too deep": (replies(reply(b'{"x":' + b"[" * 500_000)), "not what it should be"),
    "JSON of another kind": (replies(reply(b"[]")), "not what it should be"),
    "no head of etcd's": (replies(reply(b"{}")), "not what it should be"),
    "no cluster": (replies(with_header(cluster_id="0")), "not what it should be"),
    "a negative revision": (replies(with_header(revision="-1")), "not what it should be"),
    "a number without an end": (replies(with_header(revision="9" * 10_000)), "not what it should be"),
    "no revision": (replies(with_header(revision="0")), "no revision"),
    "base64 that is none": (replies(reply({"kvs": [{**KV, "value": "%"}]})), "not what it should be"),
    "another key": (replies(reply({"kvs": [{**KV, "key": "YQ=="}]})), "not asked for"),
    "too many keys": (replies(reply({"kvs": [KV], "more": True})), "more than 1 keys"),
    "an error that passes": (replies(refusal("etcdserver: leader changed", 14)), "leader changed"),
    "an error of letters that no terminal should see": (replies(refusal("\x1b[2J", 14)), r"\?\[2J"),
}


@pytest.mark.parametrize(("script", "why"), BAD.values(), ids=BAD)
async def test_a_bad_reply_is_named_and_another_endpoint_asked(script: Script, why: str) -> None:
    async with scripted(script) as bad, scripted(replies(FINE)) as good:
        with pytest.raises(EtcdUnreachable, match=why):
            await Etcd([bad.url], timeout_s=PATIENT_S).read_key(KEY)
        etcd = Etcd([bad.url, good.url], timeout_s=PATIENT_S)
        assert [kv.value for kv in (await etcd.read_key(KEY)).values] == [b"1"]
        assert list(etcd.failures) == [bad.url] and len(good.asked) == 1
        await etcd.read_key(KEY)
        assert len(bad.asked) == 2, "the one that replied is asked first"


@pytest.mark.parametrize(("script", "why"), BAD.values(), ids=BAD)
async def test_a_put_before_which_the_endpoint_replies_badly_is_not_taken(script: Script, why: str) -> None:
    if why in ("no revision", "not asked for", "more than 1 keys"):
        return  # they are no fault where it is only asked of which etcd it is
    async with scripted(script) as bad:
        result = await Etcd([bad.url], timeout_s=PATIENT_S).put_if_unchanged(KEY, 4, b"2")
    assert result.outcome is Outcome.NOT_TAKEN and result.why


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        reply(b"oops"),
        reply(b"<html>", status="502 Bad Gateway", kind="text/html"),
        WRITTEN[:-5],
        with_header(revision="0"),
        with_header(cluster_id="8"),
        refusal("etcdserver: request timed out", 14),
        refusal("etcdserver: mvcc: database space exceeded", 8),
        reply({"responses": [{"response_range": {"kvs": [{**KV, "key": "YQ=="}]}}]}),
    ],
)
async def test_a_put_without_a_clear_reply_is_unknown_and_given_to_no_other_endpoint(answer: bytes) -> None:
    async with scripted(replies_and_ends(PROBED, answer)) as bad, scripted(replies(PROBED, WRITTEN)) as good:
        result = await Etcd([bad.url, good.url], timeout_s=PATIENT_S).put_if_unchanged(KEY, 4, b"2")
        assert result.outcome is Outcome.UNKNOWN and result.why.startswith(bad.url)
        assert good.asked == []


async def test_a_put_whose_reply_does_not_come_is_unknown(mock_clock: trio.testing.MockClock) -> None:
    results: list[PutResult] = []

    async def put() -> None:
        results.append(await Etcd([bad.url], timeout_s=PATIENT_S).put_if_unchanged(KEY, 4, b"2"))

    async with scripted(replies(PROBED)) as bad, trio.open_nursery() as nursery:
        nursery.start_soon(put)
        while b"/v3/kv/txn" not in b"".join(bad.asked):
            await trio.lowlevel.checkpoint()
        mock_clock.jump(PATIENT_S + 1)
    (result,) = results
    assert result.outcome is Outcome.UNKNOWN and "no reply within" in result.why


@pytest.mark.parametrize("words", ["etcdserver: no leader", "etcdserver: too many requests"])
async def test_a_put_that_etcd_did_not_begin_goes_to_another_endpoint(words: str) -> None:
    async with scripted(replies(PROBED, refusal(words, 14))) as bad, scripted(replies(PROBED, WRITTEN)) as good:
        result = await Etcd([bad.url, good.url], timeout_s=PATIENT_S).put_if_unchanged(KEY, 4, b"2")
        assert result.outcome is Outcome.WRITTEN and result.revision == 5
        alone = await Etcd([bad.url], timeout_s=PATIENT_S).put_if_unchanged(KEY, 4, b"2")
        assert alone.outcome is Outcome.NOT_TAKEN and words in alone.why


async def test_a_put_that_etcd_refuses_for_good_raises() -> None:
    async with scripted(replies(PROBED, refusal("etcdserver: request is too large", 3))) as peer:
        with pytest.raises(EtcdRefusal, match="too large"):
            await Etcd([peer.url], timeout_s=PATIENT_S).put_if_unchanged(KEY, 4, b"2")


async def test_a_put_is_not_sent_to_a_foreign_etcd() -> None:
    async with scripted(replies(with_header(cluster_id="8"))) as foreign:
        with pytest.raises(ForeignEtcd):
            await Etcd([foreign.url], timeout_s=PATIENT_S, cluster_id=7).put_if_unchanged(KEY, 4, b"2")
        assert b"/v3/kv/txn" not in b"".join(foreign.asked)


async def drip(stream: trio.SocketStream) -> None:
    """Send a reply of a size that is never reached, byte by byte."""
    await request(stream)
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n")
    while True:
        await stream.send_all(b" ")
        await trio.lowlevel.checkpoint()


CALLS: dict[str, Callable[[Etcd], Awaitable[object]]] = {
    "read": lambda etcd: etcd.read_key(KEY),
    "prefix": lambda etcd: etcd.read_prefix(KEY),
    "grant": lambda etcd: etcd.grant_lease(5),
    "renew": lambda etcd: etcd.renew_lease(5),
    "revoke": lambda etcd: etcd.revoke_lease(5),
    "watch": lambda etcd: etcd.watch(KEY).next_news(),
}


@pytest.mark.parametrize("script", [silence(), drip], ids=["silent", "dripping"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_call_waits_for_ever(call: Callable[[Etcd], Awaitable[object]], script: Script) -> None:
    async with scripted(script) as peer:
        with pytest.raises(EtcdUnreachable, match="no reply within"):
            await call(Etcd([peer.url], timeout_s=SHORT_S))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_every_call_says_that_the_reply_is_bad(call: Callable[[Etcd], Awaitable[object]]) -> None:
    async with scripted(replies(reply(b"{}"))) as peer:
        with pytest.raises(EtcdUnreachable, match="not what it should be"):
            await call(Etcd([peer.url], timeout_s=PATIENT_S))


async def test_a_grant_without_a_lease_is_none() -> None:
    async with scripted(replies(reply({"ID": "0"}))) as peer:
        with pytest.raises(EtcdUnreachable, match="no lease"):
            await Etcd([peer.url], timeout_s=PATIENT_S).grant_lease(5)


LOGIN = ("staniel", "secret")
EXPIRED = refusal("etcdserver: invalid auth token", 16)


async def test_a_token_is_kept_and_asked_for_again_once_it_has_expired() -> None:
    first, second = reply({"token": "one.1"}), reply({"token": "two.2"})
    scripts = replies(first, FINE), replies(EXPIRED, second, FINE), replies(EXPIRED, second, EXPIRED)
    async with scripted(*scripts) as peer:
        etcd = Etcd([peer.url], timeout_s=PATIENT_S, login=LOGIN)
        await etcd.read_key(KEY)
        await etcd.read_key(KEY)
        with pytest.raises(EtcdRefusal, match="invalid auth token"):
            await etcd.read_key(KEY)
    assert b"Authorization: one.1" in peer.asked[0] and b"Authorization: two.2" in peer.asked[1]
    assert peer.asked[1].count(b"POST") == 3


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "x" * 5000, "\u00e4"])
async def test_a_token_that_would_not_fit_into_a_head_is_none(token: str) -> None:
    async with scripted(replies(reply({"token": token}))) as peer:
        with pytest.raises(EtcdUnreachable, match="no token"):
            await Etcd([peer.url], timeout_s=PATIENT_S, login=LOGIN).read_key(KEY)


def watched(*messages: bytes) -> bytes:
    return STREAM_HEAD + message({"created": True}) + b"".join(messages)


def event(revision: int, **changed: object) -> dict[str, object]:
    return {"events": [{"kv": {**KV, "mod_revision": str(revision), **changed}}]}


BAD_STREAMS: dict[str, tuple[bytes, str]] = {
    "an end": (watched() + b"0\r\n\r\n", "ended the stream"),
    "no JSON": (watched(message(b"oops\n")), "not what it should be"),
    "a line without an end": (watched(*[message(b"x" * 60_000)] * 20), f"more than {REPLY_BYTES_MAX} bytes"),
    "no chunk": (watched(b"oops\r\n"), "not of HTTP"),
    "an older change": (watched(message(event(5))), "out of their order"),
    "another key": (watched(message(event(6, key="YQ=="))), "not asked for"),
    "a kind of change that there is not": (
        watched(message({"events": [{"type": "MOVE", "kv": KV}]})),
        "not what it should be",
    ),
    "it is ended": (watched(message({"canceled": True, "cancel_reason": "etcdserver: no leader"})), "no leader"),
    "an error": (
        watched(message(b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}\n')),
        "etcdserver: no leader",
    ),
    "another head": (
        STREAM_HEAD.replace(b"200 OK", b"503 Busy") + message(b'{"code":14,"message":"no leader"}') + b"0\r\n\r\n",
        "no leader",
    ),
    "the foreign": (
        watched(message(json.dumps({"result": {"header": {"cluster_id": "8"}}}).encode() + b"\n")),
        "of the etcd cluster 8",
    ),
}


@pytest.mark.parametrize(("stream", "why"), BAD_STREAMS.values(), ids=BAD_STREAMS)
async def test_a_watch_with_a_bad_stream_tries_another_connection_and_then_says_why(stream: bytes, why: str) -> None:
    async with scripted(replies(FINE, stream)) as peer:
        etcd = Etcd([peer.url], timeout_s=PATIENT_S)
        async with etcd.watch(KEY) as watch:
            assert (await watch.next_news()).kind is NewsKind.STATE
            with pytest.raises(EtcdError, match=why):
                await watch.next_news()
            assert len(peer.asked) <= 3, "it does not try again and again"


async def test_a_watch_goes_on_at_another_endpoint_from_the_revision_after_the_last() -> None:
    good = replies(FINE, watched(message(event(9))))
    async with scripted(replies_and_ends(FINE, watched(message(event(6))))) as bad, scripted(good) as other:
        etcd = Etcd([bad.url, other.url], timeout_s=PATIENT_S)
        async with etcd.watch(KEY) as watch:
            assert (await watch.next_news()).kind is NewsKind.STATE
            assert [(await watch.next_news()).revision for _ in range(2)] == [6, 9]
        assert b'"start_revision":6' in bad.asked[0] and b'"start_revision":7' in other.asked[0]


async def test_messages_come_in_pieces_of_any_size() -> None:
    stream = watched(message(event(6)), message(b"\n"), message(event(7)))

    async def piecemeal(connection: trio.SocketStream) -> None:
        await request(connection)
        await connection.send_all(FINE)
        await request(connection)
        for at in range(len(stream)):
            await connection.send_all(stream[at : at + 1])
        await connection.receive_some(1)

    async with scripted(piecemeal) as peer, Etcd([peer.url], timeout_s=PATIENT_S).watch(KEY) as watch:
        assert [(await watch.next_news()).revision for _ in range(3)] == [5, 6, 7]


async def test_a_watch_that_etcd_does_not_permit_raises() -> None:
    denied = {"created": True, "canceled": True, "cancel_reason": "etcdserver: permission denied"}
    async with (
        scripted(replies(FINE, STREAM_HEAD + message(denied))) as peer,
        Etcd([peer.url], timeout_s=PATIENT_S).watch(KEY) as watch,
    ):
        with pytest.raises(EtcdRefusal, match="permission denied"):
            await watch.next_news()


async def test_a_watch_that_is_behind_a_compaction_each_time_tells_the_state_each_time() -> None:
    gone = message({"canceled": True, "compact_revision": "6"})
    async with (
        scripted(replies(FINE, watched(gone))) as peer,
        Etcd([peer.url], timeout_s=PATIENT_S).watch(KEY) as watch,
    ):
        assert [(await watch.next_news()).kind for _ in range(3)] == [NewsKind.STATE] * 3


async def test_a_connection_that_is_busy_without_news_is_not_believed_in_for_ever() -> None:
    async def empty_lines(stream: trio.SocketStream) -> None:
        await request(stream)
        await stream.send_all(FINE)
        await request(stream)
        await stream.send_all(watched())
        while True:
            await stream.send_all(message(b"\n") + message({"created": True}))
            await trio.lowlevel.checkpoint()

    news = replies(FINE, watched(message(event(6))))
    async with (
        scripted(empty_lines, news) as peer,
        Etcd([peer.url], timeout_s=PATIENT_S, renew_s=SHORT_S).watch(KEY) as watch,
    ):
        assert [(await watch.next_news()).revision for _ in range(2)] == [5, 6]


async def test_a_watch_without_a_reader_keeps_nothing() -> None:
    sent = 0

    async def flood(stream: trio.SocketStream) -> None:
        nonlocal sent
        await request(stream)
        await stream.send_all(FINE)
        await request(stream)
        await stream.send_all(watched())
        for revision in range(6, 1_000_000):
            await stream.send_all(message({**event(revision), "x": "y" * 10_000}))
            sent += 1

    async with scripted(flood) as peer, Etcd([peer.url], timeout_s=PATIENT_S).watch(KEY) as watch:
        await watch.next_news()
        await watch.next_news()
        before = -1
        while before != sent:  # until the flood is held up by its full connection
            before = sent
            for _ in range(1000):
                await trio.lowlevel.checkpoint()
        assert (await watch.next_news()).revision < sent < 10_000


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:2379",
        "ftp://a",
        "http://",
        "http://a:b",
        "http://a:70000",
        "http://a/v3",
        "http://u:p@a",
        "http://a?b",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        Etcd([url])


def test_no_endpoint_is_none() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Etcd([])
