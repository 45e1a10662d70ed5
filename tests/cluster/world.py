"""A simulated world: three machines, an etcd, a network, and a seeded choice of what happens next."""

from __future__ import annotations

from collections import Counter, deque
from random import Random
from typing import NamedTuple

from msgspec import Struct

from staniel.cluster.core import MemberConfig, Policy
from staniel.cluster.durable import Appended, Fitness, Joined, Promised, encode_entry
from staniel.cluster.effects import ReadKey, Reason, Transact
from staniel.cluster.key import Key
from staniel.cluster.messages import GREETING, Message, MessageDecoder, encode_message
from staniel.cluster.places import Place
from staniel.cluster.stream import Record, RecordKind
from tests.cluster.etcd import Etcd, Reply, Request
from tests.cluster.judge import Judge
from tests.cluster.node import Node
from tests.cluster.timed import Leases

CLUSTER = b"c" * 16
FOREIGN = b"f" * 16
NODES = 3


class Profile(NamedTuple):
    """Accidents of a history, each with the weight of its drawing."""

    steps: int = 350
    kills: int = 3
    power_cuts: int = 3
    disks: int = 1
    stands: int = 6
    handovers: int = 2
    take_outs: int = 5
    drops: int = 4
    partitions: int = 4
    heals: int = 4
    watches: int = 15
    trims: int = 3
    writes: int = 30
    lazy: int = 30  # percent of the seeds
    foreign: bool = False
    restores: int = 0
    copies: int = 0
    lost_keys: int = 0
    lost_requests: int = 2
    rewrites: int = 0  # of members' files
    rots: int = 0  # of bytes in them
    fulls: int = 0  # disks that get full, or free again
    failed_syncs: int = 0
    etcd_restarts: int = 0
    hangs: int = 0  # disks that hang, or go on
    ticks: int = 0  # steps of the time: members stand, and take others out, by their clocks alone
    min_in_sync: int = 0  # 0: drawn
    prelude: str = ""  # a story that comes before the accidents
    set_up: int = 85  # percent of the seeds that begin with a cluster that stands


class Connection(Struct):
    """A connection between two members: what is on its way, by direction. 0 is the follower's side."""

    nodes: tuple[int, int]
    lives: tuple[int, int]
    queues: tuple[deque[bytes], deque[bytes]]
    decoders: tuple[MessageDecoder, MessageDecoder]
    closed: list[bool]


class World:
    """All of it. `log`: what happened, for the reader of a failing seed."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.random = random = Random(seed)
        self.profile = profile
        self.etcd = Etcd()
        self.judge = Judge(self)
        self.connections: dict[int, Connection] = {}
        self.connects: list[tuple[int, int, bytes]] = []
        self.blocked: set[tuple[int, int]] = set()
        self.etcd_blocked: set[int] = set()
        self.hung_disks: set[int] = set()  # on which no sync ends
        self.numbers = 0
        self.ids = 0
        self.log: list[str] = []
        self.foreign: dict[int, bytes] = {}
        self.has_lost_copies = False  # a disk was replaced, or a power cut took what the policy allows
        self.counts: Counter[str] = Counter()
        self.had_items = random.random() < 0.5
        policy = Policy.LAZY if random.randrange(100) < profile.lazy else Policy.ALWAYS
        min_in_sync = random.choice([1, 1, 2, 2, 2 if profile.foreign else 3])
        min_in_sync = profile.min_in_sync or min_in_sync
        self.nodes = [
            Node(self, name, self.new_id(), MemberConfig(f"node-{name}:22133", min_in_sync, policy))
            for name in range(NODES)
        ]
        self.leases = Leases(random, NODES) if profile.ticks else None
        self.old_disks: list[tuple[int, bytes, dict[int, Record]]] = []
        if self.had_items:
            self.nodes[0].give_items({1: Record(Place(0, 1), RecordKind.PUT, b"items")})
        if profile.restores or profile.lost_keys:
            self.judge.expected_stops = {name: {Reason.KEY_WENT_BACK, Reason.NO_KEY} for name in range(NODES)}
        if profile.foreign:
            self.make_foreign(self.nodes[2])

    def make_foreign(self, node: Node) -> None:
        """Give a machine the disk of another cluster's member, and the prefix of this one in etcd."""
        self.foreign[node.name] = FOREIGN
        self.judge.expected_stops[node.name] = {Reason.OTHER_CLUSTER}
        for entry in (
            Joined(FOREIGN, 0), Promised(1), Appended(1, 1, RecordKind.EPOCH, node.id),
            Appended(1, 2, RecordKind.PUT, b"foreign"),
        ):  # fmt: skip
            node.disk += encode_entry(entry)
        node.set_synced(len(node.disk))
        node.kept = node.read(bytes(node.disk))

    def new_id(self) -> bytes:
        """Return the id of a new spool."""
        self.ids += 1
        return b"%016d" % self.ids

    def next_number(self) -> int:
        """Return a number that no data has had."""
        self.numbers += 1
        return self.numbers

    def node_of(self, member_id: bytes) -> Node | None:
        """Return the machine with this id."""
        return next((node for node in self.nodes if node.id == member_id), None)

    # --- network ---

    def send(self, node: Node, connection: int, message: Message) -> None:
        """Put a message on its way."""
        link = self.connections.get(connection)
        if link is not None:
            side = link.nodes.index(node.name)
            if not link.closed[side]:
                link.queues[side].append(encode_message(message))

    def close(self, node: Node, connection: int) -> None:
        """Close a connection on one side. The other side learns of it later."""
        link = self.connections.get(connection)
        if link is not None:
            side = link.nodes.index(node.name)
            link.closed[side] = True
            link.queues[1 - side].clear()
            if all(link.closed):
                del self.connections[connection]

    def lose_connections(self, node: Node) -> None:
        """Note that a process has ended: its side of each connection is closed."""
        for number, link in list(self.connections.items()):
            if node.name in link.nodes:
                self.close(node, number)

    def ask(self, node: Node, effect: ReadKey | Transact) -> None:
        """Put a question on its way to etcd."""
        self.etcd.requests.append(Request(node.name, node.life, effect))

    def open_connection(self, at: int) -> None:
        """Let a connection come about, or not."""
        name, life, leader_id = self.connects.pop(at)
        node, leader = self.nodes[name], self.node_of(leader_id)
        if node.member is None or node.life != life or leader is None or leader is node:
            return
        if node.timers is not None and (key := node.member.core.key) is not None:
            node.timers.supervision.note_connect(key, is_refused=leader.member is None)
        if leader.member is None:
            return
        if {(name, leader.name), (leader.name, name)} & self.blocked:
            return
        number = self.next_number()
        self.connections[number] = Connection(
            (name, leader.name), (node.life, leader.life), (deque([GREETING]), deque([GREETING])),
            (MessageDecoder(), MessageDecoder()), [False, False],
        )  # fmt: skip
        node.member.connected(number)
        node.carry_out()

    def deliver(self, number: int, side: int) -> None:
        """Deliver the oldest bytes from one side to the other, or that the side is closed."""
        link = self.connections[number]
        other = 1 - side
        node = self.nodes[link.nodes[other]]
        if link.queues[side]:
            data = link.queues[side].popleft()
            cut = self.random.randrange(len(data) + 1) if self.random.random() < 0.1 else len(data)
            messages = link.decoders[other].feed(data[:cut]) + link.decoders[other].feed(data[cut:])
            assert not link.decoders[other].failure, link.decoders[other].failure
            for message in messages:
                if node.member is None:
                    return
                self.log.append(f"  {link.nodes[side]} to {node.name}: {message.epoch} {message.body}")
                node.member.received(number, message)
                node.carry_out()
        elif link.closed[side]:
            self.close(node, number)
            if node.member is not None:
                node.member.disconnected(number)
                node.carry_out()

    def is_deliverable(self, number: int, side: int) -> bool:
        """Tell whether something can come from a side of a connection."""
        link = self.connections[number]
        if link.closed[1 - side] or (link.nodes[side], link.nodes[1 - side]) in self.blocked:
            return False
        return bool(link.queues[side]) or link.closed[side]

    # --- etcd ---

    def handle_request(self, at: int) -> None:
        """Let a question arrive."""
        request = self.etcd.requests.pop(at)
        self.etcd.handle(request)
        self.log.append(f"  etcd: {self.etcd.mod_revision} {self.etcd.key}")

    def deliver_reply(self, at: int) -> None:
        """Let an answer of etcd come back."""
        reply = self.etcd.replies.pop(at)
        node = self.nodes[reply.node]
        if node.member is None or node.life != reply.life:
            return
        self.log.append(f"  etcd to {node.name}: {reply.taken} {reply.revision}")
        self.give_reply(node, reply)
        node.carry_out()

    def give_reply(self, node: Node, reply: Reply) -> None:
        """Hand an answer over."""
        assert node.member is not None
        if reply.taken is None:
            node.member.key_read(reply.ask, reply.key, reply.revision)
        elif reply.taken:
            node.member.transaction_taken(reply.ask, reply.revision)
        else:
            node.member.transaction_refused(reply.ask, reply.key, reply.revision)

    def tick(self) -> None:
        """Let time pass."""
        assert self.leases is not None
        self.leases.step()
        for node in self.nodes:
            if node.member is not None and node.timers is not None and not node.is_stopped:
                node.timers.look_after()

    def restart_etcd(self) -> None:
        """Cut etcd's power. Of the requests that have arrived each was taken, or was not."""
        for request in list(self.etcd.requests):
            if self.random.random() < 0.5:
                self.etcd.handle(request)
        self.etcd.restart()

    def give_up_ask(self, node: Node) -> None:
        """Let a question time out: its answer never comes, it itself may arrive later."""
        assert node.member is not None
        ask = node.member.core.asking
        if ask is not None:
            node.member.ask_unanswered(ask.number)
            node.carry_out()

    def deliver_watch(self, node: Node) -> None:
        """Let the oldest event of a watch come."""
        key, revision = self.etcd.watches[node.name].pop(0)
        if node.member is not None:
            node.member.key_watched(key, revision)
            node.carry_out()

    # --- lives ---

    def may_start(self, node: Node) -> bool:
        """Tell whether a process can be started: one of another cluster is, where this one's key is found."""
        return (
            node.member is None and not node.is_stopped and (node.name not in self.foreign or self.etcd.key is not None)
        )

    def start(self, node: Node) -> None:
        """Start a machine's process."""
        self.etcd.watches[node.name] = []
        node.start()

    def replace_disk(self, node: Node) -> None:
        """Give a machine an empty disk, and so another id."""
        self.has_lost_copies = True
        node.replace_disk(self.new_id())

    def is_last_copy(self, node: Node) -> bool:
        """Tell whether the set, or one that etcd is about to take, has no other machine that is whole: then the disk
        must not be lost.
        """
        keys = self.proposed_keys() + [key for key in (self.etcd.key,) if key is not None]
        return any(node.id in key.members and not self.has_whole(set(key.members) - {node.id}) for key in keys)

    def proposed_keys(self) -> list[Key]:
        """Return the keys that etcd may yet take."""
        return [request.effect.key for request in self.etcd.requests if isinstance(request.effect, Transact)]

    def is_proposed(self, node: Node) -> bool:
        """Tell whether a set that etcd may yet take has this machine."""
        return any(node.id in key.members for key in self.proposed_keys())

    def has_older_words(self, node: Node) -> bool:
        """Tell whether another member may still hear what this machine said before its disk rotted."""
        links = [link for link in self.connections.values() if node.name in link.nodes]
        return any(link.lives[link.nodes.index(node.name)] <= node.rotted_life for link in links)

    def has_whole(self, members: set[bytes]) -> bool:
        """Tell whether one of these ids is of a machine that is whole."""
        nodes = [node for node in self.nodes if node.id in members]
        return any(node.durable.fitness is Fitness.WHOLE and not node.was_cut_off for node in nodes)

    def stand(self, node: Node) -> None:
        """Let a member stand for election, as an operator or the end of a lease has it."""
        if node.member is None:
            return
        key = node.member.core.key
        if node.kept.fitness is Fitness.SHORT and key is not None and key.members == (node.id,):
            # Here, too: it may be killed before the end of the mark is written.
            node.may_lose = node.config.policy is Policy.LAZY
        node.member.stand()
        node.carry_out()
