"""Requests about the items of a queue that meet terms, at any position."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from staniel.broker.admin.browse import BYTES_MAX, LIMIT_MAX, ItemView, Matches, item_view
from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.admin.http.queries import find
from staniel.broker.commands.batches import PieceCommand
from staniel.broker.selection.search import ItemSearch
from staniel.broker.selection.where import BadTerm, Candidate, parse
from staniel.queues.queue import Queue, QueueState

SHOWN_DEFAULT = 20
PREVIEW_BYTES_DEFAULT = 200
Then = Callable[[ItemSearch, int], None]


class FindBody(Struct, forbid_unknown_fields=True):
    """A search for items. `where`: terms, all of which an item must meet; without terms every item does. `limit`: how
    many items are shown, each with its first `bytes`.
    """

    where: list[str] = []
    limit: int = SHOWN_DEFAULT
    bytes: int = PREVIEW_BYTES_DEFAULT


def find_items(exchange: Exchange, now_ms: int) -> None:
    """Find items and show them; nothing is taken."""
    body = exchange.body(FindBody)
    if not (0 <= body.limit <= LIMIT_MAX and body.bytes >= 0 and body.limit * body.bytes <= BYTES_MAX):
        raise BadBody(f"limit is at most {LIMIT_MAX}, and limit times bytes {BYTES_MAX}")
    queue = find(exchange)
    if queue is None:
        return

    views: list[ItemView] = []

    def show(seen: Candidate) -> None:
        """Make the item's view at once, so that the search does not keep whole payloads."""
        if len(views) < body.limit:
            views.append(item_view(seen.item, seen.deliveries, seen.position, seen.age_ms, body.bytes))

    def answer(search: ItemSearch, now_ms: int) -> None:
        wall_ms = queue.calendar.wall_ms(search.at_ms)
        told = Matches(queue.name, wall_ms, search.looked_at, search.found, search.found_bytes, search.cut, views)
        exchange.json(told)

    _search(exchange, queue, body.where, show, answer, now_ms)


def choose(exchange: Exchange, queue: Queue, terms: list[str], then: Then, now_ms: int) -> None:
    """Find the items that an operation is about, then call `then` with the search. Items that are put during the search
    are not found. Raises BadBody.
    """

    def begin(search: ItemSearch, now_ms: int) -> None:
        if why := under_way(exchange, queue):
            exchange.error(409, why)  # two operations would return their items in the wrong order
        else:
            then(search, now_ms)

    _search(exchange, queue, terms, None, begin, now_ms)


def under_way(exchange: Exchange, queue: Queue) -> str:
    """Return a text with the operation that has set aside items of `queue`, and what to do; "" if there is none."""
    other = exchange.broker.operations.by_terms(queue)
    if other is None:
        return ""
    return f"operation {other.id} searches {queue.name} by terms: wait for its end, or cancel it"


def chosen_count(search: ItemSearch, count: int) -> int:
    """Return how many of the `count` wanted items one operation takes: at most as many as were found."""
    chosen = search.chosen
    chosen.left_out = max(0, count - chosen.count)
    count -= chosen.left_out
    chosen.bytes = chosen.bytes * count // max(1, chosen.count)
    return count


def _search(
    exchange: Exchange,
    queue: Queue,
    terms: list[str],
    show: Callable[[Candidate], object] | None,
    then: Then,
    now_ms: int,
) -> None:
    try:
        where = parse(terms)
    except BadTerm as error:
        raise BadBody(str(error)) from None
    search = ItemSearch(queue, where, now_ms, show)
    is_through = False

    def finish(now_ms: int) -> None:
        nonlocal is_through
        is_through = True
        if queue.state is QueueState.CLOSED:
            exchange.error(404, f"{queue.name} is deleted")
        else:
            then(search, now_ms)

    def fail(error: Exception, now_ms: int) -> None:
        if isinstance(error, BadBody):
            exchange.error(400, str(error))
        elif is_through and isinstance(error, AssertionError):
            raise error  # a queue may be half-changed: recovery restores what is durable
        elif not is_through and isinstance(error, OSError):
            exchange.error(503, f"the journal of {queue.name} cannot be read: {error.strerror}")
        else:
            exchange.fail(error, now_ms)

    PieceCommand(exchange.session, search.pieces(), finish, fail).make_some(now_ms)
