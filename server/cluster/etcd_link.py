"""etcd, as a member uses it: the key, what others say of themselves, and a lease that says that this member is alive.

Under /staniel/NAME/ stand `leader`, the key of cluster/key.py, without a lease; for each living member `members/ID`
with its addresses, under its lease; and `known/ID` with the same for each that ever lived and that no operator has
removed: empty, if one has. The lease starts elections sooner and decides nothing. It is renewed only while the syncs of
this member come to an end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import trio
from msgspec import Meta, Struct

from staniel.broker.config.addresses import TcpAddress, parse_address
from staniel.cluster.effects import ReadKey, Transact
from staniel.cluster.etcd.client import Etcd
from staniel.cluster.etcd.errors import EtcdError, EtcdWentBack, ForeignEtcd
from staniel.cluster.etcd.messages import ChangeKind, KeyValue, NewsKind, Outcome
from staniel.cluster.key import ADDRESS_MAX, Key, decode_key, encode_key, prefix_of
from staniel.cluster.places import ID_BYTES

RETRY_S = 0.5
RENEWALS_A_LEASE = 3
ENTRY_BYTES_MAX = 4 << 10


class MemberEntry(Struct, frozen=True):
    """The entry of a member in etcd: where other members and clients reach it."""

    name: str
    replication: str
    clients: Annotated[str, Meta(max_length=ADDRESS_MAX)]


def decode_member(value: bytes) -> MemberEntry | None:
    """Return the entry of a member; None if it is none of this version, or names no addresses to connect to."""
    if len(value) > ENTRY_BYTES_MAX:
        return None
    try:
        entry = msgspec.json.decode(value, type=MemberEntry)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return entry if is_reachable(entry.replication) and is_reachable(entry.clients) else None


def id_in(key: bytes, folder: bytes) -> bytes:
    """Return the member's id in a key below `folder`; b"" if it is none."""
    try:
        member_id = bytes.fromhex(key.removeprefix(folder).decode())
    except ValueError:
        return b""
    return member_id if len(member_id) == ID_BYTES else b""


def is_reachable(address: str) -> bool:
    """Tell whether this is the TCP address of a host whose name can be asked for."""
    try:
        where = parse_address(address)
        if isinstance(where, TcpAddress):
            where.host.encode("idna")
    except ValueError:
        return False
    return isinstance(where, TcpAddress) and where.port > 0 and "\0" not in where.host


class Answers(Struct, frozen=True):
    """The takers of etcd's answers. `entries` gets the entries of the members that are alive, by id."""

    key_read: Callable[[int, Key | None, int], None]
    taken: Callable[[int, int], None]
    refused: Callable[[int, Key | None, int], None]
    unanswered: Callable[[int], None]
    watched: Callable[[Key, int], None]
    entries: Callable[[dict[bytes, MemberEntry]], None]


class EtcdLink:
    """The tasks that talk to etcd. `trouble`: why the last call failed, or "". `known`: the members that are expected,
    alive or not. `on_restored` is called once if etcd got an older state.
    """

    def __init__(
        self, etcd: Etcd, cluster: str, member_id: bytes, own: MemberEntry, lease_s: int, answers: Answers
    ) -> None:
        self._etcd = etcd
        self._prefix = prefix_of(cluster)
        self._key = self._prefix + b"leader"
        self._members = self._prefix + b"members/"
        self._known = self._prefix + b"known/"
        self._own_id = member_id.hex().encode()
        self._own_key = self._members + self._own_id
        self._own = msgspec.json.encode(own)
        self._lease_s = lease_s
        self._lease = 0
        self._is_known = False
        self._has_entered = trio.Event()
        self._is_wanted = trio.Event()
        self._answers = answers
        self._entries: dict[bytes, MemberEntry] = {}
        self.known: dict[bytes, MemberEntry] = {}
        self.trouble = ""
        self.on_restored: Callable[[str], None] = lambda why: None
        self._went_back = self._foreign = ""
        self._key_revision = 0

    @property
    def restored(self) -> str:
        """The sign that etcd has an older state than before, or is another one; "" if there is none. What
        went back stays so until the process ends: later revisions may be above those seen, and the key still older.
        """
        return self._went_back or self._foreign

    def _note_success(self) -> None:
        self.trouble = self._foreign = ""

    def _note_failure(self, error: EtcdError) -> None:
        self.trouble = str(error)
        if isinstance(error, EtcdWentBack):
            self._note_went_back(str(error))
        self._foreign = str(error) if isinstance(error, ForeignEtcd) else ""

    def _note_went_back(self, why: str) -> None:
        if not self._went_back:
            self._went_back = why
            self.on_restored(why)

    def _check_key(self, values: Sequence[KeyValue]) -> None:
        """Compare the revision of the key in a whole state with those before."""
        revision = next((held.mod_revision for held in values if held.key == self._key), 0)
        if revision < self._key_revision:
            now = f"revision {revision}" if revision else "not there"
            self._note_went_back(f"the key {self._key.decode()} is {now} and had revision {self._key_revision} before")

    async def ask(self, effect: ReadKey | Transact) -> None:
        """Carry out a question, and hand over the answer."""
        try:
            if isinstance(effect, ReadKey):
                reading = await self._etcd.read_key(self._key)
                self._hand_over_key(reading.values[0] if reading.values else None, self._answers.key_read, effect.ask)
            else:
                await self._transact(effect)
            self._note_success()
        except EtcdError as error:
            self._note_failure(error)
            self._answers.unanswered(effect.ask)

    async def _transact(self, effect: Transact) -> None:
        result = await self._etcd.put_if_unchanged(self._key, effect.revision, encode_key(effect.key))
        if result.outcome is Outcome.WRITTEN:
            self._answers.taken(effect.ask, result.revision)
        elif result.outcome is Outcome.REFUSED:
            self._hand_over_key(result.current, self._answers.refused, effect.ask)
        else:
            self._fail(effect.ask, result.why)

    def _fail(self, ask: int, why: str) -> None:
        self.trouble = why
        self._answers.unanswered(ask)

    def _hand_over_key(self, held: KeyValue | None, take: Callable[[int, Key | None, int], None], ask: int) -> None:
        if held is None:
            take(ask, None, 0)
            return
        key = decode_key(held.value)
        if isinstance(key, str):
            self._fail(ask, f"the key {self._key.decode()}: {key}")
        else:
            take(ask, key, held.mod_revision)

    async def watch(self) -> None:
        """Hand over each change of the key and of the members, for ever."""
        async with self._etcd.watch(self._prefix, is_prefix=True) as watch:
            while True:
                try:
                    news = await watch.next_news()
                except EtcdError as error:
                    self._note_failure(error)
                    await trio.sleep(RETRY_S)
                    continue
                if news.kind is NewsKind.STATE:
                    self._check_key(news.values)
                    self._entries.clear()
                    self.known.clear()
                    self._take_values(news.values)
                else:
                    for change in news.changes:
                        if change.kind is ChangeKind.DELETE:
                            self._forget(change.kv.key)
                        else:
                            self._take_values((change.kv,))
                self._answers.entries(dict(self._entries))

    def _forget(self, key: bytes) -> None:
        for folder, entries in ((self._members, self._entries), (self._known, self.known)):
            if key.startswith(folder):
                entries.pop(id_in(key, folder), None)

    def _take_values(self, values: Sequence[KeyValue]) -> None:
        for held in values:
            if held.key == self._key:
                self._key_revision = max(self._key_revision, held.mod_revision)
                key = decode_key(held.value)
                if isinstance(key, Key):
                    self._answers.watched(key, held.mod_revision)
            else:
                self._take_entry(held)

    def _take_entry(self, held: KeyValue) -> None:
        for folder, entries in ((self._members, self._entries), (self._known, self.known)):
            if held.key.startswith(folder) and (member_id := id_in(held.key, folder)):
                entry = decode_member(held.value)
                if entry is None:
                    entries.pop(member_id, None)
                else:
                    entries[member_id] = entry

    async def stay_alive(self, is_alive: Callable[[], bool]) -> None:
        """Keep the entry of this member, for ever; `is_alive`: whether it may."""
        while True:
            pause_s = self._lease_s / RENEWALS_A_LEASE
            try:
                if is_alive():
                    await self._renew()
                    self._note_success()
                    pause_s = pause_s if self._lease else RETRY_S
            except EtcdError as error:
                self._note_failure(error)
                await trio.sleep(RETRY_S)
                continue
            with trio.move_on_after(pause_s):
                await self._is_wanted.wait()
            self._is_wanted = trio.Event()

    async def wait_until_entered(self) -> None:
        """Have the entry written now, and wait until this process has written it once. Until then etcd may have that
        of an earlier process, whose lease ends soon: a leader that already counts on this member would miss it then.
        """
        self._is_wanted.set()
        await self._has_entered.wait()

    async def _renew(self) -> None:
        if not self._lease or not await self._etcd.renew_lease(self._lease):
            await self._enter()
        if not self._is_known:
            await self._write_known(self._own_id, self._own)
            self._is_known = True

    async def _enter(self) -> None:
        """Write this member's entry, under a new lease."""
        self._is_known = False
        self._lease = (await self._etcd.grant_lease(self._lease_s)).lease_id
        reading = await self._etcd.read_key(self._own_key)
        revision = reading.values[0].mod_revision if reading.values else 0
        result = await self._etcd.put_if_unchanged(self._own_key, revision, self._own, self._lease)
        if result.outcome is Outcome.WRITTEN:
            self._has_entered.set()
        else:
            self._lease = 0

    async def _write_known(self, member_id: bytes, value: bytes) -> None:
        """Have a member expected, or removed with an empty value. Of two writers at once the first one counts."""
        key = self._known + member_id
        reading = await self._etcd.read_key(key)
        before = reading.values[0] if reading.values else None
        if (before.value if before is not None else b"") != value:
            await self._etcd.put_if_unchanged(key, before.mod_revision if before is not None else 0, value)

    async def remove(self, member_id: bytes) -> None:
        """Have a member expected no more, by an operator's order. It is again once it starts."""
        try:
            await self._write_known(member_id.hex().encode(), b"")
            self._note_success()
        except EtcdError as error:
            self._note_failure(error)

    async def leave(self) -> None:
        """End the lease: others need not wait for its end."""
        if self._lease:
            try:
                await self._etcd.revoke_lease(self._lease)
            except EtcdError:
                pass  # it ends by itself
            self._lease = 0
