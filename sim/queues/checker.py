"""The checker of queues while a history runs. Every change that a queue records needs a cause; every reply needs its
change.

At the end are replies that the model can predict if nothing else has happened in between: a miss, a peek, statistics.
promises.py judges what a crash has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from staniel.queues.calendar import is_date
from staniel.queues.changes import Change
from staniel.queues.counters import CHANGES_COUNTED
from staniel.queues.item import Item
from staniel.queues.names import family_of
from staniel.queues.queue import Queue
from staniel.sim.clocks import Clocks
from staniel.sim.queues.conversation import (
    CLOSERS,
    OPENERS,
    PUTS,
    SHOWS_ITEMS,
    SHOWS_TEXT_ITEMS,
    Answer,
    Request,
    Want,
)
from staniel.sim.queues.model import Fact, Fate, ImpossibleChange, Move, QueueModel, Reading, Record, Verb, facts_of
from staniel.sim.queues.pasts import StatedPasts, check_start, check_transfer, may_be_copy
from staniel.sim.queues.promises import Acknowledgement, acknowledged, acknowledgement_of
from staniel.sim.violations import Kind, Violation, shown


class CheckedClient(Protocol):
    """A client, as the checker sees it. `held`: its open reads, by queue, the oldest first."""

    held: dict[str, deque[Reading]]
    is_leaving: bool

    @property
    def has_delivery(self) -> bool: ...

    @property
    def unanswered(self) -> deque[Request]: ...


class Put(Struct, eq=False):
    """An item of a put request. `queues`: where it has been added. `expected`: where it should have been added at that
    moment.
    """

    request: Request
    queues: list[str]
    expected: set[str] = set()
    is_answered: bool = False


class Taken(Struct, eq=False):
    """An item that has left `queue` for good, and that no client has seen yet."""

    record: Record
    is_excused: bool


class Checker:
    """The checker of one server's life. `targets` and aliases come from the configuration. `legs(name)` are the queues
    that a put to `name` goes to.
    """

    def __init__(self, models: dict[str, QueueModel], puts: dict[bytes, Put]) -> None:
        self.models = models
        self.puts = puts
        self.pasts: StatedPasts = {}  # of all lives; the run replaces it
        self.clients: list[CheckedClient] = []
        self.counts_deliveries = False  # count deliveries over all lives; elsewhere settings and rewrites interfere
        self.deleting: list[str] = []  # queues that clients asked to delete before they left, once for each request
        self.aliases: Mapping[str, Sequence[str]] = {}
        self.now_ms = 0  # with `clocks`, the passed time over all lives
        self.clocks: Clocks | None = None  # of a machine whose wall clock is set
        self.first_added: dict[tuple[str, bytes], Record] = {}  # the first record of an item, by queue and item
        self.taken: dict[str, list[Taken]] = {}
        self.opened: dict[str, list[Reading]] = {}
        self.transcript: list[tuple[str, str, str]] = []
        self.facts = 0
        self.ambiguous: list[tuple[Record, list[Record]]] = []  # supposed sources of copies, and equal items
        self.left: set[tuple[str, bytes]] = set()  # (queue, item) removed in this turn: a peek may have come before
        self.unheard: list[tuple[str, bytes]] = []  # removed for a client that left; may return, also later
        self.brought: set[str] = set()  # brought before others in this turn, which the server opens and aborts for that
        self.ended = 0  # open reads that clients were told have ended
        self.answers = 0

    def begins(self, queue: Queue) -> None:
        model = self.model(queue.name)
        model.add_queue(queue)
        if not model.facts:
            check_start(model, queue, self.pasts)
        model.begun_after_facts = self.facts

    def ends(self, queue: Queue) -> None:
        self.facts += 1
        self.transcript.append(("fact", queue.name, "deleted"))
        model = self.model(queue.name)
        unanswered = self._wants(Want.DELETE, queue.name)
        for request in unanswered[:1]:
            request.count = 1
        if not unanswered and queue.name in self.deleting:
            self.deleting.remove(queue.name)
        elif not unanswered and not queue.config.max_queue_age_ms:
            raise Violation(Kind.LOST, f"queue {queue.name} was deleted without a request")
        self.left.update((queue.name, record.data) for record in model.now.ready)
        model.end()

    def removes(self, queue: Queue, *, is_under_way: bool) -> None:
        self.model(queue.name).is_being_removed = is_under_way

    def states(self, queue: Queue, change: Change) -> None:
        model = self.model(queue.name)
        if model.queue is not queue:
            return
        for fact in facts_of(change):
            self.facts += 1
            try:
                record = model.apply(fact)
            except ImpossibleChange as why:
                kind = Kind.TWICE if fact.verb is Verb.CONFIRM else Kind.DUPLICATED
                raise Violation(kind, f"queue {queue.name} states: {why}") from None
            assert record is not None
            if fact.verb is Verb.ADD and self.clocks is not None:
                self._tell_true_times(model, record, self.clocks)
            if fact.verb is Verb.ADD:
                self.pasts.setdefault((queue.name, record.data), set()).add(record.past)
            if fact.verb is Verb.REMOVE or fact.verb is Verb.OPEN:
                self.left.add((queue.name, record.data))
            self.transcript.append(("fact", queue.name, f"{fact.verb.value} {fact.xid or ''} {shown(record.data)}"))
            self._judge(model, queue, fact, record)

    def passes(self, queue: Queue, item: Item) -> None:
        self.facts += 1
        self.model(queue.name).apply(Fact(Verb.PASS, 0, Record(item.data, item.added_ms, item.expires_ms)))
        self.transcript.append(("fact", queue.name, f"passed over {shown(item.data)}"))

    def _tell_true_times(self, model: QueueModel, record: Record, clocks: Clocks) -> None:
        """Set the true times of a record. A lifetime must last as long as its expiry lies after its put. A date comes
        when the wall clock shows it.
        """
        first = self.first_added.setdefault((model.name, record.data), record)
        passed_ms = clocks.passed_ms
        if first is not record:  # the item returns to its queue with its earlier times
            record.added_ms, record.expires_ms, record.date_ms = first.added_ms, first.expires_ms, first.date_ms
            record.is_doubtful = first.is_doubtful
            return
        if record.expires_ms and is_date(record.expires_ms):
            record.date_ms = record.expires_ms
            record.expires_ms = record.date_ms - clocks.wall_ms + passed_ms
        elif record.expires_ms:
            record.expires_ms = max(1, passed_ms + record.expires_ms - record.added_ms)
        record.added_ms = passed_ms

    def _judge(self, model: QueueModel, queue: Queue, fact: Fact, record: Record) -> None:
        if fact.verb is Verb.ADD:
            self._added(model, record)
        elif fact.verb is Verb.REMOVE:
            excused = self._may_go(queue, model, record)
            self.taken.setdefault(queue.name, []).append(Taken(record, excused))
        elif fact.verb is Verb.OPEN:
            reading = Reading(record, fact.xid, self.now_ms)
            reading.asked_back = queue.name in self.brought
            model.counts[Verb.OPEN] -= reading.asked_back  # no client has asked for it
            self._count_delivery(queue, record)
            model.readings[fact.xid] = reading
            self.opened.setdefault(queue.name, []).append(reading)
        else:
            self._ended(model, queue, fact, model.readings.pop(fact.xid))

    def _count_delivery(self, queue: Queue, record: Record) -> None:
        """Count a delivery. With max_deliveries an item is delivered at most that often, whatever happens to its
        readers and to the server. Where journals are rewritten, the count begins again.
        """
        record.deliveries += 1
        limit = queue.config.max_deliveries
        if self.counts_deliveries and 0 < limit < record.deliveries:
            why = f"{shown(record.data)} of {queue.name} is delivered for the {record.deliveries}th time of {limit}"
            raise Violation(Kind.LIMIT, why)

    def _added(self, model: QueueModel, record: Record) -> None:
        put = self.puts.get(record.data)
        if put is None:
            raise Violation(Kind.INVENTED, f"{shown(record.data)} was added to {model.name}, and was never put")
        expected = put.expected or self.legs(put.request.queue, exactly=True)
        if not put.is_answered and model.name not in put.queues and model.name in expected:
            put.queues.append(model.name)
            put.expected = expected
            return
        if (model.name, record.data) in self.unheard:
            self.unheard.remove((model.name, record.data))
            self.brought.add(model.name)
            model.counts[Verb.ADD] -= 1  # the put has already counted it
            return
        self._moved(model, record)

    def _moved(self, target: QueueModel, copy: Record) -> None:
        """Find the item that `copy`, which was not put, was moved from. It is in a queue that sends to `target`."""
        may_be: Record | None = None
        came_from, best = target, (False, False, False)
        equal: list[Record] = []
        for source in self.models.values():
            source.note_settings()
            if source is target or target.name not in source.targets:
                continue
            sent = {id(reading.record) for reading in source.readings.values() if reading.holder not in self.clients}
            for record in [*source.now.ready, *source.now.open.values()]:
                is_equal = record.data == copy.data and record.moved_to is None
                if not is_equal:
                    continue
                # If several queues have that item, it left the one in which it is open without a client. If one queue
                # has it twice, its past identifies it.
                rank = id(record) in sent, may_be_copy(record, copy), record.past == copy.past
                equal = [*equal, record] if rank == best else [record] if rank > best else equal
                if may_be is None or rank > best or (rank == best and rank[0]):
                    may_be, came_from, best = record, source, rank
        if may_be is None:
            raise Violation(Kind.DUPLICATED, f"{shown(copy.data)} was added to {target.name} once more, from nowhere")
        check_transfer(came_from, target, may_be, copy, self.now_ms)
        may_be.moved_to = Move(target.name, len(target.facts) - 1)
        if len(equal) > 1:
            self.ambiguous.append((may_be, equal))

    def _was_meant(self, record: Record) -> bool:
        """Tell whether a copy may be of `record` although an equal item, which has not left yet, was taken for its
        source; if so, note that. If both are on their way to one queue, this is known only when one of them leaves.
        """
        for taken, others in self.ambiguous:
            if taken.moved_to is not None and any(other is record for other in others):
                record.moved_to, taken.moved_to = taken.moved_to, None
                return True
        return False

    def _may_go(self, queue: Queue, model: QueueModel, record: Record) -> bool:
        """Tell whether the item may be removed without being shown to a client."""
        config = queue.config
        if record.moved_to is not None:
            return True
        if any(request.flushes(queue.name) for client in self.clients for request in client.unanswered):
            return True
        if record.has_expired(config.max_age_ms, self.now_ms):
            model.expired.add(len(model.facts))
            return not config.expire_to_queue
        if any(client.is_leaving and _may_get_item_of(client, queue.name) for client in self.clients):
            return True
        waiting = [*model.now.ready, record]
        full = len(waiting) >= config.max_items or sum(len(item.data) for item in waiting) >= config.max_bytes
        return config.discard_old_when_full and full

    def _ended(self, model: QueueModel, queue: Queue, fact: Fact, reading: Reading) -> None:
        name, record = queue.name, reading.record
        timed_out = self._may_have_timed_out(model, reading)
        holders = [client for client in self.clients if reading.holder in (None, client)]
        if fact.verb is Verb.CONFIRM:
            reading.fate = Fate.CONFIRMED
            self.ambiguous = [pair for pair in self.ambiguous if pair[0] is not record]
            is_asked = any(request.closes(name) for one in holders for request in one.unanswered)
            if record.moved_to is None and not is_asked and not self._was_meant(record):
                raise Violation(Kind.LOST, f"{shown(record.data)} of {name} was confirmed without a request")
            return
        reading.fate = Fate.ABORTED
        model.counts[Verb.ABORT] -= reading.holder is None and name in self.brought  # see where it was opened
        gone = reading.holder is not None and reading.holder not in self.clients
        unanswered = any(one.is_leaving or any(request.aborts(name) for request in one.unanswered) for one in holders)
        # The item moves to a queue that a reload has removed.
        called_off = reading.holder is None and bool(model.targets) and not queue.config.expire_to_queue
        is_kept_out = reading.holder is None and any(map(self._is_full, model.targets))
        if not (gone or unanswered or timed_out or called_off or is_kept_out or reading.asked_back):
            raise Violation(Kind.DUPLICATED, f"{shown(record.data)} went back to {name} without a cause")

    def _is_full(self, name: str) -> bool:
        """Tell whether the target of a move may have no room for the items on their way."""
        queue = self.model(name).queue
        if queue is None:
            return False
        config, ready = queue.config, self.model(name).now.ready
        return len(ready) >= config.max_items or _bytes_of(ready) >= config.max_bytes

    def on_request(self, who: str, request: Request) -> None:
        self.transcript.append(("ask", who, request.shown()))
        request.after_facts = self.facts
        if request.want in PUTS:
            for data in request.items:
                self.puts[data] = Put(request, [])
        if request.want is Want.MOVE:
            self.goes_on(request.queue, request.target)

    def goes_on(self, source: str, target: str) -> None:
        """Note that a move was requested, or that a start continues one that an accident has cut off."""
        self.model(source).targets.add(target)
        self.model(source).moved_to.add(target)

    def on_answer(self, client: CheckedClient, who: str, answer: Answer) -> list[Acknowledgement]:
        """Note a part of a reply. Return what it promises once it has reached the client."""
        self.answers += 1
        request = answer.request
        before = self.ended
        if request.want is Want.MANY and not answer.end.startswith(("CLIENT_ERROR", "SERVER_ERROR")):
            for want, name in request.keys:
                self._end_reading(client, request, want, name)
        for name, data in answer.items:
            self.transcript.append(("answer", who, f"{name}: {shown(data)}"))
            self._shown(client, request, name, data)
        if answer.end:
            self.transcript.append(("answer", who, answer.end))
            self._answered(client, request, answer)
        ended = self.ended - before
        names = self._rests_on(request, answer, ended)
        models = [self.models[name] for name in names if name in self.models]
        return [acknowledgement_of(model) for model in models if request.want is Want.DELETE or model.queue is not None]

    def on_arrival(self, mark: Acknowledgement) -> None:
        acknowledged(mark)

    def _rests_on(self, request: Request, answer: Answer, ended: int) -> list[str]:
        """Return the queues whose last change a reply shows. `ended`: open reads that ended with it."""
        want, end = request.want, answer.end
        if end.startswith(("CLIENT_ERROR", "SERVER_ERROR", "ERROR", "NOT_", "-")):
            return []
        if want in PUTS:
            return sorted(self.legs(request.queue)) if end != "+0" else []
        if want in SHOWS_ITEMS or want in (Want.TEXT_GET, Want.TEXT_PEEK):
            if not answer.items and not ended and request.waits:
                return []  # the wait timed out, perhaps before an item came that is recorded by now
            # A miss of an alias says nothing about the queue that it hides.
            is_of_queue = want is not Want.MANY and (request.queue not in self.aliases or ended > 0)
            return [name for name, _ in answer.items] + ([request.queue] if is_of_queue else [])
        if want is Want.MOVE:
            return [request.queue, request.target] if end != "MOVED 0" else []
        if want is Want.FLUSH_ALL:
            return [name for name in self.models if name not in self.aliases]
        if want in (Want.FLUSH, Want.FLUSH_EXPIRED) or ended or answer.items or (want is Want.DELETE and request.count):
            return [request.queue]
        return []

    def _answered(self, client: CheckedClient, request: Request, answer: Answer) -> None:
        if request.want in PUTS:
            self._check_put(request, answer.end)
        elif request.want in (Want.CONFIRM, Want.TEXT_CONFIRM) and answer.end.startswith(("END", "+")):
            for _ in range(request.count):
                self._end_reading(client, request, Want.CLOSE, request.queue)
        elif request.want in (Want.CLOSE, Want.ABORT, Want.CLOSE_OPEN) and not answer.items:
            self._end_reading(client, request, request.want, request.queue)
        elif request.want in SHOWS_TEXT_ITEMS and not answer.items:
            self._end_all(client, request)

    def _check_put(self, request: Request, end: str) -> None:
        puts = [self.puts[data] for data in request.items]
        for put in puts:
            put.is_answered = True
        if request.want is Want.TEXT_PUT:
            count = int(end[1:]) if end.startswith("+") else 0
            stored = [bool(put.queues) for put in puts]
            if stored != [at < count for at in range(len(puts))]:
                kind = Kind.LOST if count > sum(stored) else Kind.INVENTED
                raise Violation(kind, f"{end} for {request.shown()!r}, and of these were recorded: {stored}")
            return
        for data, put in zip(request.items, puts, strict=True):
            if end == "STORED" and (not put.queues or set(put.queues) != put.expected):
                where, wanted = sorted(put.queues), sorted(put.expected)
                raise Violation(Kind.LOST, f"STORED for {shown(data)}, recorded in {where}, not in {wanted}")
            if end != "STORED" and put.queues:
                raise Violation(Kind.INVENTED, f"{end} for {shown(data)}, and it was recorded in {put.queues}")

    def _shown(self, client: CheckedClient, request: Request, name: str, data: bytes) -> None:
        put = self.puts.get(data)
        if put is not None and put.request.is_over:
            raise Violation(Kind.REDELIVERED, f"{name} gave {shown(data)} away, which had expired when it was put")
        opens = request.want in OPENERS or request.opens
        if request.want is Want.MANY:
            wants = [want for want, key in request.keys if key == name]
            opens = any(want in OPENERS for want in wants)
            if wants == [Want.PEEK]:
                return
        if request.want in (Want.CLOSE_OPEN, Want.TEXT_GET, Want.TEXT_MONITOR):
            self._end_before_open(client, request, name)
        if request.want is Want.TEXT_PEEK:
            self._end_all(client, request)
        if request.want in (Want.PEEK, Want.TEXT_PEEK):
            self._check_peek(name, data)
        elif opens:
            candidates = [reading for reading in self.opened.get(name, ()) if reading.record.data == data]
            if not candidates:
                raise self._not_his(name, data)
            # A reading without a holder was delivered to a client that has left since.
            if len(candidates) > 1 and any(candidate.fate is not Fate.OPEN for candidate in candidates):
                for candidate in candidates:
                    candidate.may_be_anothers = True
            reading = next((candidate for candidate in candidates if not candidate.asked_back), candidates[0])
            self.opened[name].remove(reading)
            reading.holder = client
            client.held.setdefault(name, deque()).append(reading)
        else:
            removed = [taken for taken in self.taken.get(name, ()) if taken.record.data == data]
            if not removed:
                raise self._not_his(name, data)
            # An excused item was removed for a client that has left since.
            self.taken[name].remove(min(removed, key=lambda taken: taken.is_excused))

    def _end_before_open(self, client: CheckedClient, request: Request, name: str) -> None:
        if request.count:  # this is not the first item of the reply
            return
        request.count = 1
        if request.want is Want.CLOSE_OPEN:
            self._end_reading(client, request, Want.CLOSE, name)
        else:
            self._end_all(client, request)

    def _end_all(self, client: CheckedClient, request: Request) -> None:
        if request.want is Want.TEXT_MONITOR and request.count:
            return
        request.count = 1
        while client.held.get(request.queue):
            self._end_reading(client, request, Want.CLOSE, request.queue)

    def _end_reading(self, client: CheckedClient, request: Request, want: Want, name: str) -> None:
        """End the oldest open read, as the reply says."""
        held = client.held.get(name)
        closes = want in CLOSERS
        if not held or (not closes and want is not Want.ABORT):
            return
        reading = held.popleft()
        self.ended += 1
        queue = self.model(name).queue
        if reading.fate is not Fate.OPEN or queue is None:
            if not closes and reading.fate is Fate.CONFIRMED and reading.record.moved_to is None:
                raise Violation(Kind.LOST, f"{shown(reading.record.data)} of {name} was aborted, and confirmed")
            return
        if self._may_have_timed_out(self.model(name), reading) or reading.may_be_anothers:
            reading.asked_back = True
            return
        if closes:
            why = f"{shown(reading.record.data)} of {name} was closed, and no journal was told: it will come again"
            raise Violation(Kind.REDELIVERED, why)
        if not queue.config.retry_delays_ms and reading.record.moved_to is None and not queue.config.max_deliveries:
            raise Violation(Kind.LOST, f"{shown(reading.record.data)} of {name} was aborted, and no journal was told")
        reading.asked_back = True

    def _may_have_timed_out(self, model: QueueModel, reading: Reading) -> bool:
        """Tell whether the open read may have timed out, by any time-out that the queue has had: an item may be delayed
        before it returns.
        """
        model.note_settings()
        return any(self.now_ms >= reading.opened_ms + timeout_ms for timeout_ms in model.timeouts_ms)

    def _check_peek(self, name: str, data: bytes) -> None:
        model = self.model(name)
        known = any(record.data == data for record in model.now.ready)
        if not known and (name, data) not in self.left:
            raise self._not_his(name, data)

    def _not_his(self, name: str, data: bytes) -> Violation:
        """Return the violation for an item that was shown although the queue has not just delivered it."""
        model = self.model(name)
        what = f"{name} gave {shown(data)} away"
        if data not in self.puts:
            return Violation(Kind.INVENTED, f"{what}, and was never put")
        if any(other.record.data == data and other.holder is not None for other in model.readings.values()):
            return Violation(Kind.TWO_HOLDERS, f"{what}, and it is open elsewhere")
        if any(record.data == data for record in model.now.ready):
            head = shown(model.now.ready[0].data)
            return Violation(Kind.ORDER, f"{what}, and recorded something else; the head is {head}")
        return Violation(Kind.REDELIVERED, f"{what}, and it was gone for good")

    def check_turn(self) -> None:
        """Check that all items taken in this turn were shown to a client, or had another cause. A transfer that lands
        after the turn's end delivers its item to a waiting client, whose reply leaves in the next turn.
        """
        if any(client.has_delivery for client in self.clients):
            return
        for name, taken in self.taken.items():
            for delivery in taken:
                if not delivery.is_excused:
                    raise Violation(Kind.LOST, f"{shown(delivery.record.data)} left {name}, and no client got it")
        self.taken.clear()
        self.left.clear()
        for name, opened in self.opened.items():
            self.model(name).note_settings()
            for reading in opened:
                known = reading.asked_back or reading.record.moved_to is not None
                if reading.fate is Fate.OPEN and not known and not self.model(name).targets:
                    raise Violation(Kind.LOST, f"{shown(reading.record.data)} of {name} is open, and no client has it")
        self.opened.clear()
        self.brought.clear()

    def on_leave(self, client: CheckedClient) -> None:
        """Note that a client is about to disconnect. Its latest items return, at once or later, and its postponed
        deletions are carried out.
        """
        self.deleting += [request.queue for request in client.unanswered if request.want is Want.DELETE]
        for name, opened in self.opened.items():
            if _may_get_item_of(client, name):
                for reading in opened:
                    reading.asked_back = True
        for name, taken in self.taken.items():
            if _may_get_item_of(client, name):
                for delivery in taken:
                    delivery.is_excused = True
                    self.unheard.append((name, delivery.record.data))

    def model(self, name: str) -> QueueModel:
        model = self.models.get(name)
        if model is None:
            model = self.models[name] = QueueModel(name, [])
        return model

    def legs(self, name: str, exactly: bool = False) -> set[str]:
        """Return the queues that an item put to `name` goes to. With `exactly`, only the served queues that get the
        item; otherwise also deleted children, and the queues that record that it is not meant for them.
        """
        if name in self.aliases:
            return {leg for target in self.aliases[name] for leg in self.legs(target, exactly)}
        if not exactly and self.model(name).is_reader:
            # The other readers have recorded that the item is not meant for them.
            return {model_name for model_name in self.models if family_of(model_name) == family_of(name)}
        children = {model.name for model in self.models.values() if model.name.startswith(f"{name}+")}
        return {name} | {child for child in children if not exactly or self.models[child].queue is not None}

    def _wants(self, want: Want, name: str) -> list[Request]:
        return [
            request
            for client in self.clients
            for request in client.unanswered
            if request.want is want and request.queue == name
        ]


def _may_get_item_of(client: CheckedClient, name: str) -> bool:
    return any(request.may_get_item_of(name) for request in client.unanswered)


# answers that the model can give by itself: a miss, a peek, statistics

MISSES = frozenset((Want.GET, Want.OPEN, Want.CLOSE_OPEN, Want.PEEK))


def audit(model: QueueModel, answer: Answer, now_ms: int) -> None:
    """Check the whole answer to a request that ran alone and did not wait. Raises Violation."""
    want = answer.request.want
    queue = model.queue
    if queue is None or queue.gets_paused or queue.config.expire_to_queue or queue.in_transfer_bytes or not answer.end:
        # Expired items may have left the line but not yet the journal. A reload may have revoked their target since.
        return
    if want is Want.PUT and answer.end == "NOT_STORED":
        _check_refusal(model, now_ms)
    elif want in MISSES and answer.end == "END" and not answer.items:
        alive = _alive(model, now_ms)
        if alive:
            raise Violation(Kind.LOST, f"{model.name} has nothing to give, and holds {shown(alive[0].data)}")
    elif want is Want.PEEK and len(answer.items) == 1 and answer.end == "END":
        alive = _alive(model, now_ms)
        data = answer.items[0][1]
        is_doubtful = any(record.is_doubtful for record in model.waiting() if record.data == data)
        if not is_doubtful and (not alive or alive[0].data != data):
            head = shown(alive[0].data) if alive else "nothing"
            raise Violation(Kind.ORDER, f"{model.name} shows {shown(data)}, its head is {head}")


def _check_refusal(model: QueueModel, now_ms: int) -> None:
    """Check a refused put: the refusal must not be due to expired items."""
    assert model.queue is not None
    config, ready = model.queue.config, model.now.ready
    alive = [record for record in ready if record.is_doubtful or not record.is_over(now_ms)]
    is_full = len(alive) >= config.max_items or _bytes_of(alive) >= config.max_bytes
    is_one = not (model.queue.had_children or model.is_reader)  # otherwise another queue of the family may have refused
    if is_one and not is_full and not model.queue.line.on_disk:
        why = (
            f"{model.name} refused a put with {len(alive)} live items of {len(ready)}: {config.max_items} may be there"
        )
        raise Violation(Kind.LIMIT, why)


def audit_stats(models: dict[str, QueueModel], answer: Answer, now_ms: int) -> None:
    """Compare the statistics of every queue that sends nothing elsewhere. Raises Violation."""
    said = dict(line.partition(" ")[::2] for line in answer.lines)
    for name, model in models.items():
        if model.queue is None or f"queue_{name}_items" not in said:
            continue
        if model.begun_after_facts > answer.request.after_facts:
            continue  # the reply took several turns, and may show an earlier queue of that name
        for key, number in _expected(model):
            answered = said.get(f"queue_{name}_{key}")
            if answered != str(number):
                raise Violation(Kind.STATISTICS, f"{key} of {name} is {answered}, the model says {number}")
        if not model.targets:
            ready, alive = model.now.ready, [item for item in model.now.ready if not item.is_over(now_ms)]
            _check_within(f"items of {name}", said[f"queue_{name}_items"], len(alive), len(ready))
            _check_within(f"bytes of {name}", said[f"queue_{name}_bytes"], _bytes_of(alive), _bytes_of(ready))


def _bytes_of(records: list[Record]) -> int:
    return sum(len(record.data) for record in records)


def _check_within(what: str, answered: str, least: int, most: int) -> None:
    """Check that a statistic is between two bounds, because expired items may have been swept or not."""
    if not least <= int(answered) <= most:
        raise Violation(Kind.STATISTICS, f"{what} is {answered}, the model says {least} to {most}")


def _expected(model: QueueModel) -> list[tuple[str, int]]:
    """Return the statistics that follow from the changes of a queue: after delays and moves, its items alone."""
    model.note_settings()
    if model.targets or model.had_delay:
        return [("total_items", model.counts[Verb.ADD])]
    counted = [(name, model.counts[Verb(change.__name__.lower())]) for name, change in CHANGES_COUNTED.items()]
    return [*counted, ("open_transactions", len(model.now.open))]


def _alive(model: QueueModel, now_ms: int) -> list[Record]:
    """Return the items that may be delivered."""
    assert model.queue is not None
    max_age_ms = model.queue.config.max_age_ms
    return [
        record
        for record in model.waiting()
        if not (record.is_doubtful or (record.expires_ms and record.expires_ms < now_ms))
        and not (max_age_ms and record.added_ms + max_age_ms < now_ms)
    ]
