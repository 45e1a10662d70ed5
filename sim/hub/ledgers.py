"""Ledgers of the items of a hub, as far as clients and their connections know: of each item, or, if all are alike, of
their number.
"""

from __future__ import annotations

from collections import Counter, deque

from staniel.sim.hub.clients import ITEM, TAKES, Answer, NetClient, Request, Want
from staniel.sim.violations import Kind, Violation

QUEUES = ("a", "b", "c")
OPENS = {Want.OPEN: 1, Want.MONITOR: 3}  # and how many items at most
FREEING = (Want.ERASE, Want.DELETE_UNDOABLY)
PADDING = {1: 0, 2: 200}  # of equal items, by their content, which is the number that an item shows
Counts = Counter[tuple[str, int]]
"""Numbers of items by queue and content."""
Found = dict[str, list[int]]


class Ledger:
    """The known state of every item, as far as clients and their connections know."""

    def __init__(self) -> None:
        self.count = 0
        self.put: dict[int, str] = {}  # every item that a client has asked to put, and its queue
        self.stored: dict[str, set[int]] = {name: set() for name in QUEUES}  # acknowledged, and not known to be removed
        self.shown: set[int] = set()  # items whose bytes a socket of the server has taken
        self.done: set[int] = set()  # items that were read or confirmed, with an answer
        self.freed: set[int] = set()  # items whose queue may have been deleted after their put
        self.doomed: set[str] = set()  # queues that are deleted at an unknown moment
        self.resumed: set[str] = set()  # queues whose deletion goes on since the start: open items go along
        self.loose: Counter[str] = Counter()  # how many may be removed, because requests have no reply
        self.together = {name: frozenset((name,)) for name in QUEUES}  # queues between which items may have been moved

    def asks(self, item: int, queue: str) -> None:
        """Note that a client is about to put `item`."""
        self.put[item] = queue

    def joins(self, source: str, target: str) -> None:
        """Note that a client asked for a move. From now on no reply shows in which of the two queues an item is."""
        both = self.together[source] | self.together[target]
        self.together.update(dict.fromkeys(both, both))

    def hears(self, client: NetClient, answer: Answer) -> None:
        """Note a reply. Raises Violation."""
        request, queue = answer.request, answer.request.queue
        for item in answer.items:
            if self.put.get(item) not in self.together[queue]:
                raise Violation(Kind.INVENTED, f"{client.name} gets #{item}, which was not put to {queue}")
            if item in self.done and not self._has_given_up(client, answer):
                raise Violation(Kind.REDELIVERED, f"{client.name} gets #{item} again")
        if request.want is Want.PUT and answer.end == b"STORED":
            self.stored[queue].add(request.item)
        elif request.want in TAKES:
            self.done.update(answer.items)
        elif request.want in (Want.OPEN, Want.MONITOR):
            client.held.setdefault(queue, deque()).extend(answer.items)
        elif request.want is Want.CONFIRM_ID and answer.end == b"DELETED":
            self.done.add(request.item)
        elif request.want in (Want.CLOSE, Want.ABORT) and answer.end == b"END":
            held = client.held.get(queue)
            if held:
                item = held.popleft()
                if request.want is Want.CLOSE:
                    self.done.add(item)
        elif (request.want is Want.DELETE and answer.end == b"DELETED") or request.want in FREEING:
            self._free(queue)

    def opens(self, request: Request, count: int) -> None:
        """Note that `request` has opened items, as many as `count` or fewer."""
        if request.want in OPENS and request.queue in self.resumed:
            self.loose[request.queue] += count

    def _has_given_up(self, client: NetClient, answer: Answer) -> bool:
        """Tell whether `client` may have lost its open items while the reply was on its way: it has closed its side,
        sent quit, or aborted.
        """
        return answer.request.want in (Want.OPEN, Want.MONITOR) and (bool(client.why_over) or answer.is_aborted)

    def leaves(self, client: NetClient) -> None:
        """Note that this client receives nothing more. The server may have executed its requests without a reply."""
        self.shown.update(int(number) for number in ITEM.findall(client.link.sent))
        for request in client.unanswered:
            self.opens(request, OPENS.get(request.want, 0))
            self.loose[request.queue] += TAKES.get(request.want, 0) + (request.want in (Want.CLOSE, Want.CONFIRM_ID))
            if request.want is Want.DELETE or request.want in FREEING:
                self.doomed.add(request.queue)
        client.unanswered.clear()

    def _free(self, queue: str) -> None:
        """Note that all items put to `queue` so far may be removed, with or without a reply."""
        self.freed.update(item for item, name in self.put.items() if name in self.together[queue])

    def judge(self, content: Found) -> None:
        """Check what a start finds. Raises Violation."""
        for those in sorted(set(self.together.values()), key=sorted):
            queue = " + ".join(sorted(those))
            items = [item for name in sorted(those) for item in content.get(name, [])]
            present = set(items)
            if len(present) != len(items):
                raise Violation(Kind.DUPLICATED, f"{queue} holds {items}")
            if strange := [item for item in items if self.put.get(item) not in those]:
                raise Violation(Kind.INVENTED, f"{queue} holds {strange}")
            if again := sorted(present & self.done):
                raise Violation(Kind.REDELIVERED, f"{queue} holds {again}, which were read or confirmed")
            stored = {item for name in those for item in self.stored[name]}
            gone = stored - present - self.done - self.shown - self.freed
            loose = sum(self.loose[name] for name in those)
            if not (those & self.doomed) and len(gone) > loose:
                raise Violation(Kind.LOST, f"{queue} has lost {sorted(gone)}, {loose} may be")

    def go_on_from(self, content: Found) -> None:
        self.stored = {name: set(content.get(name, ())) for name in QUEUES}
        self.loose.clear()
        self.doomed.clear()


class EqualLedger(Ledger):
    """The least and the greatest number of items of each content, according to what clients were told. The numbers are
    kept by queue, but only the sums over queues between which items may have been moved are checked.
    """

    def __init__(self, queues: tuple[str, ...] = ()) -> None:
        """Begin with no items. `queues`: queues between which items move without a request."""
        super().__init__()
        self.together |= dict.fromkeys(queues, frozenset(queues))
        self.least: Counts = Counter()
        self.most: Counts = Counter()
        self.asked: Counts = Counter()  # puts without a reply so far
        self.unheard: Counts = Counter()  # puts that will never have a reply
        self.late: Counts = Counter()  # puts that may have come before a deletion, and so do not count

    def asks(self, item: int, queue: str) -> None:
        self.asked[queue, item] += 1

    def hears(self, client: NetClient, answer: Answer) -> None:
        request, queue = answer.request, answer.request.queue
        if strange := [item for item in answer.items if item not in PADDING]:
            raise Violation(Kind.INVENTED, f"{client.name} gets {strange}, which were never put")
        if request.want is Want.PUT:
            self._put((queue, request.item), is_stored=answer.end == b"STORED")
        elif request.want in TAKES:
            self._subtract_items(queue, answer.items)
        elif request.want in (Want.OPEN, Want.MONITOR):
            client.held.setdefault(queue, deque()).extend(answer.items)
        elif request.want is Want.CONFIRM_ID and answer.end == b"DELETED":
            self._subtract_items(queue, [request.item])
        elif request.want in (Want.CLOSE, Want.ABORT) and answer.end == b"END" and client.held.get(queue):
            item = client.held[queue].popleft()
            if request.want is Want.CLOSE:
                self._subtract_items(queue, [item])
        elif (request.want is Want.DELETE and answer.end == b"DELETED") or request.want in FREEING:
            self._free(queue)

    def _put(self, which: tuple[str, int], *, is_stored: bool) -> None:
        self.asked[which] -= 1
        if not is_stored:
            return
        self.most[which] += 1
        if self.late[which]:
            self.late[which] -= 1
        else:
            self.least[which] += 1

    def _subtract_items(self, queue: str, items: list[int]) -> None:
        which = [(queue, item) for item in items]
        self.least.subtract(which)
        self.most.subtract(which)

    def _free(self, queue: str) -> None:
        for which in [(name, item) for name in self.together[queue] for item in PADDING]:
            self.least[which] = 0
            self.late[which] = max(0, self.asked[which])

    def leaves(self, client: NetClient) -> None:
        self.unheard.update((request.queue, request.item) for request in client.unanswered if request.want is Want.PUT)
        super().leaves(client)

    def judge(self, content: Found) -> None:
        for those in sorted(set(self.together.values()), key=sorted):
            counts = Counter(item for name in those for item in content.get(name, []))
            missing = 0
            for item in PADDING:
                most = sum(self.most[name, item] + self.unheard[name, item] for name in those)
                if counts[item] > most:
                    raise Violation(Kind.DUPLICATED, f"{counts[item]} items like #{item}#, {most} may be: {content}")
                missing += max(0, sum(self.least[name, item] for name in those) - counts[item])
            loose = sum(self.loose[name] for name in those)
            if missing > loose and not (those & self.doomed):
                raise Violation(Kind.LOST, f"{dict(self.least)} must be there, {loose} may be gone: {content}")

    def go_on_from(self, content: Found) -> None:
        counted = Counter((name, item) for name, items in content.items() for item in items)
        self.least, self.most = counted.copy(), counted.copy()
        for counts in (self.asked, self.unheard, self.late):
            counts.clear()
        self.loose.clear()
        self.doomed.clear()
