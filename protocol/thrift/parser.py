"""The parser of Kestrel's thrift service, without a socket: bytes in, requests out, in order.

The parser reads the contents of a frame: finagle's header, a call, its arguments. `frames.py` splits frames,
`service.py` reads structs. No bytes of a peer raise: an unreadable request yields an `Invalid` in its place. Importing
this file imports thriftpy2.

    state     a frame holds        then
    PLAIN     a message            PLAIN; UPGRADED after finagle's question; CLOSED if it has no readable head
    UPGRADED  a header, a message  UPGRADED; CLOSED as above
    PAUSED    not read             after `More.resume` the state that it was paused in
    CLOSED    nothing              for ever: a request that disconnects has been handed out

A message with a readable head gets a reply whatever follows; the frame says where the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from thriftpy2.thrift import TMessageType

from staniel.protocol.http.detect import TLS_HELLO, TLS_REFUSED
from staniel.protocol.limits import WORK_PER_FEED, Limits
from staniel.protocol.parser import Parser
from staniel.protocol.requests import Invalid, More
from staniel.protocol.thrift.frames import FRAME_BYTES_MAX, Frames
from staniel.protocol.thrift.replies import (
    CAN_UPGRADE,
    INVALID_MESSAGE_TYPE,
    PROTOCOL_ERROR,
    UNKNOWN_METHOD,
    exception,
    internal_error,
)
from staniel.protocol.thrift.requests import (
    ThriftAbort,
    ThriftConfirm,
    ThriftCurrentStatus,
    ThriftDelete,
    ThriftFlush,
    ThriftFlushAll,
    ThriftGet,
    ThriftPeek,
    ThriftPut,
    ThriftRequest,
    ThriftSetStatus,
    ThriftStatus,
    ThriftUpgrade,
    ThriftVersion,
)
from staniel.protocol.thrift.service import MalformedStruct, MessageHead, declaration, read_head, read_struct, service

CALL_WORK = 4  # reading a call takes as long as so many lines

SETTABLE = {status.value: status for status in ThriftStatus if status is not ThriftStatus.NOT_CONFIGURED}


class ThriftState(Enum):
    PLAIN = "plain"
    UPGRADED = "upgraded"
    PAUSED = "paused"
    CLOSED = "closed"


_NEXT = {
    ThriftState.PLAIN: (ThriftState.UPGRADED, ThriftState.PAUSED, ThriftState.CLOSED),
    ThriftState.UPGRADED: (ThriftState.PAUSED, ThriftState.CLOSED),
    ThriftState.PAUSED: (ThriftState.PLAIN, ThriftState.UPGRADED),
    ThriftState.CLOSED: (),
}
"""The states that may follow a state; `_enter` asserts it."""


class ThriftParser(Parser):
    """A parser of one connection."""

    def __init__(self, limits: Limits, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._frames = Frames()
        self.limit(limits)
        self._state = ThriftState.PLAIN
        self.pending_bytes = 0

    def limit(self, limits: Limits) -> None:
        """Change the limits for bytes that have not been read yet. An unauthenticated client needs no items."""
        self._limits = limits
        most = self._frame_bytes_max
        self._frames.bytes_max = min(most, limits.item_bytes_max) if limits.may_log_in else most

    @property
    def state(self) -> ThriftState:
        return self._state

    def feed(self, data: bytes) -> list[ThriftRequest]:
        """Return the requests that `data` completes, in order.

        After a request that disconnects, further bytes are ignored. If the requests exceed a turn's time, the last one
        is a `More`, and bytes that arrive before it is resumed are stored.
        """
        requests: list[ThriftRequest] = []
        work_left = WORK_PER_FEED
        if self._state is ThriftState.CLOSED:
            return requests
        self._frames.feed(data)
        if self._state is ThriftState.PAUSED:
            self.pending_bytes += len(data)
            return requests
        while (frame := self._frames.next()) is not None:
            work_left -= CALL_WORK + (len(frame) >> 7 if isinstance(frame, bytes) else 0)
            request = self._read(frame) if isinstance(frame, bytes) else self._bad_length(frame)
            requests.append(request)
            if isinstance(request, Invalid) and request.hang_up:
                self._frames.clear()
                self._enter(ThriftState.CLOSED)
                break
            if work_left <= 0 and self._frames.pending_bytes:
                requests.append(More(partial(self._resume, self._state)))
                self._enter(ThriftState.PAUSED)
                break
        self.pending_bytes = self._frames.pending_bytes
        return requests

    def _resume(self, state: ThriftState) -> list[ThriftRequest]:
        """Parse the next stored frames, in the state that the parser was paused in."""
        self._enter(state)
        return self.feed(b"")

    def _enter(self, state: ThriftState) -> None:
        assert state in _NEXT[self._state], f"{state} after {self._state}"
        self._state = state

    def _bad_length(self, size: int) -> Invalid:
        if size >> 16 == int.from_bytes(TLS_HELLO, "big"):
            return TLS_REFUSED
        return _hang_up(f"a frame of {size} bytes, at most {self._frames.bytes_max}")

    def _read(self, frame: bytes) -> ThriftRequest:
        client_id, at = "", 0
        try:
            if self._state is ThriftState.UPGRADED:
                client_id, at = _read_header(frame)
            head = read_head(frame, at)
        except MalformedStruct as error:
            return _hang_up(str(error))
        if head.kind != TMessageType.CALL:
            return self._except(head, INVALID_MESSAGE_TYPE, f"Invalid message type: {head.kind}")
        if head.method == CAN_UPGRADE and self._state is ThriftState.PLAIN:
            self._enter(ThriftState.UPGRADED)
            return ThriftUpgrade()
        return self._read_call(frame, head, client_id)

    def _read_call(self, frame: bytes, head: MessageHead, client_id: str) -> ThriftRequest:
        make = _METHODS.get(head.method)
        if make is None:
            return self._except(head, UNKNOWN_METHOD, f"Invalid method name: '{head.method}'")
        try:
            arguments, _ = read_struct(getattr(service, f"{head.method}_args"), frame, head.end)
        except MalformedStruct as error:
            return self._except(head, PROTOCOL_ERROR, f"{head.method}: {error}")
        why = _error_in(arguments, self._limits)
        if why:
            return Invalid(internal_error(head.method, head.seqid, self._upgraded, why), why=why)
        return make(arguments, (head.seqid, client_id, self._upgraded))

    @property
    def _upgraded(self) -> bool:
        return self._state is ThriftState.UPGRADED

    def _except(self, head: MessageHead, kind: int, why: str) -> Invalid:
        return Invalid(exception(head.method, head.seqid, self._upgraded, kind, why), why=why)


def _hang_up(why: str) -> Invalid:
    return Invalid(b"", hang_up=True, why=why)


def _read_header(frame: bytes) -> tuple[str, int]:
    """Return the client's name in finagle's header, and where the message begins. Raises MalformedStruct."""
    header, end = read_struct(declaration.RequestHeader, frame, 0)
    if header.client_id is None or header.client_id.name is None:
        return "", end
    if not isinstance(header.client_id.name, str):
        raise MalformedStruct("a client id that is not UTF-8")
    return header.client_id.name, end


def _error_in(arguments: Any, limits: Limits) -> str:
    """Return what is wrong with decoded arguments; empty if nothing is. No method has all of these arguments.

    thriftpy2 leaves a string that is not UTF-8 as bytes.
    """
    name = getattr(arguments, "queue_name", "")
    if not isinstance(name, str):
        return "queue_name is missing" if name is None else "queue_name is not UTF-8"
    if hasattr(arguments, "status") and arguments.status not in SETTABLE:
        return f"status {arguments.status} cannot be set"
    if any(len(item) > limits.item_bytes_max for item in getattr(arguments, "items", None) or ()):
        return f"item too large, at most {limits.item_bytes_max} bytes"
    return ""


def _ids(arguments: Any) -> tuple[int, ...]:
    """Return the distinct ids. thriftpy2 reads a set as a list, with repeated elements."""
    return tuple(dict.fromkeys(arguments.ids or ()))


_Call = tuple[int, str, bool]
"""The fields of `ThriftCall`, which come first in each request."""

_METHODS: dict[str, Callable[[Any, _Call], ThriftRequest]] = {
    "put": lambda a, call: ThriftPut(*call, a.queue_name, tuple(a.items or ()), a.expiration_msec or None),
    "get": lambda a, call: ThriftGet(*call, a.queue_name, a.max_items or 0, a.timeout_msec, a.auto_abort_msec),
    "confirm": lambda a, call: ThriftConfirm(*call, a.queue_name, _ids(a)),
    "abort": lambda a, call: ThriftAbort(*call, a.queue_name, _ids(a)),
    "peek": lambda a, call: ThriftPeek(*call, a.queue_name),
    "flush_queue": lambda a, call: ThriftFlush(*call, a.queue_name),
    "flush_all_queues": lambda a, call: ThriftFlushAll(*call),
    "delete_queue": lambda a, call: ThriftDelete(*call, a.queue_name),
    "current_status": lambda a, call: ThriftCurrentStatus(*call),
    "set_status": lambda a, call: ThriftSetStatus(*call, SETTABLE[a.status]),
    "get_version": lambda a, call: ThriftVersion(*call),
}
