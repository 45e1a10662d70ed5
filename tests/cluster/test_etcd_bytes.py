"""What a peer sends raises BadReplyError at most, and is kept only to a limit. No socket is opened."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.cluster.etcd.errors import BadReplyError, EtcdRefusal
from staniel.cluster.etcd.exchange import HEAD_BYTES_MAX, REPLY_BYTES_MAX, Body, Exchange, Lines
from staniel.cluster.etcd.messages import (
    Authenticated,
    Found,
    Granted,
    Transacted,
    WatchMessage,
    decode,
    decode_fault,
    decode_streamed,
    encode_put,
    encode_range,
    end_of_prefix,
)
from tests.cluster.scripted import STREAM_HEAD, message, refusal, reply

KINDS = [Authenticated, Found, Granted, Transacted, WatchMessage]
WHOLE = [
    reply({"kvs": [{"key": "YQ==", "value": "MQ==", "mod_revision": "4"}]}),
    refusal("etcdserver: no leader", 14),
    STREAM_HEAD + message({"created": True}) + message({"events": [{"kv": {"key": "YQ=="}}]}),
]
PIECE = 65_536


def asked() -> Exchange:
    exchange = Exchange("127.0.0.1:2379")
    exchange.encode(encode_range(b"a"), "")
    return exchange


@given(data=st.lists(st.one_of(st.binary(), st.sampled_from(WHOLE)), max_size=4), end=st.booleans())
def test_any_bytes_are_a_reply_or_a_bad_one(data: list[bytes], end: bool) -> None:
    exchange = asked()
    try:
        for part in [*data, *([b""] if end else [])]:
            if exchange.has_reply:
                break
            exchange.receive(part)
    except BadReplyError:
        pass


@given(whole=st.sampled_from(WHOLE), at=st.integers(0, 500), changed=st.binary(max_size=3), cut=st.integers(1, 500))
def test_a_reply_with_a_few_other_bytes_is_a_reply_or_a_bad_one(
    whole: bytes, at: int, changed: bytes, cut: int
) -> None:
    data = whole[:at] + changed + whole[at + len(changed) :]
    exchange, lines = asked(), Lines()
    try:
        for part in (data[:cut], data[cut:], b""):
            if exchange.has_reply:
                break
            for line in lines.split(exchange.receive(part)):
                decode_streamed(WatchMessage, line)
    except (BadReplyError, EtcdRefusal):
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["header", "kvs", "kv", "events", "error"]), inner),
)


@given(body=st.one_of(st.binary(), JSON.map(lambda value: repr(value).replace("'", '"').encode())))
def test_any_body_is_a_reply_or_a_bad_one(body: bytes) -> None:
    kind: type[Any]
    for kind in KINDS:
        for decoder in (decode, decode_streamed):
            with pytest.raises((BadReplyError, EtcdRefusal)):  # none of them has a whole head of etcd's
                decoder(kind, body)
    try:
        assert isinstance(decode_fault(body), EtcdRefusal)
    except BadReplyError:
        pass


def test_a_body_is_kept_to_its_limit() -> None:
    body = Body()
    for _ in range(REPLY_BYTES_MAX // PIECE):
        body.add(bytes(PIECE))
    assert len(body.join()) == REPLY_BYTES_MAX
    with pytest.raises(BadReplyError, match="more than"):
        body.add(b"x")


def test_a_line_is_kept_to_its_limit() -> None:
    lines = Lines()
    for _ in range(REPLY_BYTES_MAX // PIECE):
        assert lines.split(bytes(PIECE)) == []
    with pytest.raises(BadReplyError, match="more than"):
        lines.split(b"x")


def test_a_head_is_kept_to_its_limit() -> None:
    exchange = asked()
    begun = b"HTTP/1.1 200 OK\r\nX: "
    exchange.receive(begun + b"x" * (HEAD_BYTES_MAX - len(begun)))
    with pytest.raises(BadReplyError, match="not of HTTP"):
        exchange.receive(b"x")


@pytest.mark.parametrize(
    ("prefix", "end"), [(b"a", b"b"), (b"a/", b"a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0")]
)
def test_the_end_of_a_prefix_is_the_first_key_behind_it(prefix: bytes, end: bytes) -> None:
    assert end_of_prefix(prefix) == end


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":"no leader","message":"no leader","code":14}',
        b'{"code":14,"message":"no leader","details":[]}',
        b'{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"Service Unavailable"}}',
        b'{"error":{"code":14,"message":"no leader","details":[]}}',
    ],
)
def test_errors_of_both_gateways_are_read(body: bytes) -> None:
    refused = decode_fault(body)
    assert (refused.message, refused.code) == ("no leader", 14)


def test_a_put_compares_the_revision_and_reads_where_it_is_refused() -> None:
    asked_for = encode_put(b"a", 3, b"\xff", 7)
    assert asked_for.path == "/v3/kv/txn"
    assert asked_for.body == (
        b'{"compare":[{"key":"YQ==","target":"MOD","result":"EQUAL","mod_revision":3}],'
        b'"success":[{"request_put":{"key":"YQ==","value":"/w==","lease":7}}],'
        b'"failure":[{"request_range":{"key":"YQ=="}}]}'
    )
