"""The data received from the server, and its selection: sorted, filtered, paused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter

import msgspec
from msgspec import Struct

from staniel.broker.admin.reasons import Health
from staniel.broker.admin.sampler import DiskView, LoadView, QueueSums
from staniel.broker.admin.views import ServerView
from staniel.broker.figures import QueueRow
from staniel.server.text import human_duration, human_size, printable

ROW_FIELDS = QueueRow.__struct_fields__


class Column(Struct, frozen=True):
    """A column: `key` sorts its rows, `text` is what it shows at a time of the server's. On a narrow terminal the
    column with the highest `rank` is left out first. `width` 0: the remaining width.
    """

    title: str
    width: int
    rank: int
    key: Callable[[QueueRow], float | str]
    text: Callable[[QueueRow, int], str]
    help: str


def _age_key(row: QueueRow) -> float:
    return -row.oldest_at_ms if row.oldest_at_ms else float("-inf")


def _age_text(row: QueueRow, now_ms: int) -> str:
    return human_duration(max(0, now_ms - row.oldest_at_ms)) if row.oldest_at_ms else "-"


def _count_text(number: int) -> str:
    return f"{number:,}" if number < 10_000_000 else f"{number / 1e6:,.1f}M"


def rate_text(rate: float) -> str:
    return "0" if not rate else f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"


def _counts(title: str, width: int, rank: int, name: str, about: str) -> Column:
    """Return a column of counts: the field `name` of rows. The same for the functions that follow."""
    key = attrgetter(name)
    return Column(title, width, rank, key, lambda row, _: f"{key(row)}", about)


def _sizes(title: str, width: int, rank: int, name: str, about: str) -> Column:
    key = attrgetter(name)
    return Column(title, width, rank, key, lambda row, _: human_size(key(row)), about)


def _rates(title: str, width: int, rank: int, name: str, about: str) -> Column:
    key = attrgetter(name)
    return Column(title, width, rank, key, lambda row, _: rate_text(key(row)), about)


def _words(title: str, width: int, rank: int, name: str, about: str) -> Column:
    key = attrgetter(name)
    return Column(title, width, rank, key, lambda row, _: "" if key(row) == "none" else printable(key(row)), about)


COLUMNS = (
    _words("NAME", 0, 0, "name", "the queue"),
    Column("ITEMS", 10, 1, attrgetter("items"), lambda row, _: _count_text(row.items), "items that wait"),
    _sizes("BYTES", 7, 8, "bytes", "of payload"),
    Column("AGE", 9, 2, _age_key, _age_text, "of the oldest item that can be handed out"),
    _rates("IN/s", 8, 3, "put_rate", "items put in a second"),
    _rates("OUT/s", 8, 4, "get_rate", "items handed out in a second"),
    _counts("OPEN", 6, 5, "open_reads", "items in clients' hands"),
    _counts("WAIT", 6, 6, "waiters", "clients that wait for an item"),
    _sizes("MEMORY", 7, 9, "memory_bytes", "payload kept in memory"),
    _sizes("JOURNAL", 7, 10, "journal_bytes", "its files"),
    _sizes("UNSYNCED", 8, 7, "unsynced_bytes", "what a power cut could take"),
    Column("SYNC", 7, 11, attrgetter("sync"), lambda row, _: printable(row.sync), "its sync_journal"),
    _words("PAUSED", 6, 12, "paused", "what is held back"),
)
"""A new figure of rows that `top` shows is a line here."""


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
    fields: list[str] = []
    rows: list[list[object]] = []


def _places_of(fields: Sequence[str]) -> list[int]:
    """Return where the fields of a QueueRow stand in rows of these fields. Raises msgspec.ValidationError: one is
    missing.
    """
    if missing := [name for name in ROW_FIELDS if name not in fields]:
        raise msgspec.ValidationError(f"the server's rows have no {', '.join(missing)}: is it an older version?")
    return [fields.index(name) for name in ROW_FIELDS]


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
        self._places = list(range(len(ROW_FIELDS)))  # of the fields of a QueueRow in a row
        self._at_ms = self._heard_ms = self._paused_ms = 0

    def learn(self, event: TopEvent, heard_ms: int) -> None:
        """Apply an event received at `heard_ms` of the local clock. Raises msgspec.ValidationError: the event is
        another version's.
        """
        if event.is_first:
            self.is_whole, self._first = False, {}
            self._places = _places_of(event.fields or ROW_FIELDS)
        rows = self.rows if self.is_whole else self._first
        for fields in event.rows:
            if len(fields) == 1:
                rows.pop(str(fields[0]), None)
            else:
                row = msgspec.convert([fields[at] for at in self._places if at < len(fields)], QueueRow)
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
