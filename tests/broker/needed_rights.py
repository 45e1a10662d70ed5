"""The right that each command of each protocol needs, and what shows that it was obeyed: data for
test_rights_matrix.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from msgspec import Struct


class Need(Enum):
    """The first three are of the queue that is named, and their values are the roles."""

    READ = "read"
    WRITE = "write"
    OPERATE = "operate"
    LOOK_AT_ALL = "read or operate, for all queues"
    OPERATE_ALL = "operate, for all queues"
    ADMIN = "admin"
    LOGIN = "any user"
    NOTHING = "anybody"


READ, WRITE, OPERATE, LOOK_AT_ALL, OPERATE_ALL, ADMIN, LOGIN, NOTHING = Need


class Row(Struct, frozen=True):
    """`said` has blanks: {queue} and what belongs to it. `heard`: a part of the answer to who may, the same for each
    queue of the tests. `changes`: something is not as before then; None: that depends. `before`: what the same client
    has said while it could do everything, as (command, said).
    """

    need: Need
    said: Any = ""
    heard: bytes = b""
    changes: bool | None = False
    before: tuple[tuple[str, Any], ...] = ()


OPENED = (("", "get {queue}/open\r\n"),)
MONITORED = (("", "monitor {queue} 1 1\r\n"),)
MANY = "mine " * 64
SECRET = b"secret"  # what every item holds
REFUSED = b"CLIENT_ERROR"


def _refused(*names: str) -> dict[str, tuple[Row, ...]]:
    """Commands of memcached's that no queue serves, so nobody is asked for rights."""
    return {name: (Row(NOTHING, f"{name} {{queue}} 0 0 1\r\nx\r\n", REFUSED),) for name in names}


MEMCACHE: dict[str, tuple[Row, ...]] = {
    "set": (
        Row(WRITE, "set {queue} 0 0 3\r\nnew\r\n", b"STORED", changes=True),
        Row(WRITE, "set {queue}/delay=9 0 0 3\r\nnew\r\n", b"STORED", changes=True),
        Row(WRITE, "set {queue}/key=k 0 0 3\r\nnew\r\n", changes=None),  # one of the queues has fan-out children
    ),
    "get": (
        Row(READ, "get {queue}\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/peek\r\n", SECRET),
        Row(READ, "get {queue}/t=5\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/open\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/close\r\n", b"END", changes=True, before=OPENED),
        Row(READ, "get {queue}/abort\r\n", b"END", changes=True, before=OPENED),
        Row(READ, "get {queue}/close/open\r\n", SECRET, changes=True, before=OPENED),
        Row(READ, "get {queue}/n=2\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/n=2/open\r\n", SECRET, changes=True),
        Row(READ, "get mine {queue}\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/also=team-none\r\n", SECRET, changes=True),
        Row(READ, "get team-none/open/also={queue}\r\n", SECRET, changes=True),
        Row(READ, "get {queue} mine/peek\r\n", SECRET, changes=True),
        Row(READ, "get " + MANY + "{queue}\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/peek " + MANY + "\r\n", SECRET, changes=True),
    ),
    "gets": (
        Row(READ, "gets {queue}\r\n", SECRET, changes=True),
        Row(READ, "gets mine/peek {queue}\r\n", SECRET, changes=True),
    ),
    "touch": (
        Row(READ, "touch {queue} 10\r\n", b"TOUCHED", before=OPENED),
        Row(READ, "touch {queue}/id={id} 10\r\n", b"TOUCHED", before=OPENED),
        Row(READ, "touch {queue}/id={id}/abort 10\r\n", b"TOUCHED", changes=True, before=OPENED),
    ),
    "ms": (
        Row(WRITE, "ms {queue} 3\r\nnew\r\n", b"HD", changes=True),
        Row(WRITE, "ms {base64} 3 b\r\nnew\r\n", b"HD", changes=True),
        Row(WRITE, "ms {queue}/delay=9 3\r\nnew\r\n", b"HD", changes=True),
        Row(WRITE, "ms {queue}/key=k 3\r\nnew\r\n", changes=None),
    ),
    "mg": (
        Row(READ, "mg {queue} v\r\n", SECRET, changes=True),
        Row(READ, "mg {base64} b v\r\n", SECRET, changes=True),
        Row(READ, "mg {queue} s\r\n", b"HD"),
        Row(READ, "mg {queue}/open v\r\n", SECRET, changes=True),
        Row(READ, "mg team-none/open/also={queue} v\r\n", SECRET, changes=True),
        Row(READ, "mg {queue}/also=team-none s\r\n", b"HD"),
        Row(READ, "mg {queue}/close\r\n", b"EN", changes=True, before=OPENED),
        Row(READ, "mg {queue}/id={id} d p\r\n", b"HD", before=OPENED),
    ),
    "md": (
        Row(OPERATE, "md {queue}\r\n", b"HD", changes=True),
        Row(OPERATE, "md {base64} b\r\n", b"HD", changes=True),
    ),
    "mn": (Row(LOGIN, "mn\r\n", b"MN"),),
    "me": (Row(LOGIN, "me {queue}\r\n", b"EN"),),
    "ma": (Row(NOTHING, "ma {queue}\r\n", REFUSED),),
    "monitor": (Row(READ, "monitor {queue} 1 1\r\n", SECRET, changes=True),),
    "confirm": (Row(READ, "confirm {queue} 1\r\n", b"END", changes=True, before=MONITORED),),
    "delete": (
        Row(OPERATE, "delete {queue}\r\n", b"DELETED", changes=True),
        Row(READ, "delete {queue}/id={id}\r\n", b"DELETED", changes=True, before=OPENED),
    ),
    "flush": (Row(OPERATE, "flush {queue}\r\n", b"END", changes=True),),
    "flush_expired": (Row(OPERATE, "flush_expired {queue}\r\n", b"0"),),
    "flush_all": (Row(OPERATE_ALL, "flush_all\r\n", b"OK", changes=True),),
    "flush_all_expired": (Row(OPERATE_ALL, "flush_all_expired\r\n", b"0"),),
    "move": (
        Row(OPERATE, "move {queue} team-to\r\n", b"MOVED", changes=True),
        Row(OPERATE, "move team-from {queue} 1\r\n", b"MOVED", changes=True),
    ),
    "requeue": (
        Row(OPERATE, "requeue {queue} team-to\r\n", b"MOVED", changes=True),
        Row(OPERATE, "requeue team-from {queue} 1\r\n", b"MOVED", changes=True),
    ),
    "pause": (Row(OPERATE, "pause {queue}\r\n", b"", changes=True),),
    "resume": (Row(OPERATE, "resume {queue}\r\n", b"", changes=True, before=(("", "pause {queue}\r\n"),)),),
    "stats": (
        Row(LOOK_AT_ALL, "stats\r\n", b"queue_{queue}_items"),
        Row(LOOK_AT_ALL, "stats settings\r\n", b"END"),
    ),
    "dump_stats": (
        Row(LOOK_AT_ALL, "dump_stats\r\n", b"queue '{queue}'"),
        Row(READ, "dump_stats {queue}\r\n", b"queue '{queue}'"),
        Row(READ, "dump_stats mine {queue}\r\n", b"queue '{queue}'"),
    ),
    "dump_config": (
        Row(LOOK_AT_ALL, "dump_config\r\n", b"queue '{queue}'"),
        Row(READ, "dump_config {queue}\r\n", b"queue '{queue}'"),
    ),
    "status": (Row(LOGIN, "status\r\n", b"UP"), Row(ADMIN, "status readonly\r\n", b"END", changes=True)),
    "reload": (Row(ADMIN, "reload\r\n", b"", changes=True),),
    "version": (Row(LOGIN, "version\r\n", b"VERSION"),),
    "verbosity": (Row(LOGIN, "verbosity 1\r\n", b"OK"),),
    "client_name": (Row(LOGIN, "client_name worker-7\r\n", b"OK"),),
    "quit": (Row(NOTHING, "quit\r\n"),),
    "shutdown": (Row(ADMIN, "shutdown\r\n", changes=True),),
    **_refused("add", "replace", "append", "prepend", "cas"),
    **{name: (Row(NOTHING, f"{name} {{queue}} 1\r\n", REFUSED),) for name in ("incr", "decr", "gat", "gats")},
}

KESTREL: dict[str, tuple[Row, ...]] = {
    "set": (Row(WRITE, "set {queue} 0 0 3\r\nnew\r\n", b"STORED", changes=True),),
    "get": (
        Row(READ, "get {queue}\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/peek\r\n", SECRET),
        Row(READ, "get {queue}/t=5/open\r\n", SECRET, changes=True),
        Row(READ, "get {queue}/close\r\n", b"END", changes=True, before=OPENED),
        Row(READ, "get {queue}/abort\r\n", b"END", changes=True, before=OPENED),
    ),
    "gets": (Row(READ, "gets {queue}\r\n", SECRET, changes=True),),
    "monitor": MEMCACHE["monitor"],
    "confirm": MEMCACHE["confirm"],
    "delete": (Row(OPERATE, "delete {queue}\r\n", b"", changes=True),),
    "flush": (Row(OPERATE, "flush {queue}\r\n", b"", changes=True),),
    "flush_expired": (Row(OPERATE, "flush_expired {queue}\r\n", b"0"),),
    "flush_all": (Row(OPERATE_ALL, "flush_all\r\n", b"", changes=True),),
    "flush_all_expired": (Row(OPERATE_ALL, "flush_all_expired\r\n", b"0"),),
    "stats": (Row(LOOK_AT_ALL, "stats\r\n", b"queue_{queue}_items"),),
    "dump_stats": (
        Row(LOOK_AT_ALL, "dump_stats\r\n", b"queue '{queue}'"),
        Row(READ, "dump_stats {queue}\r\n", b"queue '{queue}'"),
    ),
    "client_name": MEMCACHE["client_name"],
    "status": MEMCACHE["status"],
    "reload": MEMCACHE["reload"],
    "version": MEMCACHE["version"],
    "quit": MEMCACHE["quit"],
    "shutdown": MEMCACHE["shutdown"],
    **{
        name: (Row(NOTHING, f"{name} {{queue}} 0 0 1\r\nx\r\n", REFUSED),)
        for name in ("add", "replace", "append", "prepend", "cas")
    },
}

TEXT: dict[str, tuple[Row, ...]] = {
    "put": (Row(WRITE, "put {queue}:\nnew\n\n", b"+1", changes=True),),
    "get": (Row(READ, "get {queue}\n", SECRET, changes=True), Row(READ, "get {queue} 5\n", SECRET, changes=True)),
    "peek": (Row(READ, "peek {queue}\n", SECRET),),
    "monitor": (Row(READ, "monitor {queue} 5\n", SECRET, changes=True),),
    "confirm": (Row(READ, "confirm {queue} 1\n", b"+", changes=True, before=(("", "monitor {queue} 5\n"),)),),
    "flush": (Row(OPERATE, "flush {queue}\n", b"+", changes=True),),
    "delete": (Row(OPERATE, "delete {queue}\n", b"+", changes=True),),
    "status": (Row(LOGIN, "status\n", b"UP"), Row(ADMIN, "status readonly\n", b"+", changes=True)),
    "version": (Row(LOGIN, "version\n", b":"),),
    "quit": (Row(NOTHING, "quit\n"),),
    "shutdown": (Row(ADMIN, "shutdown\n", changes=True),),
}

LEASED = (("get", {"queue_name": "{queue}", "max_items": 1, "auto_abort_msec": 60_000}),)
THRIFT: dict[str, tuple[Row, ...]] = {
    "put": (Row(WRITE, {"queue_name": "{queue}", "items": [b"new"]}, changes=True),),
    "get": (
        Row(READ, {"queue_name": "{queue}", "max_items": 1}, SECRET, changes=True),
        Row(READ, {"queue_name": "{queue}", "max_items": 2, "timeout_msec": 5}, SECRET, changes=True),
        Row(READ, {"queue_name": "{queue}", "max_items": 1, "auto_abort_msec": 60_000}, SECRET, changes=True),
    ),
    "confirm": (Row(READ, {"queue_name": "{queue}", "ids": "{leases}"}, changes=True, before=LEASED),),
    "abort": (Row(READ, {"queue_name": "{queue}", "ids": "{leases}"}, changes=True, before=LEASED),),
    "peek": (Row(READ, {"queue_name": "{queue}"}, SECRET),),
    "flush_queue": (Row(OPERATE, {"queue_name": "{queue}"}, changes=True),),
    "flush_all_queues": (Row(OPERATE_ALL, {}, changes=True),),
    "delete_queue": (Row(OPERATE, {"queue_name": "{queue}"}, changes=True),),
    "current_status": (Row(LOGIN, {}),),
    "set_status": (Row(ADMIN, {"status": 2}, changes=True),),
    "get_version": (Row(LOGIN, {}),),
}

JOB_LEASED = (("", "lease {queue} 0\r\n"),)
WORKQ: dict[str, tuple[Row, ...]] = {
    "add": (Row(WRITE, "add {fresh} {queue} 9 9000 1\r\nx\r\n", b"+OK", changes=True),),
    "schedule": (Row(WRITE, "schedule {fresh} {queue} 9 9000 2200-01-01T00:00:00Z 1\r\nx\r\n", b"+OK", changes=True),),
    "run": (Row(WRITE, "run {fresh} {queue} 9000 9000 1\r\nx\r\n", changes=True),),
    "lease": (
        Row(READ, "lease {queue} 0\r\n", SECRET, changes=True),
        Row(READ, "lease mine {queue} 0\r\n", SECRET, changes=True),
        Row(READ, "lease {queue} bad! 0\r\n", b"Invalid Name"),
    ),
    "complete": (Row(READ, "complete {job} 1\r\nx\r\n", b"+OK", changes=True, before=JOB_LEASED),),
    "fail": (Row(READ, "fail {job} 1\r\nx\r\n", b"+OK", changes=True, before=JOB_LEASED),),
    "delete": (Row(WRITE, "delete {job}\r\n", b"+OK", changes=True),),
    "result": (
        Row(WRITE, "result {job} 0\r\n", b"TIMEOUT"),
        Row(WRITE, "result {job} 0\r\n", SECRET, before=(*JOB_LEASED, ("", "complete {job} 6\r\nsecret\r\n"))),
    ),
    "inspect job": (Row(READ, "inspect job {job}\r\n", SECRET),),
    "inspect jobs": (Row(READ, "inspect jobs {queue} 0 9\r\n", SECRET),),
    "inspect scheduled-jobs": (Row(READ, "inspect scheduled-jobs {queue} 0 9\r\n", b"+OK"),),
    "inspect queue": (Row(READ, "inspect queue {queue}\r\n", b"+OK 1"),),
    "inspect queues": (Row(LOOK_AT_ALL, "inspect queues 0 9\r\n", b"{queue}"),),
    "inspect server": (Row(LOGIN, "inspect server\r\n", b"+OK"),),
}

OK = b" 200 "
QUEUE = "/api/queues/{queue}"
PURGED = ((f"POST {QUEUE}/purge", "{}"),)
HTTP: dict[str, tuple[Row, ...]] = {
    "GET /health/live": (Row(NOTHING, heard=OK),),
    "GET /health/ready": (Row(NOTHING, heard=OK),),
    "GET /ping": (Row(NOTHING, heard=b"pong"),),
    "GET /": (Row(NOTHING, heard=OK),),
    "GET /page/main.js": (Row(NOTHING, heard=OK),),
    "GET /openapi.json": (Row(NOTHING, heard=OK),),
    "POST /login": (Row(NOTHING, '{"token": "guessed"}', b" 401 "),),
    "GET /metrics": (Row(LOOK_AT_ALL, heard=b"{queue}"),),
    "GET /api/server": (Row(LOOK_AT_ALL, heard=OK),),
    "GET /api/cluster": (Row(LOOK_AT_ALL, heard=OK),),
    "GET /cluster": (Row(LOOK_AT_ALL, heard=b" 404 "),),
    "GET /api/queues": (Row(LOOK_AT_ALL, heard=b"{queue}"),),
    f"GET {QUEUE}": (Row(READ, heard=b"{queue}"),),
    f"HEAD {QUEUE}": (Row(READ, heard=OK),),
    f"GET {QUEUE}/items": (Row(READ, heard=SECRET),),
    f"GET {QUEUE}/open": (Row(READ, heard=b"xid"),),
    f"GET {QUEUE}/waiters": (Row(READ, heard=OK),),
    f"GET {QUEUE}/history": (Row(READ, heard=OK),),
    f"GET {QUEUE}/journal": (Row(READ, heard=OK),),
    f"GET {QUEUE}/config": (Row(READ, heard=OK),),
    "GET /api/clients": (Row(LOOK_AT_ALL, heard=OK),),
    "GET /api/history": (Row(LOOK_AT_ALL, heard=OK),),
    "GET /api/jobs": (Row(LOOK_AT_ALL, heard=b"other"),),
    "GET /api/audit": (Row(ADMIN, heard=OK),),
    "GET /api/events": (Row(LOOK_AT_ALL, heard=b"event-stream"),),
    f"POST {QUEUE}/put": (Row(WRITE, '{"data": "new"}', OK, changes=True),),
    f"POST {QUEUE}/find": (Row(READ, "{}", SECRET),),
    f"POST {QUEUE}/take": (Row(READ, '{"count": 1}', SECRET, changes=True),),
    f"POST {QUEUE}/reserve": (
        Row(READ, '{"count": 1}', SECRET, changes=True),
        Row(READ, '{"wait_ms": 5}', SECRET, changes=True),
        Row(READ, '{"also": ["team-none"]}', SECRET, changes=True),
    ),
    f"POST {QUEUE}/reserved/confirm": (Row(READ, '{"tokens": ["1-1"]}', b"gone"),),
    f"POST {QUEUE}/reserved/abort": (Row(READ, '{"tokens": ["1-1"]}', b"gone"),),
    f"POST {QUEUE}/reserved/extend": (Row(READ, '{"tokens": ["1-1"]}', b"gone"),),
    f"POST {QUEUE}/purge": (
        Row(OPERATE, "{}", OK, changes=True),
        Row(OPERATE, '{"no_undo": true}', OK, changes=True),
        Row(OPERATE, '{"where": ["tries=0"]}', OK, changes=True),
    ),
    f"POST {QUEUE}/move": (
        Row(OPERATE, '{"to": "team-to"}', OK, changes=True),
        Row(OPERATE, '{"to": "team-to", "where": ["tries=0"]}', OK, changes=True),
    ),
    f"POST {QUEUE}/redrive": (
        Row(OPERATE, '{"to": "team-to"}', OK, changes=True),
        Row(OPERATE, "{}", b" 409 "),
    ),
    "POST /api/queues/team-from/move": (Row(OPERATE, '{"to": "{queue}", "count": 1}', OK, changes=True),),
    "POST /api/queues/team-from/redrive": (Row(OPERATE, '{"to": "{queue}", "count": 1}', OK, changes=True),),
    f"POST {QUEUE}/pause": (Row(OPERATE, "{}", OK, changes=True),),
    f"POST {QUEUE}/resume": (Row(OPERATE, "{}", OK, changes=True, before=((f"POST {QUEUE}/pause", "{}"),)),),
    f"POST {QUEUE}/open/abort": (Row(OPERATE, "{}", OK, changes=True),),
    f"POST {QUEUE}/open/{{xid}}/abort": (Row(OPERATE, "{}", OK, changes=True),),
    "POST /api/clients/{number}/abort": (Row(ADMIN, "{}", OK, changes=True),),
    f"DELETE {QUEUE}": (
        Row(OPERATE, "{}", OK, changes=True),
        Row(OPERATE, '{"no_undo": true}', OK, changes=True),
    ),
    "POST /api/backup": (Row(ADMIN, "{}", OK, changes=True),),
    "POST /api/backup/made": (Row(ADMIN, '{"made_at_ms": 1, "where": "x"}', OK),),
    "GET /api/holds": (Row(LOOK_AT_ALL, heard=OK),),
    "POST /api/holds": (Row(ADMIN, '{"name": "h"}', OK),),
    "POST /api/holds/{hold}/move": (Row(ADMIN, '{"passed": {}}', b" 404 "),),
    "DELETE /api/holds/{hold}": (Row(ADMIN, "{}", b" 404 "),),
    "POST /api/status": (Row(ADMIN, '{"status": "readonly"}', OK, changes=True),),
    "POST /api/reload": (Row(ADMIN, "{}", OK, changes=True),),
    "POST /api/stop": (Row(ADMIN, "{}", OK, changes=True),),
    "GET /api/undo": (Row(LOOK_AT_ALL, heard=OK, before=PURGED),),
    "POST /api/undo/{number}": (Row(ADMIN, "{}", OK, changes=True, before=PURGED),),
    "DELETE /api/undo/{number}": (Row(ADMIN, "{}", OK, changes=True, before=PURGED),),
    "GET /api/operations": (Row(LOOK_AT_ALL, heard=OK),),
    "GET /api/operations/{number}": (Row(OPERATE, heard=OK, before=PURGED),),
    "POST /api/operations/{number}/cancel": (Row(OPERATE, "{}", b" 409 ", before=PURGED),),
    "GET /stats.json": (Row(LOOK_AT_ALL, heard=b"{queue}"),),
    "GET /stats.txt": (Row(LOOK_AT_ALL, heard=b"{queue}"),),
    "GET /server_info.txt": (Row(LOOK_AT_ALL, heard=OK),),
    "GET /server_info.json": (Row(LOOK_AT_ALL, heard=OK),),
}

NEEDED: dict[str, dict[str, tuple[Row, ...]]] = {
    "memcache": MEMCACHE,
    "kestrel": KESTREL,
    "text": TEXT,
    "thrift": THRIFT,
    "workq": WORKQ,
    "http": HTTP,
}
