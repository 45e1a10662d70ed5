"""The driver of a member: it calls the member's inputs and carries out its effects, in order.

Each input is followed by `carry_out`. What takes time is done elsewhere and comes back as another input: syncs in a
thread, etcd in tasks, the recovery of a leader in `leading`. All decisions are the member's (cluster/member.py).
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

import trio
from msgspec import Struct, structs

from staniel.broker.events import EventSink, Level
from staniel.cluster.compare import Sums
from staniel.cluster.core import MemberConfig, Policy
from staniel.cluster.durable import Copied, Fitness, Marked
from staniel.cluster.effects import (
    Answer,
    Apply,
    Close,
    CloseClients,
    Closing,
    Connect,
    Effect,
    MoveTail,
    Persist,
    ReadKey,
    ReadPiece,
    Recover,
    Send,
    ServeClients,
    Stop,
    SumFiles,
    Sync,
    TakeSums,
    Transact,
    WritePiece,
)
from staniel.cluster.key import Key
from staniel.cluster.member import Member
from staniel.cluster.messages import Message
from staniel.cluster.places import Place
from staniel.cluster.recording_fs import ChangeRecorder, RecordingFs
from staniel.cluster.spool_changes import encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import RecordKind
from staniel.journal.disk.fs import Fs, is_there
from staniel.server.cluster.copies import Copies
from staniel.server.cluster.copying import PREFIX, CopySource, clear_held
from staniel.server.cluster.gate import Gate
from staniel.server.cluster.links import Links
from staniel.server.cluster.member_file import MemberFile, is_ahead
from staniel.server.cluster.member_spool import UNFIT, MemberSpool
from staniel.server.cluster.reactor import Reactor
from staniel.server.cluster.spool_thread import WAITING_BYTES_MAX, SpoolThread

P = ParamSpec("P")
COPIED = "the leader's files will be copied"
LOST_POWER = "the power was cut while this member led and its replies did not wait for its own disk"
FOLLOWS_FIRST = "another member leads, and its files are copied; alone in the set, this member leads with what it has"
KEPT_BYTES_MAX = 64 << 20
KEPT_RECORDS_MAX = 200_000
"""Records that are kept in memory and in the member's file, for followers that return."""
UNACKNOWLEDGED_BYTES_MAX = 1 << 30
UNACKNOWLEDGED_RECORDS_MAX = 4_000_000
"""Records that are kept at most for a follower that has not acknowledged them. Then it is disconnected."""


class MustBeginAnew(Exception):
    """The end of this process's part: it must begin anew, from what is on the disk."""


class DiskIsFull(MustBeginAnew):
    """The end of a member that does not lead, whose disk has no room for what it was sent. It comes back once there is
    room (room.py).
    """


class MemberStopped(Exception):
    """The end of a member that must not go on. An operator must look; the text says why."""


class Outside(Struct):
    """The process around the driver, as far as it is asked for something. Each call returns at once."""

    ask_etcd: Callable[[ReadKey | Transact], None]
    connect: Callable[[bytes], None]
    recover: Callable[[int], None]
    serve: Callable[[], None]
    close_clients: Callable[[], None]


class Driver:
    """The driver. `outside` is set before `start`. `recorder` has the changes of a leader's files."""

    def __init__(
        self, config: MemberConfig, fs: Fs, paths: SpoolPaths, reactor: Reactor, timeout_ms: int, report: EventSink
    ) -> None:
        """Open the member's files. Raises OSError, JournalFailure, SpoolError."""
        self._fs = fs
        self._paths = paths
        self._report = report
        self.reactor = reactor
        clear_held(fs, paths)
        self.file = MemberFile(fs, paths.own)
        self.kept = kept = self.file.kept
        if self.file.damage:
            self._report(Level.WARNING, "cluster.unfit", why=self.file.damage, hint=COPIED)
        self.spool = MemberSpool(fs, paths, kept)
        has_items = not kept.cluster_id and self.spool.has_items
        try:
            self.spool.open()
        except UNFIT as why:
            self.mark_unfit(str(why))
        is_short = is_there(fs, f"{paths.own}/failed_sync")
        if kept.has_lost_power(boot_id := fs.boot_id()):
            report(Level.WARNING, "cluster.unfit", why=LOST_POWER, hint=FOLLOWS_FIRST)
        self.member = Member(
            config, kept, has_items=has_items, is_short=is_short, is_ahead=is_ahead(kept), boot_id=boot_id
        )
        self.recorder = ChangeRecorder(threading.Lock())
        self.recording_fs = RecordingFs(fs, paths, self.recorder)
        self.links = Links(reactor, timeout_ms, self.received, self.lost, self._on_drained)
        self.gate = Gate(reactor, lambda: self.member.core.last, self._ask_round, self.take_changes)
        self.outside: Outside | None = None
        self.record_kind: Callable[[], RecordKind] = lambda: RecordKind.CHANGE
        self.files = SpoolThread(self.spool, kept)
        self.copies = Copies(self._hold_files, self.links.unsent_bytes, self._on_piece, self.drop_link)
        self._late_sync = 0
        """The number of the last sync that waits for a copy."""
        self._paused: int | None = None
        """The connection that is not read from, because the files take no more."""
        self._all_answered = trio.Event()
        self._is_carrying_out = self._has_ended = False
        self._written: deque[tuple[int, int, float]] = deque()
        reactor.dispatcher.watch(self.file.fd, select.EPOLLIN, self._on_synced)
        reactor.dispatcher.watch(self.files.fd, select.EPOLLIN, self._on_files_ready)
        reactor.dispatcher.watch(self.copies.fd, select.EPOLLIN, self.copies.on_ready)

    def close_files(self) -> None:
        """Leave a follower's files synced, once what has begun has ended. Raises OSError, JournalFailure."""
        try:
            self.files.close()
        except UNFIT as why:
            self.mark_unfit(str(why))

    def close(self) -> None:
        """Close everything, once what has begun has ended."""
        self.links.close_all()
        self.close_files()
        self.copies.close()
        self.file.close()

    def start(self) -> None:
        """Begin."""
        self.member.start()
        self.carry_out()

    def use_policy(self, policy: Policy) -> None:
        """Use the policy of a configuration that was just read, once this member leads anew. Until then a leader waits
        for its own file as before; its files of queues may be behind from now on.
        """
        core = self.member.core
        if self.member.leader is None:
            core.config = structs.replace(core.config, policy=policy)
        elif policy is Policy.LAZY:
            core.note_unsynced()  # in its file before each record that follows, so synced before their replies leave

    def mark_unfit(self, why: str) -> None:
        """Mark the spool as one that must be copied anew, durably."""
        self._report(Level.WARNING, "cluster.unfit", why=why, hint=COPIED)
        self.kept.apply(Marked(Fitness.HALF))
        self.file.write([Marked(Fitness.HALF)])
        self.file.sync_now()

    # --- effects ---

    def carry_out(self) -> None:
        """Carry out all effects. Raises MustBeginAnew, MemberStopped, OSError, JournalFailure."""
        if self._is_carrying_out or self._has_ended:
            return  # an input within an effect: its effects come behind this one
        self._is_carrying_out = self._has_ended = True
        while effects := self.member.take_effects():
            for effect in effects:
                self._carry_out_one(effect)
        self._is_carrying_out = self._has_ended = False  # an error ends it: no effect behind it may be carried out

    def _carry_out_one(self, effect: Effect) -> None:
        assert self.outside is not None
        match effect:
            case Persist(entries):
                self.file.write(entries)
                if any(isinstance(entry, Copied) for entry in entries):
                    self.files.begin_copy()
            case Sync(number):
                self._sync(number)
            case Send(connection, message):
                self.links.send(connection, message)
            case Connect(leader_id):
                self.outside.connect(leader_id)
            case Close(connection, why):
                self._close(connection, why)
            case ReadKey() | Transact():
                self.outside.ask_etcd(effect)
            case Recover(upto):
                self.outside.recover(upto)
            case ServeClients():
                self.outside.serve()
            case CloseClients():
                self.outside.close_clients()
                raise MustBeginAnew  # in whatever state it led: what it did to its files has no place in the stream
            case Answer(_, upto):
                self.gate.release(upto)
                if upto >= self.member.core.last:
                    self._all_answered.set()
            case Apply() | WritePiece() | MoveTail() | SumFiles():
                self._work_on_files(effect)
            case TakeSums(connection, data):
                if not self.copies.take_sums(connection, data):
                    self.drop_link(connection, "what it says of its files cannot be read")
            case ReadPiece(connection, piece):
                self.copies.ask_piece(connection, piece)
            case Stop(reason):
                raise MemberStopped(reason.value)

    def _sync(self, number: int) -> None:
        """Sync the member's file, once a copy's bytes that came before are durable: the sync is about them, too."""
        if self.files.is_copying:
            self._late_sync = number
        else:
            self._late_sync = 0
            self.file.want_sync(number)

    def _work_on_files(self, effect: Apply | WritePiece | MoveTail | SumFiles) -> None:
        match effect:
            case Apply(upto):
                self.files.apply(upto)
            case WritePiece(data):
                self.files.write_piece(data)
            case MoveTail(behind):
                self.spool.keep_tail(behind)
            case SumFiles(connection, piece):
                self.files.sum_files(is_first=not piece, then=partial(self._on_summed, connection, piece))
        self._pause_leader()

    def _pause_leader(self) -> None:
        """Read from the leader no faster than its records and pieces can be written."""
        follower = self.member.follower
        if self._paused is None and follower is not None and self.files.waiting_bytes > WAITING_BYTES_MAX:
            self._paused = follower.connection
        elif self._paused is not None and self.files.waiting_bytes <= WAITING_BYTES_MAX // 2:
            self.links.pause(self._paused, is_paused=False)
            self._paused = None
        if self._paused is not None:
            self.links.pause(self._paused, is_paused=True)

    def _close(self, connection: int, why: Closing) -> None:
        self._report(Level.DEBUG, "cluster.link_closed", connection=connection, why=why.value)
        self.links.close(connection)
        self.copies.forget(connection)

    # --- inputs ---

    def connected(self, sock: socket.socket) -> int:
        """Take over a new connection to the leader, and greet it. Return its number."""
        number = self.links.add(sock)
        self.member.connected(number)
        if not self.links.has(number):  # the peer has reset it already, and the member was told before it knew it
            self.member.disconnected(number)
        self.carry_out()
        return number

    def connect_now(self) -> None:
        """Connect to the leader, if this member has no connection to it: where it listens may be known by now."""
        follower = self.member.follower
        if follower is not None and follower.connection is None:
            follower.connect()
            self.carry_out()

    def drop_link(self, connection: int, why: str) -> None:
        """End a connection by this member's own decision."""
        self.links.close(connection)
        self.lost(connection, why)

    def received(self, connection: int, message: Message) -> None:
        """Take a message. What a leader's files have by now becomes records first: a copy begins behind them."""
        self.take_changes()
        self.member.received(connection, message)
        self.carry_out()

    def lost(self, connection: int, why: str) -> None:
        """Note that a connection has ended."""
        self._report(Level.DEBUG, "cluster.link_closed", connection=connection, why=why)
        self.copies.forget(connection)
        self.member.disconnected(connection)
        self.carry_out()

    def key_watched(self, key: Key, revision: int) -> None:
        """Take what a watch says."""
        self.member.key_watched(key, revision)
        self.carry_out()

    def then_carry_out(self, take: Callable[P, object]) -> Callable[P, None]:
        """Return an input of the member with its effects: `take` is one of its methods."""

        def take_and_carry_out(*told: P.args, **more: P.kwargs) -> None:
            take(*told, **more)
            self.carry_out()

        return take_and_carry_out

    def _on_synced(self, now_ms: int) -> None:
        number = self.file.take_synced()
        if number:
            self.member.synced(number)
            self.carry_out()

    def _on_files_ready(self, now_ms: int) -> None:
        try:
            self.files.take_ended()
        except UNFIT as why:
            self.mark_unfit(str(why))
            raise MustBeginAnew from None
        if self._late_sync:
            self._sync(self._late_sync)
        self._pause_leader()

    def _on_summed(self, connection: int, piece: int, summed: tuple[bytes, bool]) -> None:
        data, is_last = summed
        self.member.files_summed(connection, piece, data, is_last=is_last)
        self.carry_out()

    # --- a leader's records ---

    def take_changes(self) -> None:
        """Make records of what has changed in a leader's files."""
        if self.member.leader is not None and self.member.leader.first:
            self._record_changes()

    def _record_changes(self) -> None:
        changes = self.recorder.take_changes()
        if changes:
            records = list(encode_changes(changes))
            self.member.record(records, self.record_kind())
            self._written.append((self.member.core.last, sum(map(len, records)), time.monotonic()))

    def end_turn(self) -> None:
        """End a turn of a leader's hub."""
        self.take_changes()
        self.member.end_turn()
        self.carry_out()

    async def answered_all(self) -> None:
        """Wait until all records are answered, and with them all replies."""
        leader = self.member.leader
        while leader is not None and leader.answered < self.member.core.last:
            self._all_answered = trio.Event()
            await self._all_answered.wait()

    def _ask_round(self) -> int:
        place = self.member.ask_round()
        return place.number if isinstance(place, Place) else self.member.core.last + 1

    def trim(self) -> None:
        """Give up the records that no member needs any more."""
        stream = self.kept.stream
        number = stream.spare_upto(0 if self.file.is_short_of_room else KEPT_BYTES_MAX, KEPT_RECORDS_MAX)
        if number > stream.base.number:
            if self.member.leader is None:
                self.files.sync()
                number = min(number, self.files.durable)
            self.member.trim(number, stream.spare_upto(UNACKNOWLEDGED_BYTES_MAX, UNACKNOWLEDGED_RECORDS_MAX))
            self.carry_out()
        self.file.check_in_place()
        self.file.rewrite_if_large()

    # --- copies for members that join ---

    def _hold_files(self, copy: int, theirs: Sums) -> CopySource:
        """Hold the files of this moment. No thread changes one between the last record and the second names."""
        with self.recorder.lock:
            changes = self.recorder.take_changes_locked()
            self.member.record(encode_changes(changes), self.record_kind())
            return CopySource(self._fs, self._paths, f"{PREFIX}{copy}", self.kept.stream.last, theirs)

    def _on_piece(self, connection: int, piece: int, data: bytes, is_last: bool) -> None:
        self.member.piece_read(connection, piece, data, is_last=is_last)
        self.carry_out()

    def _on_drained(self) -> None:
        self.copies.start_next_step()

    # --- for operators ---

    def lag_of(self, acknowledged: int) -> tuple[int, int, int]:
        """Return (records, bytes, ms) that a follower is behind, which has acknowledged up to this number."""
        now, last = time.monotonic(), self.member.core.last
        size, oldest = 0, now
        for number, count, at in reversed(self._written):
            if number <= acknowledged:
                break
            size, oldest = size + count, at
        return last - acknowledged, size, round(1000 * (now - oldest))

    def forget_written(self, upto: int) -> None:
        """Forget when records up to this number were written."""
        while self._written and self._written[0][0] <= upto:
            self._written.popleft()
