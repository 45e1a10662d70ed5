"""Requests to etcd's JSON gateway as bytes, and its replies from bytes, without HTTP.

The gateway writes 64-bit numbers as strings, bytes in base64, and leaves out what is zero, empty or false. Two versions
of it are in use, which write errors differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, TypeVar

import msgspec
from msgspec import Struct

from staniel.cluster.etcd.errors import BadReplyError, EtcdRefusal

KEYS_MAX = 1000  # of a prefix: a cluster has some tens

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_ReplyT = TypeVar("_ReplyT")


class Request(Struct, frozen=True):
    """A request: the gateway's path, and the body."""

    path: str
    body: bytes


class KeyValue(Struct, frozen=True):
    """A key as etcd has it. `mod_revision` is the revision of its last change."""

    key: bytes = b""
    value: bytes = b""
    mod_revision: Count = 0
    lease: Count = 0


class Reading(Struct, frozen=True):
    """The keys of a read, in order, and the revision of the whole etcd at which they were so."""

    cluster_id: int
    revision: int
    values: tuple[KeyValue, ...]


class Outcome(Enum):
    """The end of a put that compares."""

    WRITTEN = "written"
    REFUSED = "refused"  # the key has another revision
    UNKNOWN = "unknown"  # it may be written, or still will be: settle it by another transaction
    NOT_TAKEN = "not taken"  # no endpoint took it: nothing is written, and nothing will be


class PutResult(Struct, frozen=True):
    """The outcome of a put that compares.

    `revision` is the key's new one if it was written. `current`, if it was refused, is the key as it is, None if it is
    not there. `why` says, otherwise, what went wrong.
    """

    outcome: Outcome
    revision: Count = 0
    current: KeyValue | None = None
    why: str = ""


class Lease(Struct, frozen=True):
    """A lease that was granted. etcd may make it longer than it was asked for."""

    lease_id: int
    ttl_s: int


class ChangeKind(Enum):
    """The kind of a change."""

    PUT = "PUT"
    DELETE = "DELETE"


class Change(Struct, frozen=True):
    """A change of a key. One that was deleted has no value, and the revision of the deletion."""

    kv: KeyValue
    kind: ChangeKind = msgspec.field(name="type", default=ChangeKind.PUT)


class NewsKind(Enum):
    """The kind of what a watch tells."""

    STATE = "state"  # all keys as they are: at the beginning, and where changes were missed
    CHANGES = "changes"


class News(Struct, frozen=True):
    """The news of a watch at one time: by `kind`, all keys that there are in `values`, or in `changes` what happened
    since the news before, in order. `revision` is the last one of which it tells.
    """

    kind: NewsKind
    revision: int
    values: tuple[KeyValue, ...] = ()
    changes: tuple[Change, ...] = ()


class Header(Struct, frozen=True):
    """The head of each reply."""

    cluster_id: Annotated[int, msgspec.Meta(gt=0)]
    revision: Count = 0


class WatchMessage(Struct, frozen=True):
    """A message of a watch. `compact_revision` is above 0 if the changes asked for are not kept any more."""

    header: Header
    created: bool = False
    canceled: bool = False
    compact_revision: Count = 0
    cancel_reason: str = ""
    events: tuple[Change, ...] = ()


class Found(Struct, frozen=True):
    """The reply to a range."""

    header: Header
    kvs: tuple[KeyValue, ...] = ()
    more: bool = False


class _RangeInTransaction(Struct, frozen=True):
    kvs: tuple[KeyValue, ...] = ()


class _Response(Struct, frozen=True):
    response_range: _RangeInTransaction | None = None


class Transacted(Struct, frozen=True):
    """The reply to a transaction of `encode_put`."""

    header: Header
    succeeded: bool = False
    responses: tuple[_Response, ...] = ()

    @property
    def current(self) -> KeyValue | None:
        """The key as the refused put has found it."""
        read = self.responses[0].response_range if self.responses else None
        return read.kvs[0] if read and read.kvs else None


class Granted(Struct, frozen=True):
    """The reply to a lease's grant or renewal. A renewed lease without a TTL is not there any more."""

    header: Header
    ID: Count = 0
    TTL: Count = 0


class Revoked(Struct, frozen=True):
    """The reply to a lease's end."""

    header: Header


class Authenticated(Struct, frozen=True):
    """The reply to a name and password."""

    header: Header
    token: str = ""


class _StreamFault(Struct, frozen=True):
    message: str = ""
    code: int = 0
    grpc_code: int = 0


class _Fault(Struct, frozen=True):
    """An error of either version of the gateway, within a stream or not."""

    error: str | _StreamFault = ""
    message: str = ""
    code: int = 0


class _Streamed(Struct, frozen=True):
    """A message of a stream: a result or an error."""

    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


def encode_range(key: bytes, *, is_prefix: bool = False, is_local: bool = False) -> Request:
    """Return the request for a key, or for all keys that begin with it. With `is_local` the endpoint replies from what
    it has, without asking the others, and only with a count.
    """
    body: dict[str, object] = {"key": key, "limit": KEYS_MAX}
    if is_prefix:
        body["range_end"] = end_of_prefix(key)
    if is_local:
        body |= {"serializable": True, "count_only": True}
    return _encode("kv/range", body)


def encode_put(key: bytes, mod_revision: int, value: bytes, lease_id: int = 0) -> Request:
    """Return the transaction that writes the key if that is still its revision, or if it is not there for 0."""
    compare = {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": mod_revision}
    put = {"key": key, "value": value, "lease": lease_id}
    body = {"compare": [compare], "success": [{"request_put": put}], "failure": [{"request_range": {"key": key}}]}
    return _encode("kv/txn", body)


def encode_grant(ttl_s: int) -> Request:
    """Return the request for a new lease."""
    return _encode("lease/grant", {"TTL": ttl_s})


def encode_renewal(lease_id: int) -> Request:
    """Return the request that makes a lease's time begin anew."""
    return _encode("lease/keepalive", {"ID": lease_id})


def encode_revoke(lease_id: int) -> Request:
    """Return the request that ends a lease, and its keys."""
    return _encode("lease/revoke", {"ID": lease_id})


def encode_watch(key: bytes, revision: int, *, is_prefix: bool = False) -> Request:
    """Return the request for the changes of a key, or of all that begin with it, from a revision on."""
    body: dict[str, object] = {"key": key, "start_revision": revision}
    if is_prefix:
        body["range_end"] = end_of_prefix(key)
    return _encode("watch", {"create_request": body})


def encode_login(user: str, password: str) -> Request:
    """Return the request for a token."""
    return _encode("auth/authenticate", {"name": user, "password": password})


def _encode(path: str, body: dict[str, object]) -> Request:
    return Request(f"/v3/{path}", msgspec.json.encode(body))


def end_of_prefix(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with `prefix`; a zero byte, which means the end, if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def decode(kind: type[_ReplyT], body: bytes | msgspec.Raw) -> _ReplyT:
    """Return a reply. Raises BadReplyError."""
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadReplyError(f"etcd's reply is not what it should be: {error}") from None


def decode_streamed(kind: type[_ReplyT], line: bytes) -> _ReplyT:
    """Return the result in a message of a stream. Raises EtcdRefusal and BadReplyError."""
    streamed = decode(_Streamed, line)
    if bytes(streamed.error):
        raise decode_fault(line)
    return decode(kind, streamed.result)


def decode_fault(body: bytes) -> EtcdRefusal:
    """Return the error in a reply that has one. Raises BadReplyError."""
    fault = decode(_Fault, body)
    if isinstance(fault.error, _StreamFault):
        return EtcdRefusal(_printable(fault.error.message), fault.error.grpc_code or fault.error.code)
    return EtcdRefusal(_printable(fault.message or fault.error), fault.code)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200]) or "no reason given"


def check_keys(values: Sequence[KeyValue], key: bytes, *, is_prefix: bool) -> None:
    """Raise BadReplyError if a reply has keys that were not asked for."""
    for kv in values:
        if not (kv.key.startswith(key) if is_prefix else kv.key == key):
            raise BadReplyError("etcd's reply has a key that was not asked for")
