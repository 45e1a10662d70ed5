"""The stream of events for an operator's page (server-sent events, WHATWG HTML, 9.2).

Each event is one line of JSON, a `PageEvent`. The first events bring all queues, EVENT_BYTES_MAX at a time, so that the
list is complete at once; the next ones the last ten minutes of each queue; later ones only changes. While a client's
socket has not taken the last event, no further one is made: a slow client costs one number here, and gets the newest
state when it reads again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from staniel.broker.admin import views
from staniel.broker.admin.http.exchange import Exchange
from staniel.broker.admin.reasons import Health
from staniel.broker.admin.sampler import DiskView, LoadView, QueueSums, Sampler, Seen
from staniel.broker.figures import QueueRow
from staniel.broker.session import PULSE
from staniel.broker.wall_clock import by_the_wall
from staniel.protocol.http import replies

CONTENT_TYPE = "text/event-stream"
EVERY_MS = 1_000
SOON_MS = 40  # between two events when there is more, so that other clients are served
ALIVE_MS = 3_000  # a page reports a lost connection after twice this time without an event
RETRY_MS = 1_000  # for the browser, when the connection ends
EVENT_BYTES_MAX = 64 << 10
FIRST_ROWS = 400  # rows of the first event, which takes a millisecond
_FIELDS = replies.encode(QueueRow.__struct_fields__)
SPARKS = 100  # queues in one event with their last ten minutes, 20 us each


class PageEvent(Struct, frozen=True):
    """An event, as the API's description shows it. `at_ms`: the server's time. `is_first`: discard what earlier events
    said. `more`: the page does not have all queues yet, and the next event follows at once. The first event has
    `server` and `fields`; `health`, `totals`, `disk` and `load` come in it and whenever they change. `rows`: the queues
    that have changed, each an array of the values of `fields`, or its name alone once it is deleted. `sparks`: for
    queues, the largest depth of the last ten minutes, and the depth every 10 s as letters (see `HistoryRing.spark`).
    """

    at_ms: int
    is_first: bool | UnsetType = UNSET
    more: bool | UnsetType = UNSET
    server: views.ServerView | UnsetType = UNSET
    fields: list[str] | UnsetType = UNSET
    health: Health | UnsetType = UNSET
    totals: QueueSums | UnsetType = UNSET
    disk: DiskView | UnsetType = UNSET
    load: LoadView | UnsetType = UNSET
    rows: list[QueueRow] | UnsetType = UNSET
    sparks: list[tuple[str, int, str]] | UnsetType = UNSET


class PageEvents:
    """The event stream of one page. `known`: the number of the last change that was sent to the page."""

    def __init__(self, exchange: Exchange, now_ms: int) -> None:
        self._exchange = exchange
        self._session = exchange.session
        self._broker = exchange.broker
        self._sampler: Sampler = exchange.broker.sampler(now_ms)
        self._epoch = -1
        self._known = 0
        self._is_caught_up = False  # the first rows have been sent
        self._awaits_more = False  # the last event that was sent has `more`
        self._sparks: deque[Seen] = deque()  # queues whose last ten minutes have not been sent
        self._told: dict[str, bytes] = {}  # the server's state as last sent
        self._sent_ms = now_ms

    def begin_stream(self, now_ms: int) -> None:
        self._exchange.begin_pieces(CONTENT_TYPE)
        if self._exchange.request.method == "HEAD":
            self._exchange.end()
            return
        self._exchange.add(b"retry: %d\n\n" % RETRY_MS)
        self._sampler.watch(now_ms)
        self._send_event(now_ms)

    def _on_pulse(self, _: Any, now_ms: int) -> None:
        """Schedule the next event when the wait ends or the server stops. The event is made later, where requests are
        executed: hundreds of pages may be due together, and clients that were delivered an item come first.
        """
        if self._broker.status.is_stopping:
            self._exchange.end()
        else:
            self._session.yield_turn(self._exchange.guarded(self._send_next))

    def _send_next(self, now_ms: int) -> None:
        if self._broker.status.is_stopping:
            self._exchange.end()
        elif self._broker.has_sent_all(self._session):
            self._sampler.watch(now_ms)
            self._send_event(now_ms)
        else:
            self._wait(now_ms + EVERY_MS)

    def _wait(self, until_ms: int) -> None:
        self._session.park(PULSE, until_ms, self._on_pulse, opens=False, peeks=True)

    def _send_event(self, now_ms: int) -> None:
        sampler = self._sampler
        is_first = self._epoch != sampler.epoch
        if is_first:
            self._epoch, self._known, self._is_caught_up = sampler.epoch, 0, False
            self._told.clear()
            self._sparks.clear()
        rows, more = self._rows()
        more = more or not sampler.is_whole
        if not more and not self._is_caught_up:
            self._is_caught_up = True
            self._sparks.extend(row for row in sampler.rows.values() if row.ring is not None)
        sparks = [] if is_first or more else self._next_sparks()
        pieces = [b'"at_ms":%d' % self._broker.calendar.wall_ms(now_ms)]
        if is_first:
            server = replies.encode(self._exchange.server_view(now_ms))
            pieces.append(b'"is_first":true,"server":%b,"fields":%b' % (server, _FIELDS))
        if more:
            pieces.append(b'"more":true')
        pieces += self._news(now_ms)
        if rows:
            pieces.append(b'"rows":[' + b",".join(rows) + b"]")
        if sparks:
            pieces.append(b'"sparks":' + replies.encode(sparks))
        # A page that awaits more is told when it has all, also if nothing has changed since.
        if len(pieces) > 1 or self._awaits_more or now_ms - self._sent_ms >= ALIVE_MS:
            self._awaits_more = more
            self._session.batch = max(self._session.batch, sampler.batch)
            self._exchange.add(b"data: {" + b",".join(pieces) + b"}\n\n")
            self._exchange.flush()
            self._sent_ms = now_ms
        self._wait(now_ms + (SOON_MS if more or self._sparks else EVERY_MS))

    def _rows(self) -> tuple[list[bytes], bool]:
        """Return the rows that have changed since this page's last event, as JSON, as many as one event takes. Return
        also whether there are more.
        """
        rows: list[bytes] = []
        size, ahead_ms = 0, self._broker.calendar.ahead_ms
        for row in self._sampler.changed_since(self._known):
            data = _encoded(row, ahead_ms)
            size += len(data)
            if rows and (size > EVENT_BYTES_MAX or (not self._is_caught_up and len(rows) >= FIRST_ROWS)):
                return rows, True
            rows.append(data)
            self._known = row.number
        return rows, False

    def _next_sparks(self) -> list[tuple[str, int, str]]:
        sparks: list[tuple[str, int, str]] = []
        while self._sparks and len(sparks) < SPARKS:
            row = self._sparks.popleft()
            if row.ring is not None and row.shown is not None:
                sparks.append((row.shown.name, *row.ring.spark()))
        return sparks

    def _news(self, now_ms: int) -> list[bytes]:
        """Return the parts of the server's state that have changed since this page's last event."""
        parts = []
        state = self._sampler.state(now_ms)
        told = (("health", state.health), ("totals", state.totals), ("disk", state.disk), ("load", state.load))
        ahead_ms = self._broker.calendar.ahead_ms
        for name, value in told:
            data = replies.encode(by_the_wall(value, ahead_ms))
            if self._told.get(name) != data:
                self._told[name] = data
                parts.append(b'"%b":%b' % (name.encode(), data))
        return parts


def _encoded(row: Seen, ahead_ms: int) -> bytes:
    """Return a row's JSON. All pages share it."""
    if not row.encoded:
        shown = row.shown
        row.encoded = replies.encode([row.queue.name] if shown is None else by_the_wall(shown, ahead_ms))
    return row.encoded
