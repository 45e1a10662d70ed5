"""The judge: what must hold after every step, told from the disks and from what clients were told, not from members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.cluster.durable import Fitness
from staniel.cluster.effects import Answer, Reason
from staniel.cluster.messages import Message
from staniel.cluster.places import Place
from staniel.cluster.stream import Record, RecordKind, Stream

if TYPE_CHECKING:
    from tests.cluster.node import Held, Node
    from tests.cluster.world import World


class ViolationFound(Exception):
    """A promise that was broken: its kind, and what happened."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind


def epochs_of(stream: Stream) -> list[int]:
    """Return the epoch of each record of a stream, from the first: 0 for what was there before there was a cluster."""
    epochs, last = list[int](), stream.last.number
    for run in reversed(stream.runs):
        if run.first <= last:
            epochs[:0] = [run.epoch] * (last + 1 - run.first)
            last = run.first - 1
    return [0] * last + epochs


class Judge:
    """The history as clients know it. `answered`: by number, from 1, the epoch of each record that was answered; 0 is
    what the first spool had before. `contents`: what is at each place, by the first member that had it.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.answered: list[int] = []
        self.contents: dict[Place, tuple[RecordKind, bytes]] = {}
        self.by_epoch: dict[int, int] = {}
        self.lost: dict[int, set[int]] = {}  # by number, epochs whose leaders' files lacked the record, as is allowed
        self.puts_answered = 0
        self.expected_stops: dict[int, set[Reason]] = {}
        self.unreachable_leads = 0

    def fail(self, kind: str, why: str) -> None:
        raise ViolationFound(kind, why)

    # --- as it happens ---

    def on_record(self, node: Node, record: Record) -> None:
        """Hold equal places against each other."""
        if node.name in self.world.foreign:
            return
        content = record.kind, record.data
        if self.contents.setdefault(record.place, content) != content:
            self.fail(
                "DIVERGED", f"{record.place} is {content} on {node.name} and {self.contents[record.place]} elsewhere"
            )

    def on_send(self, node: Node, message: Message) -> None:
        """Refuse an epoch that is acted on before it is synced."""
        if message.epoch > node.durable.promised:
            self.fail("PROMISE", f"node {node.name} speaks of epoch {message.epoch} before it is synced")

    def on_stop(self, node: Node, reason: Reason) -> None:
        """Refuse a member that stops without cause."""
        if reason not in self.expected_stops.get(node.name, set()):
            self.fail("STOPPED", f"node {node.name}: {reason.value}")

    def allow_loss(self, node: Node, missing: set[int]) -> None:
        """Allow a loss that the policy allows: the last member of the set has lost what was not synced."""
        if node.may_lose:
            node.may_lose = False
            number = min([number for number in (self.lacks(node.kept.stream), *missing) if number], default=0)
            if number:
                del self.answered[number - 1 :]

    def on_recovered(self, node: Node, upto: int) -> None:
        """Look at the files with which a member is about to lead."""
        missing = {at for at in range(1, upto + 1) if at not in node.files and not self.is_lost(node, at)}
        self.allow_loss(node, missing)
        number = min([number for number in missing if number <= len(self.answered)], default=0)
        if number:
            self.fail("LOST", f"node {node.name} leads with files that lack answered record {number}")
        for number in missing:
            self.lost.setdefault(number, set()).add(node.kept.promised)

    def is_lost(self, node: Node, number: int) -> bool:
        """Tell whether a record was lost by a leader whose records this member has."""
        return any(run.epoch in self.lost.get(number, ()) for run in node.kept.stream.runs)

    def lacks(self, stream: Stream, upto: int | None = None) -> int:
        """Return the number of the first answered record, up to this one, that a stream does not have, or 0."""
        answered, epochs = self.answered[:upto], epochs_of(stream)
        if epochs[: len(answered)] == answered:
            return 0
        both = zip(answered, epochs, strict=False)
        return next((at for at, (one, other) in enumerate(both, 1) if one != other), len(epochs) + 1)

    def on_answer(self, node: Node, answer: Answer, leaving: list[Held]) -> None:
        """Take in what clients are told."""
        self.allow_loss(node, set())
        stream = node.kept.stream
        first = self.by_epoch.setdefault(answer.epoch, node.name)
        if first != node.name:
            self.fail("SPLIT", f"nodes {first} and {node.name} answer in epoch {answer.epoch}")
        if number := self.lacks(stream, answer.upto):
            self.fail("LOST", f"node {node.name} answers up to {answer.upto}, and its {number} is another record")
        old = len(self.answered)
        for number in range(old + 1, answer.upto + 1):
            self.answered.append(stream.epoch_of(number))
        for held in leaving:
            self.on_reply(node, held, old)

    def on_reply(self, node: Node, held: Held, old: int) -> None:
        """Judge a reply that leaves. `old`: how much was answered before it."""
        stream = node.kept.stream
        if held.data:
            if (
                self.contents.get(held.place) != (held.kind, held.data)
                or stream.epoch_of(held.place.number) != held.place.epoch
            ):
                self.fail("LOST", f"node {node.name} says yes for {held.place}, which is another record")
            if held.kind is RecordKind.PUT:
                self.puts_answered += 1
                if held.place.number > old:
                    self._judge_copies(node, held)
        elif number := self.lacks(stream, held.seen):
            self.fail("STALE", f"node {node.name} shows a client a queue without record {number}")

    def _judge_copies(self, node: Node, held: Held) -> None:
        if self.world.has_lost_copies:
            return
        count = 0
        for other in self.world.nodes:
            stream = (other.kept if other is node and node.is_behind else other.durable).stream
            count += stream.epoch_of(held.place.number) == held.place.epoch
        if count < node.config.min_in_sync:
            self.fail("THIN", f"a put is answered with {count} copies, min_in_sync is {node.config.min_in_sync}")

    # --- after each step ---

    def check(self) -> None:
        """Check what must hold at any moment."""
        newest = max(self.by_epoch, default=0)
        key = self.world.etcd.key
        for node in self.world.nodes:
            if node.name in self.world.foreign:
                self._check_foreign(node)
                continue
            if node.has_changed:
                node.has_changed = False
                self._check_files(node)
            leader = node.member.leader if node.member is not None else None
            if leader is not None and leader.first and leader.epoch >= newest and not node.may_lose:
                number = self.lacks(node.kept.stream)
                if number:
                    self.fail("LOST", f"node {node.name} leads epoch {leader.epoch} without answered record {number}")
            if key is not None and node.id in key.members:
                self._check_truth(node)
            elif node.has_rotted and self.world.has_older_words(node):
                node.rotted_at = self.world.etcd.mod_revision  # they may make a leader propose it
            elif self.world.etcd.mod_revision > node.rotted_at or not self.world.is_proposed(node):
                node.has_rotted = False  # it is out of the set, and no older proposal can take it in
            if node.kept.promised < node.sent_epoch:
                self.fail("PROMISE", f"node {node.name} has promised {node.sent_epoch} and now {node.kept.promised}")

    def _check_truth(self, node: Node) -> None:
        """Check that a member of the set has all that is answered: synced, unless it leads and its policy says less."""
        kept = node.kept if node.is_behind else node.durable
        if node.has_rotted and kept.fitness is Fitness.HALF:
            return  # it knows that it lacks something, and says so when it is asked
        if kept.fitness is Fitness.HALF:
            self.fail("TRUTH", f"the set in etcd has node {node.name}, whose files are half copied")
        is_short = node.was_cut_off or kept.fitness is not Fitness.WHOLE
        if (node.is_behind and is_short) or node.may_lose:
            return
        number = self.lacks(kept.stream)
        if number:
            self.fail("TRUTH", f"the set in etcd has node {node.name}, which lacks answered record {number}")

    def _check_files(self, node: Node) -> None:
        """Check that files which are said to be whole have what their records say."""
        if node.kept.fitness is not Fitness.WHOLE or node.member is None or not node.kept.cluster_id:
            return
        if node.is_behind and (node.member.leader is None or not node.member.leader.first):
            return  # it has led with these files, which no record is compared with any more
        stream = node.kept.stream
        epochs, contents = epochs_of(stream), self.contents
        for number, record in node.files.items():
            place, kind, data = record
            if (
                number > len(epochs)
                or place != (epochs[number - 1], number)
                or contents.get(place, (kind, data)) != (kind, data)
            ):
                self.fail("DIVERGED", f"the files of node {node.name} have {record} where its records have other ones")
        upto = max(stream.base.number, max(node.files, default=0))
        for number in range(1, upto + 1) if self.lost or len(node.files) != upto else ():
            is_there, is_lost = number in node.files, self.is_lost(node, number)
            if not is_there and not is_lost:
                self.fail("DIVERGED", f"the files of node {node.name} lack record {number}")
            if is_there and is_lost:
                self.fail("DIVERGED", f"the files of node {node.name} have record {number}, which its leader has lost")

    def _check_foreign(self, node: Node) -> None:
        if node.kept.cluster_id != self.world.foreign[node.name]:
            self.fail("FOREIGN", f"node {node.name} has left its cluster")
        if node.kept.stream.last != node.durable.stream.last or node.kept.stream.last.number != 2:
            self.fail("FOREIGN", f"the queues of node {node.name}, of another cluster, are overwritten")
