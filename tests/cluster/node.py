"""A simulated machine: a disk that forgets what is not synced, files, clients that wait, and the driver of a member."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from staniel.cluster.core import MemberConfig, Policy
from staniel.cluster.durable import (
    ALL_FIXED,
    MAGIC,
    Appended,
    Content,
    Copied,
    Entries,
    Fitness,
    Kept,
    Marked,
    compacted,
    encode_entry,
    new_file,
    next_whole,
    read_file,
    take_entries,
)
from staniel.cluster.effects import (
    Answer,
    Apply,
    Close,
    CloseClients,
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
from staniel.cluster.follower_spool import PlaceFile, SpoolDiffers, forget_place, store_first_place
from staniel.cluster.member import Member, RoleState
from staniel.cluster.places import Place
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import Record, RecordKind
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.server.cluster.member_spool import has_led
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.cluster.timed import Timers

if TYPE_CHECKING:
    from tests.cluster.world import World

PIECES = 2
PATHS = SpoolPaths("s")
Row = tuple[int, int, int, bytes]
"""A record in a piece: its number, epoch, kind and data."""
REWRITE = ("write", "sync", "rename", "sync folder")
"""The steps in which a member's file is compacted. A power cut may come between any two."""


class Held(NamedTuple):
    """A reply that a client waits for. `data`: of its record; `seen`: how much was answered when it asked to look."""

    place: Place
    kind: RecordKind
    data: bytes
    seen: int


class RunningSync(NamedTuple):
    """A sync that has begun: what it makes durable. `leads`: it was a leader's, so files of queues are synced, too."""

    number: int
    bytes: int
    files: dict[int, Record]
    leads: bool


class Node:
    """A machine. `files`: by number, what was applied to the files of queues; `files_disk`: as it was synced. `fs` has
    the file with their place (cluster/follower_spool.py). `is_own`: this process takes them for a leader's, as
    MemberSpool does; `are_leaders`: they are.
    """

    def __init__(self, world: World, name: int, member_id: bytes, config: MemberConfig) -> None:
        self.world = world
        self.name = name
        self.config = config
        self.life = self.boots = 0
        self.timers: Timers | None = None  # of its process, where the world has leases
        self.member: Member | None = None
        self.die_after: int | None = None
        self.is_stopped = self.is_recovering = False
        self.was_cut_off = False
        self.sent_epoch = 0
        self.may_lose = self.is_full = False
        self.replace_disk(member_id)

    def replace_disk(self, member_id: bytes) -> None:
        """Begin with an empty disk."""
        self.id = member_id
        self.disk = bytearray(new_file(member_id))
        self.initial: dict[int, Record] = {}
        self.files: dict[int, Record] = {}
        self.files_disk: dict[int, Record] = {}
        self.syncs: list[RunningSync] = []
        self.held: list[Held] = []
        self.work: list[Effect] = []
        self.sums: dict[int, set[Row]] = {}
        self.is_stopped = self.was_cut_off = self.has_rotted = self.is_own = self.are_leaders = False
        self.is_full = self.has_failed_sync = False
        self.lost_at: int | None = None  # from this byte on a sync has failed: later ones make nothing durable
        self.fs = Disk()
        self.fs.make_folder(PATHS.folder)
        self.fs.make_folder(PATHS.own)
        self.fs.sync_all("")
        self.old_disk: bytearray | None = None  # the member's file before it was renamed over, if that may come back
        self.sent_epoch = self.rotted_at = self.rotted_life = 0
        self.has_changed = True
        self._durable: Kept | None = None
        self._known_bytes, self._known = MAGIC, Kept()  # what `durable` has read
        self.set_synced(len(self.disk))
        self.kept = self.read(bytes(self.disk))

    def set_synced(self, count: int) -> None:
        """Note that so many bytes of the member's file are synced."""
        self.synced_bytes, self._durable = count if self.lost_at is None else min(count, self.lost_at), None

    @property
    def durable(self) -> Kept:
        """What a power cut would leave at least. If what is synced has grown, only what is new is read."""
        if self._durable is None:
            data, known = bytes(self.disk[: self.synced_bytes]), self._known_bytes
            if data.startswith(known) and take_entries(self._known, data, len(known)) == len(data):
                self._known_bytes, self._durable = data, self._known
            else:
                self._durable = self.read(data)
                self._known_bytes, self._known = MAGIC, Kept()
        return self._durable

    def read(self, data: bytes) -> Kept:
        """Read a member's file."""
        return self.content_of(data).kept

    def content_of(self, data: bytes) -> Content:
        """Return the content of a member's file, which a member starts with whatever accident there was."""
        content = read_file(data)
        if isinstance(content, str):
            self.world.judge.fail("STOPPED", f"node {self.name}: its file is refused: {content}")
        assert not isinstance(content, str)
        return content

    # --- lives ---

    def start(self) -> None:
        """Start the process: cut back what is not whole, then let the member begin."""
        self.old_disk = None  # a start syncs the folder before it depends on a name
        content = self.content_of(bytes(self.disk))
        self.kept = content.kept
        self.cut_torn_end(content.whole)
        if content.damage or self.lost_at is not None:
            self.write_anew()
        elif self.synced_bytes > len(self.disk):
            self.set_synced(len(self.disk))
        is_ahead = self.is_behind
        self.open_files()
        self.life += 1
        has_items, boot_id = bool(self.initial), b"%016d" % self.boots
        self.member = Member(
            self.config,
            self.kept,
            has_items=has_items,
            is_short=self.is_short(),
            is_ahead=is_ahead,
            boot_id=boot_id,
        )
        if self.world.leases is not None:
            self.timers = Timers(self, self.world.leases)
        self.member.start()
        self.carry_out()
        if self.member is not None:  # else the disk was full before the member had noted that the power was cut
            self.was_cut_off = False

    def cut_torn_end(self, whole: int) -> None:
        """Cut off what is not whole at the end of the member's file."""
        del self.disk[whole:]

    def write_anew(self) -> None:
        """Write the member's file anew, and sync it: an earlier process may have failed to sync what was read."""
        self.disk, self.lost_at = bytearray(compacted(self.kept)), None
        self.set_synced(len(self.disk))

    def is_short(self) -> bool:
        """Tell whether a sync of a leader's journals has failed since its files were whole."""
        return self.has_failed_sync

    def open_files(self) -> None:
        """Open the files where the last process has left them, if they are a follower's."""
        kept = self.kept
        are_led = has_led(self.fs, PATHS, kept)
        self.is_own = are_led and (self.is_behind or kept.fixed != ALL_FIXED)
        if kept.fitness is Fitness.HALF or self.is_own:
            return
        if kept.cluster_id:
            self.files = {number: record for number, record in self.files.items() if number <= kept.stream.last.number}
            self.apply(min(kept.fixed, kept.stream.last.number) if kept.fixed != ALL_FIXED or not self.is_behind else 0)
        if not are_led and (kept.cluster_id or not self.initial):
            self.open_place()

    def open_place(self) -> None:
        """Open the file with the place, or make it. Files without a place are of an unknown moment: they are copied."""
        if self.config.policy is Policy.ALWAYS and self.are_leaders:
            return  # here such a leader's files have what its records say: it follows without a copy
        try:
            PlaceFile(UnsyncedNames(self.fs), PATHS).close()
        except SpoolDiffers:
            half = Marked(Fitness.HALF)
            self.kept.apply(half)
            self.disk += encode_entry(half)
            self.set_synced(len(self.disk))

    def give_items(self, items: dict[int, Record]) -> None:
        """Have items before there is a cluster."""
        self.initial, self.files, self.files_disk = items, dict(items), dict(items)
        self.fs.fill(PATHS.path_of("items"), 1)
        self.fs.sync_all("")

    @property
    def is_behind(self) -> bool:
        """True if this machine's disk may lack what it has answered as a leader: its replies did not wait for it."""
        return self.config.policy is Policy.LAZY and self.kept.fixed == ALL_FIXED

    def fail_sync(self, random: Random) -> None:
        """Have the syncs that run fail, which ends the process. What they were to make durable looks as if it was."""
        are_of_journals = self.leads or any(sync.leads for sync in self.syncs)
        self.has_failed_sync |= are_of_journals and self.waits_for_syncs()
        self.world.has_lost_copies |= self.is_behind
        self.lost_at = self.synced_bytes
        self.kill()
        if are_of_journals or not self.are_leaders:  # one that led, and does not any more, syncs its own file alone
            self.files = dict(random.choice([self.files, self.files_disk]))
        self.has_changed = True

    @property
    def leads(self) -> bool:
        """True if the files of queues are those of a leader with records."""
        assert self.member is not None
        return self.member.leader is not None and self.member.leader.first > 0

    def waits_for_syncs(self) -> bool:
        """Tell whether a failed sync of a leader's journals is noted: also by a member that was deposed meanwhile."""
        return True

    def write_entries(self, entries: tuple[Entries, ...]) -> None:
        """Append to the member's file."""
        data = b"".join(encode_entry(entry) for entry in entries)
        if self.is_full:
            self.fail_write(data)
        else:
            self.disk += data
            self.apply_own(entries)

    def fail_write(self, data: bytes) -> None:
        """End the process: the full disk has taken a first part of what it has written."""
        self.disk += data[: self.world.random.randrange(len(data))]
        self.kill()
        self.kept = self.read(bytes(self.disk))

    def kill(self) -> None:
        """End the process. What it has written stays in the page cache."""
        self.member = None
        self.syncs.clear()
        self.held.clear()
        self.work.clear()
        self.sums.clear()
        self.die_after = None
        self.world.lose_connections(self)

    def cut_power(self, random: Random) -> None:
        """End the process, and forget what was not synced: any first part of it is left, and then maybe garbage."""
        self.kill()
        self.was_cut_off = True
        self.boots += 1
        self.world.has_lost_copies |= self.is_behind
        if self.old_disk is not None and random.random() < 0.5:
            self.disk = self.old_disk
            self.set_synced(len(self.disk))
        self.old_disk = self.lost_at = None
        kept = random.randint(self.synced_bytes, len(self.disk))
        lost = len(self.disk) - kept
        del self.disk[kept:]
        self.disk += random.choice([b"", bytes(lost), random.randbytes(min(lost, 40))])
        self.files = dict(random.choice([self.files, self.files_disk]))
        self.files_disk = dict(self.files)
        self.fs = self.fs.crash(Crash.DROP)
        self.kept = self.read(bytes(self.disk))

    def rewrite(self, random: Random) -> None:
        """Compact the member's file, unless the power is cut before that is done."""
        steps = self.rewrite_steps()
        done = random.randrange(len(steps) + 1) if random.random() < 0.5 else len(steps)
        new, synced = bytearray(compacted(self.kept)), 0
        old = bytearray(self.disk[: self.synced_bytes])
        for step in steps[:done]:
            match step:
                case "write":
                    pass
                case "sync":
                    synced = len(new)
                case "rename":
                    self.disk, self.old_disk, self.lost_at = new, old, None
                    self.set_synced(synced)
                    self.syncs = [sync._replace(bytes=len(new)) for sync in self.syncs]
                case "sync folder":
                    self.old_disk = None
        if done < len(steps):
            random.choice([self.kill, lambda: self.cut_power(random)])()

    def rewrite_steps(self) -> tuple[str, ...]:
        """Return the steps of a rewriting, in order."""
        return REWRITE

    def rot(self, random: Random) -> None:
        """Have a synced byte of the member's file go bad, where a whole entry follows: of a bad end nobody can know."""
        at, bit = random.randrange(self.synced_bytes), 1 << random.randrange(8)
        self.disk[at] ^= bit
        data = bytes(self.disk[: self.synced_bytes])
        content = read_file(data)
        if isinstance(content, str) or not next_whole(data, content.whole):
            self.disk[at] ^= bit
            return
        self.has_rotted, self.sent_epoch = True, 0
        self.rotted_at, self.rotted_life = self.world.etcd.mod_revision, self.life
        self.set_synced(self.synced_bytes)
        self.kept = content.kept

    # --- effects ---

    def carry_out(self) -> None:
        """Carry out the effects, and end the turn. The process may be killed in between."""
        while self.member is not None:
            self.member.end_turn()
            effects = self.member.take_effects()
            if not effects:
                return
            for effect in effects:
                if self.die_after is not None:
                    self.die_after -= 1
                    if self.die_after < 0:
                        self.kill()
                        return
                self.carry_out_one(effect)
                if self.member is None:
                    return

    def carry_out_one(self, effect: Effect) -> None:
        """Carry out an effect."""
        self.has_changed = True
        self.world.counts[type(effect.message.body if isinstance(effect, Send) else effect).__name__] += 1
        match effect:
            case Persist(entries):
                self.write_entries(entries)
            case Connect() if self.is_full:
                pass
            case Apply() | WritePiece() if self.is_full:
                self.kill()
            case Sync(number):
                self.syncs.append(RunningSync(number, len(self.disk), dict(self.files), self.leads))
            case Send(connection, message):
                self.sent_epoch = max(self.sent_epoch, message.epoch)
                self.world.judge.on_send(self, message)
                self.world.send(self, connection, message)
            case Connect():
                self.world.connects.append((self.name, self.life, effect.leader_id))
            case Close(connection):
                self.world.close(self, connection)
            case ReadKey() | Transact():
                self.world.ask(self, effect)
            case Recover() | ReadPiece() | SumFiles():
                self.work.append(effect)
            case TakeSums(connection, data):
                self.take_sums(connection, data)
            case CloseClients():
                self.held.clear()
                self.work.clear()
            case Answer():
                self.answer(effect)
            case Apply(upto):
                self.apply(upto)
            case WritePiece(data):
                self.write_piece(data)
            case Stop(reason):
                self.is_stopped = True
                self.world.judge.on_stop(self, reason)
            case ServeClients():
                if self.timers is not None:
                    self.timers.serves = True
            case MoveTail():
                pass

    def apply_own(self, entries: tuple[object, ...]) -> None:
        """Note what was written; what a leader writes is in files at once."""
        for entry in entries:
            if isinstance(entry, Marked) and entry.fitness is Fitness.WHOLE:
                self.note_mark_gone()
            if isinstance(entry, Copied):
                forget_place(self.fs, PATHS)
                self.is_own = self.are_leaders = False
            if isinstance(entry, Appended):
                record = Record(Place(entry.epoch, entry.number), entry.record_kind, entry.data)
                self.world.judge.on_record(self, record)
                if self.member is not None and self.member.leader is not None:
                    self.files[entry.number] = record
                    if self.is_recovering:
                        self.files_disk[entry.number] = record

    def note_mark_gone(self) -> None:
        """Note that a member leads although it may lack something: alone in the set it may."""
        assert self.member is not None and self.member.core.key is not None
        self.has_failed_sync = False
        if self.member.role is RoleState.LEADING and self.member.core.key.members == (self.id,):
            self.may_lose = self.config.policy is Policy.LAZY

    def apply(self, upto: int) -> None:
        """Apply records to files, each once: guarded by its number."""
        if self.are_leaders and self.config.policy is Policy.LAZY:
            self.world.judge.fail("DIVERGED", f"node {self.name} applies records to files that it has led with")
        for record in self.kept.stream.behind(self.kept.stream.base.number):
            if record.place.number <= upto:
                self.files[record.place.number] = record

    def write_piece(self, data: bytes) -> None:
        """Replace a half of the files."""
        piece, same, rows = msgspec.msgpack.decode(data, type=tuple[int, set[int], list[Row]])
        self.files = {
            number: record for number, record in self.files.items() if number % PIECES != piece or number in same
        }
        for number, epoch, kind, content in rows:
            self.files[number] = Record(Place(epoch, number), RecordKind(kind), content)
        if piece == PIECES - 1:
            store_first_place(UnsyncedNames(self.fs), PATHS, self.kept.stream.base)

    def read_piece(self, piece: int, theirs: set[Row]) -> bytes:
        """Return a half of the files, as it is now: which the member has, and the others."""
        rows = self.rows(piece)
        same = [row[0] for row in rows if self.is_same(row, theirs)]
        return msgspec.msgpack.encode((piece, same, [row for row in rows if row[0] not in same]))

    def is_same(self, row: Row, theirs: set[Row]) -> bool:
        """Tell whether the member has this."""
        return row in theirs

    def sum_files(self, piece: int) -> bytes:
        """Return what a half of the files is."""
        return msgspec.msgpack.encode(self.rows(piece))

    def rows(self, piece: int) -> list[Row]:
        """Return a half of the files."""
        return [
            (number, record.place.epoch, int(record.kind), record.data)
            for number, record in sorted(self.files.items())
            if number % PIECES == piece
        ]

    def take_sums(self, connection: int, data: bytes) -> None:
        """Keep what a member says of its files."""
        self.sums_of(connection).update(msgspec.msgpack.decode(data, type=list[Row]))

    def sums_of(self, connection: int) -> set[Row]:
        """Return what a member has said of its files on a connection."""
        return self.sums.setdefault(connection, set())

    def answer(self, effect: Answer) -> None:
        """Send the replies that rest on what is answered."""
        leaving = [held for held in self.held if self.may_leave(held, effect)]
        self.held = [held for held in self.held if held not in leaving]
        self.world.judge.on_answer(self, effect, leaving)

    def may_leave(self, held: Held, effect: Answer) -> bool:
        """Tell whether a reply may leave: by its place, which has an epoch."""
        return held.place.epoch == effect.epoch and held.place.number <= effect.upto

    # --- what takes time ---

    def end_sync(self, at: int) -> None:
        """Let a sync end, and with it those before it."""
        sync = self.syncs[at]
        del self.syncs[: at + 1]
        self.set_synced(max(self.synced_bytes, sync.bytes))
        assert self.member is not None
        if not self.is_behind or self.world.random.random() < 0.5:  # or files of queues are synced at other times
            self.files_disk = sync.files
        self.member.synced(sync.number)
        self.carry_out()

    @property
    def can_work(self) -> bool:
        """True if the member waits for something that can be done: a take-over syncs files, which a hung disk does not
        end.
        """
        return bool(self.work) and not self.is_recovery_hung

    @property
    def is_recovery_hung(self) -> bool:
        """True if what the member waits for first is a recovery, and the disk hangs."""
        return bool(self.work) and isinstance(self.work[0], Recover) and self.name in self.world.hung_disks

    def do_work(self, random: Random) -> None:
        """Do the first thing that the member has waited for."""
        assert self.member is not None
        effect = self.work.pop(0)
        self.has_changed = True
        if isinstance(effect, Recover):
            self.read_files(effect.upto)
            self.files_disk = dict(self.files)  # a take-over syncs what it has read and changed before it goes on
            self.syncs = [sync._replace(files=self.files_disk) for sync in self.syncs]
            self.is_recovering = True
            self.recover([b"recovery %d" % self.world.next_number() for _ in range(random.choice([0, 0, 1, 2]))])
        elif isinstance(effect, SumFiles):
            data, is_last = self.sum_files(effect.piece), effect.piece == PIECES - 1
            self.member.files_summed(effect.connection, effect.piece, data, is_last=is_last)
        elif isinstance(effect, ReadPiece):
            data = self.read_piece(effect.piece, self.sums_of(effect.connection))
            self.member.piece_read(effect.connection, effect.piece, data, is_last=effect.piece == PIECES - 1)
        self.carry_out()
        self.is_recovering = False

    def read_files(self, upto: int) -> None:
        """Read the files of a new leader, which has its last records in a log alone, or has led with these files."""
        if self.is_own:
            self.files = {number: record for number, record in self.files.items() if number <= upto}
        else:
            self.apply(upto)
        forget_place(self.fs, PATHS)
        self.are_leaders, self.is_own = True, self.config.policy is Policy.LAZY
        self.world.judge.on_recovered(self, upto)

    def recover(self, changes: list[bytes]) -> None:
        """Tell the member what recovery changes."""
        assert self.member is not None
        self.member.recovered(tuple(changes))

    # --- clients ---

    def put(self, kind: RecordKind) -> None:
        """Ask for a change."""
        assert self.member is not None
        data = b"%d" % self.world.next_number()
        place = self.member.write(data, kind)
        if isinstance(place, Place):
            self.held.append(Held(place, kind, data, 0))
        self.carry_out()

    def look(self) -> None:
        """Ask for what rests on no record."""
        assert self.member is not None
        place = self.member.ask_round()
        leader = self.member.leader
        if isinstance(place, Place) and leader is not None:
            held = Held(place, RecordKind.EMPTY, b"", len(self.world.judge.answered))
            if place.number <= leader.answered:
                self.world.judge.on_reply(self, held, 0)
            else:
                self.held.append(held)
        self.carry_out()
