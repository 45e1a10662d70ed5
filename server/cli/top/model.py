"""The data received from the server, and its selection: sorted, filtered, paused."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec
from msgspec import Struct

from staniel.broker.operations.reasons import Health
from staniel.broker.operations.sampler import DiskView, LoadView, QueueRow, QueueSums
from staniel.broker.operations.views import ServerView

ROW_FIELDS = len(QueueRow.__struct_fields__)


class Column(Struct, frozen=True):
    """A column. On a narrow terminal the column with the highest `rank` is left out first. `width` 0: the
    remaining width.
    """

    title: str
    width: int
    rank: int
    key: Callable[[QueueRow], float | str]
    help: str


def _age_key(row: QueueRow) -> float:
    return -row.oldest_at_ms if row.oldest_at_ms else float("-inf")


COLUMNS = (
    Column("NAME", 0, 0, lambda row: row.name, "the queue"),
    Column("ITEMS", 10, 1, lambda row: row.items, "items that wait"),
    Column("BYTES", 7, 8, lambda row: row.bytes, "of payload"),
    Column("AGE", 9, 2, _age_key, "of the oldest item that can be handed out"),
    Column("IN/s", 8, 3, lambda row: row.put_rate, "items put in a second"),
    Column("OUT/s", 8, 4, lambda row: row.get_rate, "items handed out in a second"),
    Column("OPEN", 6, 5, lambda row: row.open_reads, "items in clients' hands"),
    Column("WAIT", 6, 6, lambda row: row.waiters, "clients that wait for an item"),
    Column("MEMORY", 7, 9, lambda row: row.memory_bytes, "payload kept in memory"),
    Column("JOURNAL", 7, 10, lambda row: row.journal_bytes, "its files"),
    Column("UNSYNCED", 8, 7, lambda row: row.unsynced_bytes, "what a power cut could take"),
    Column("SYNC", 7, 11, lambda row: row.sync, "its sync_journal"),
    Column("PAUSED", 6, 12, lambda row: row.paused, "what is held back"),
)


class TopEvent(Struct):
    """An event of `/api/events`."""

    at_ms: int = 0
    is_first: bool = False
    more: bool = False
    server: ServerView | None = None
    health: Health | None = None
    totals: QueueSums | None = None
    disk: DiskView | None = None
    load: LoadView | None = None
    rows: list[list[object]] = []


class LinkState(Enum):
    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"


class TopModel:
    """The state of `top`. `rows` are by name. Times are the server's: `now_ms` converts a local time by the
    last event.
    """

    def __init__(self) -> None:
        self.rows: dict[str, QueueRow] = {}
        self.server: ServerView | None = None
        self.health: Health | None = None
        self.totals = QueueSums()
        self.disk: DiskView | None = None
        self.load: LoadView | None = None
        self.link = LinkState.CONNECTING
        self.why_lost = ""
        self.is_whole = False
        self.sort = 1
        self.is_reversed = False
        self.filter = ""
        self.is_paused = False
        self._held: list[QueueRow] = []  # the rows shown during a pause
        self._first: dict[str, QueueRow] = {}  # the rows of a new stream, until they are complete
        self._at_ms = self._heard_ms = self._paused_ms = 0

    def learn(self, event: TopEvent, heard_ms: int) -> None:
        """Apply an event received at `heard_ms` of the local clock. Raises msgspec.ValidationError: the event is
        another version's.
        """
        if event.is_first:
            self.is_whole, self._first = False, {}
        rows = self.rows if self.is_whole else self._first
        for fields in event.rows:
            if len(fields) == 1:
                rows.pop(str(fields[0]), None)
            else:
                row = msgspec.convert(fields[:ROW_FIELDS], QueueRow)
                rows[row.name] = row
        if not self.is_whole and not event.more:
            self.rows, self._first, self.is_whole = self._first, {}, True
        self.server = event.server or self.server
        self.health = event.health or self.health
        self.totals = event.totals or self.totals
        self.disk, self.load = event.disk or self.disk, event.load or self.load
        self.link, self._at_ms, self._heard_ms = LinkState.LIVE, event.at_ms, heard_ms

    def lose(self, why: str) -> None:
        """Note the loss of the connection; the last data stays on the screen."""
        self.link, self.why_lost = LinkState.LOST, why

    def now_ms(self, ours_ms: int) -> int:
        """Return the server's time; while the display is paused or disconnected, the time of the displayed data."""
        if self.is_paused:
            return self._paused_ms
        if self.link is LinkState.LOST:
            return self._at_ms
        return self._at_ms + max(0, ours_ms - self._heard_ms)

    def pause(self, ours_ms: int) -> None:
        """Pause the display, or resume it."""
        if self.is_paused:
            self.is_paused, self._held, self._paused_ms = False, [], 0
        else:
            self._held, self._paused_ms = self.shown(), self.now_ms(ours_ms)
            self.is_paused = True

    def sort_by(self, column: int) -> None:
        self.sort = column % len(COLUMNS)

    def shown(self) -> list[QueueRow]:
        """Return the rows in order: numbers from the largest down, names from A on."""
        rows = self._held if self.is_paused else list(self.rows.values())
        if wanted := self.filter.casefold():
            rows = [row for row in rows if wanted in row.name.casefold()]
        key = COLUMNS[self.sort].key
        rows = sorted(rows, key=lambda row: row.name)
        is_text = rows and isinstance(key(rows[0]), str)
        return sorted(rows, key=key, reverse=bool(is_text) == self.is_reversed)
