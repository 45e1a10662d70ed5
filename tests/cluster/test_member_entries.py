"""What etcd says of members: whatever stands there, an entry is one to connect to, or is left out."""

from __future__ import annotations

import msgspec
import pytest

from staniel.cluster.etcd.messages import KeyValue
from staniel.server.cluster.etcd_link import Answers, EtcdLink, MemberEntry
from staniel.server.cluster.member_view import expected_of

OWN = b"a" * 16
OTHER = b"b" * 16
SOUND = MemberEntry("b", "10.0.0.2:22233", "[fd00::2]:22133")
FOLDER, KNOWN = b"/staniel/t/members/", b"/staniel/t/known/"


def ignored(*answer: object) -> None:
    pass


@pytest.fixture
def link() -> EtcdLink:
    answers = Answers(ignored, ignored, ignored, ignored, ignored, ignored)
    return EtcdLink(["http://127.0.0.1:1"], "t", OWN, SOUND, 5, answers)


def held(value: bytes, key: bytes = FOLDER + OTHER.hex().encode()) -> KeyValue:
    return KeyValue(key, value, 5)


def with_addresses(replication: str, clients: str) -> bytes:
    return msgspec.json.encode(MemberEntry("b", replication, clients))


BAD = [
    b'{"name":"\xff","replication":"a:1","clients":"b:1"}',
    b'{"x":' + b"[" * 100_000,
    b'{"x":' + b"[" * 3_000,
    b"",
    b"{}",
    msgspec.json.encode(MemberEntry("b" * 10_000, "a:1", "b:1")),
    *[
        with_addresses(*pair)
        for bad in ("", "nonsense", "unix:/x", "a:99999", "a:b", "a:0", "a" * 70 + ":1", "\0:1", "a..b:1")
        for pair in ((bad, "b:1"), ("a:1", bad))
    ],
    with_addresses("a:1", ".".join(["a" * 60] * 5) + ":1"),
]


@pytest.mark.parametrize("value", BAD, ids=lambda value: str(value[:60]))
def test_an_entry_that_names_no_member_to_connect_to_is_left_out(link: EtcdLink, value: bytes) -> None:
    link._take_values([held(msgspec.json.encode(SOUND))])
    assert link._entries == {OTHER: SOUND}
    link._take_values([held(value)])
    assert link._entries == {}


def test_a_member_is_expected_until_it_is_removed(link: EtcdLink) -> None:
    known = KNOWN + OTHER.hex().encode()
    link._take_values([held(msgspec.json.encode(SOUND), known)])
    assert (link.known, link._entries) == ({OTHER: SOUND}, {})
    link._take_values([held(b"", known)])
    assert link.known == {}
    link._take_values([held(msgspec.json.encode(SOUND), KNOWN + b"zz")])
    assert link.known == {}


def test_a_member_whose_disk_was_replaced_is_expected_no_more() -> None:
    renamed = MemberEntry("c", "10.0.0.3:22233", "10.0.0.3:22133")
    known = {OWN: SOUND, OTHER: renamed}
    assert expected_of(known, {}) == known
    assert expected_of(known, {OTHER: renamed}) == {OWN: SOUND}
    assert expected_of(known, {b"n" * 16: SOUND}) == {OTHER: renamed}


@pytest.mark.parametrize("name", [b"", b"\xff", b"zz", b"aa", OTHER.hex().encode() + b"00"])
def test_a_key_that_is_no_members_is_left_out(link: EtcdLink, name: bytes) -> None:
    link._take_values([held(msgspec.json.encode(SOUND), FOLDER + name)])
    assert link._entries == {}
