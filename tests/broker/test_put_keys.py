"""Puts with an idempotency key: stored once, however often they are repeated, and wherever the power fails."""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import pytest

from staniel.broker.broker import LOOK_MS
from staniel.journal import put_key_log
from staniel.journal.group_commit import JournalFailure
from staniel.journal.put_key_log import Forgotten, KeyedPut, PutsStored, PutsVoid, decode, encode, last_number, replayed
from staniel.journal.tools.unfinished import Unfinished, Work, unfinished_in, unfinished_work
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.journal_view import JournalView
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Choose, Crash
from staniel.sim.world import START_MS
from tests.broker.operations.test_undo import Admin, settles
from tests.support.streams import LIB, all_of, asks, settle
from tests.support.world import Client, World

KEYS = "s/.staniel/keys"
ROTATING = "[default]\nmax_memory_size = 60\ndefault_journal_size = 50\nmax_journal_size = 300\n"
ROTATING += "min_journal_compact_delay = 1\n"
CONFIGS = {
    "Kestrel's format": "",
    "files rotate": ROTATING,
    "libkestrel's format": '[default]\njournal_format = "libkestrel"\n',
    "libkestrel's format, files rotate": ROTATING + 'journal_format = "libkestrel"\n',
    "a redo log": 'server.redo_log = "32KB"\n',
    "left to the OS": '[default]\nsync_journal = "os"\n',
}
STRICT = [name for name in CONFIGS if name != "left to the OS"]


def put(world: World, key: str, data: str = "x", queue: str = "q") -> str:
    return asks(world, f"set {queue}/key={key} 0 0 {len(data)}", data)


class Told:
    """A story of puts, told until the power is cut before step `stop`: what was asked, and what the answers said. The
    payload of an item is its key.
    """

    def __init__(self, config: str, stop: int | None = None) -> None:
        self.world = World(config)
        self.first = len(self.world.disk.log)
        self.world.disk.stop_at = stop
        self.asked: set[str] = set()
        self.known: set[str] = set()
        self.taken: set[str] = set()
        self._clients: list[tuple[Client, list[str]]] = []
        try:
            self._tell()
        except PowerCut:
            pass
        self.last = len(self.world.disk.log)

    def _tell(self) -> None:
        world = self.world
        one, two = self._client(), self._client()
        self._put(one, "a")
        self._listen()
        self._put(one, "b")
        self._put(two, "b")  # in the same batch
        self._put(two, "c" * 40)
        self._listen()
        self._put(one, "d")
        reader = world.client().says("get q", "get q")
        self._put(two, "d")
        self._listen()
        self.taken.update(reader.hears().split()[4::6])
        for _ in range(3):
            world.turn(LOOK_MS)
            self._listen()
        for number in range(4):
            self._put(one, f"e{number}" * 9)
        self._put(two, "a")
        self._listen()

    def _client(self) -> tuple[Client, list[str]]:
        self._clients.append((self.world.client(), []))
        return self._clients[-1]

    def _put(self, client: tuple[Client, list[str]], key: str) -> None:
        self.asked.add(key)
        client[1].append(key)
        client[0].says(f"set q/key={key} 0 0 {len(key)}", key)

    def _listen(self) -> None:
        settle(self.world)
        for client, keys in self._clients:
            for answer in client.hears().split():
                assert answer in ("STORED", "EXISTS")
                self.known.add(keys.pop(0))


def check_repeated(told: Told, again: World, *, is_strict: bool = True) -> None:
    """Repeat every put: no item is there twice, and none that was known to be there is put again."""
    for key in sorted(told.asked):
        answer = put(again, key, key)
        assert answer == "EXISTS" or (answer == "STORED" and (key not in told.known or not is_strict)), (key, answer)
    queue = again.broker.queues.find("q")
    assert queue is not None
    open_reads = [taken.item for taken in queue.open_reads.values()]
    found = [item.data.decode() for item in [*JournalView(queue).snapshot()[1], *open_reads]]
    for key in told.asked:
        assert found.count(key) <= 1, (key, found)
        assert found.count(key) == 1 or key in ("a", "b"), (key, found)  # which a client may have taken
        assert not (is_strict and key in told.taken and found.count(key)), (key, found)


def cuts(seeds: int) -> list[Crash | Choose]:
    return [*Crash, *(random.Random(seed).randrange for seed in range(seeds))]


@pytest.mark.parametrize("name", STRICT)
def test_a_put_is_stored_once_wherever_the_power_fails(name: str) -> None:
    whole = Told(CONFIGS[name])
    assert whole.last - whole.first > 30 and whole.known == whole.asked and whole.taken == {"a", "b"}
    for stop in range(whole.first, whole.last + 1):
        told = Told(CONFIGS[name], stop)
        for how in cuts(4):
            check_repeated(told, told.world.crash(how))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_put_is_stored_once_whenever_the_server_is_killed(name: str) -> None:
    whole = Told(CONFIGS[name])
    for stop in range(whole.first, whole.last + 1):
        told = Told(CONFIGS[name], stop)
        again = World(CONFIGS[name], told.world.disk.kill(), told.world.now_ms + 1000)
        check_repeated(told, again)


def test_a_queue_that_is_left_to_the_os_stores_a_put_at_most_once() -> None:
    config = CONFIGS["left to the OS"]
    whole = Told(config)
    for stop in range(whole.first, whole.last + 1):
        told = Told(config, stop)
        for how in cuts(4):
            check_repeated(told, told.world.crash(how), is_strict=False)


def test_the_power_fails_again_at_any_step_of_the_recovery() -> None:
    config = CONFIGS["files rotate"]
    whole = Told(config)
    for stop in range(whole.first, whole.last + 1, 3):
        told = Told(config, stop)
        left = told.world.disk.crash(Crash.KEEP)
        for step in range(60):
            disk = left.crash(Crash.KEEP)
            disk.stop_at = step
            try:
                World(config, disk, told.world.now_ms + 1000)
            except PowerCut:
                for how in Crash:
                    check_repeated(told, World(config, disk.crash(how), told.world.now_ms + 2000))
            else:
                break


# what is refused, and what is answered


def test_a_key_is_known_in_its_queue_alone() -> None:
    world = World()
    assert put(world, "a") == "STORED" and put(world, "a", "other data") == "EXISTS"
    assert put(world, "a", queue="r") == "STORED" and put(world, "b") == "STORED"
    assert all_of(world, "q") == ["x", "x"] and all_of(world, "r") == ["x"]
    assert asks(world, "set q 0 0 1", "y") == "STORED"
    stats = asks(world, "stats")
    assert "STAT put_keys 3 " in stats and "STAT puts_repeated 1 " in stats and "STAT cmd_set 5 " in stats


def test_the_answer_to_a_repeated_put_waits_for_the_sync_of_the_first() -> None:
    world = World()
    one, two = world.client(), world.client()
    one.says("set q/key=a 0 0 1", "x")
    two.says("set q/key=a 0 0 1", "x")
    assert (one.hears(), two.hears()) == ("", "")
    world.sync()
    assert (one.hears(), two.hears()) == ("STORED", "EXISTS")


@pytest.mark.parametrize(
    "key",
    [
        b"a",
        b"k" * 250,
        b"a/b/key=c",
        bytes(range(1, 10)) + b"\x0b\x0c\x0e\x1f\x7f\x80\xff",
        b'{"put":1,"check":2}',
        "\N{SNOWMAN}".encode(),
    ],
)
def test_a_key_may_have_any_bytes_of_a_word(key: bytes) -> None:
    world = World()
    for said in ("STORED", "EXISTS"):
        client = world.client()
        client.sends(b"set q/key=" + key + b" 0 0 1\r\nx\r\n")
        world.turn()
        settle(world)
        assert client.hears() == said
    again = World(world.config, world.disk.kill(), world.now_ms + 1000)
    client = again.client()
    client.sends(b"set q/key=" + key + b" 0 0 1\r\nx\r\n")
    again.turn()
    settle(again)
    assert client.hears() == "EXISTS" and all_of(again, "q") == ["x"]


@pytest.mark.parametrize("key", ["", "k" * 251])
def test_a_key_has_1_to_250_bytes(key: str) -> None:
    world = World()
    assert asks(world, f"set q/key={key} 0 0 1", "x", "version").startswith(
        "CLIENT_ERROR key= needs a key of 1 to 250 bytes VERSION"
    )


def test_meta_commands_have_keys_too() -> None:
    world = World()
    assert asks(world, "ms q/key=a 1", "x") == "HD" and asks(world, "ms q/key=a 1 q k O7", "x") == "EX kq/key=a O7"
    assert asks(world, "ms cS9rZXk9YSA= 1 b", "x") == "HD"  # "q/key=a ", whose key has a space
    assert asks(world, "ms cS9rZXk9YSA= 1 b", "x") == "EX" and len(all_of(world, "q")) == 2


def test_kestrels_dialect_has_no_keys() -> None:
    world = World()
    client = world.client(Dialect.KESTREL).says("set q/key=a 0 0 1", "x")
    settle(world)
    assert "STORED" not in client.hears().split()


def test_an_item_without_an_answer_is_stored_once() -> None:
    world = World("queues.small.max_items = 0\n")
    assert asks(world, "set q/key=a 0 0 1 noreply", "x", "set q/key=a 0 0 1 noreply", "x", "version").startswith(
        "VERSION"
    )
    assert all_of(world, "q") == ["x"] and world.broker.counters.noreply_refused == 0
    assert asks(world, "set small/key=a 0 0 1 noreply", "x", "version").startswith("VERSION")
    assert world.broker.counters.noreply_refused == 1


def put_by_http(world: World, key: str) -> tuple[int, object]:
    admin = Admin(world)
    head = f"POST /api/queues/q/put HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {key}\r\nContent-Length: 12\r\n\r\n"
    admin.session.execute(admin.parser.feed(head.encode() + b'{"data":"x"}'), world.now_ms)
    settles(world)
    heard = admin.hears()
    assert heard is not None
    return heard


def test_http_has_keys_too() -> None:
    world = World()
    assert put_by_http(world, "a") == (200, {"stored": 1})
    assert put_by_http(world, "a") == (200, {"stored": 0, "already_stored": 1})
    assert put(world, "a") == "EXISTS" and world.items() == [b"x"]
    assert put_by_http(world, "")[0] == put_by_http(world, "k" * 251)[0] == 400


def test_a_put_that_is_refused_leaves_its_key_free() -> None:
    world = World("queues.q.max_items = 1\nqueues.r.max_item_size = 2\n")
    assert put(world, "a") == "STORED" and put(world, "b") == "NOT_STORED"
    assert asks(world, "get q").startswith("VALUE") and put(world, "b") == "STORED"
    assert (
        put(world, "a", "xyz", "r").startswith("CLIENT_ERROR object too large")
        and put(world, "a", "x", "r") == "STORED"
    )


def test_an_alias_and_a_fan_out_have_no_keys() -> None:
    world = World('aliases.all = ["q"]\n')
    assert put(world, "a", queue="all") == "CLIENT_ERROR key= needs one queue, and all is an alias"
    assert put(world, "a") == "STORED"
    assert asks(world, "get q+x") == "END"
    assert put(world, "a") == "EXISTS"
    assert put(world, "b") == "CLIENT_ERROR key= needs one queue, and q has fan-out children"
    assert put(world, "b", queue="q+x") == "STORED" and put(world, "b", queue="q+x") == "EXISTS"


def test_a_deleted_queue_forgets_its_keys_and_a_flushed_one_does_not() -> None:
    world = World()
    assert put(world, "a") == "STORED" and asks(world, "flush q") == "END" and put(world, "a") == "EXISTS"
    assert asks(world, "delete q") == "DELETED"
    again = world.crash(Crash.DROP)
    for served in (world, again):
        assert put(served, "a") == "STORED" and put(served, "a") == "EXISTS" and all_of(served, "q") == ["x"]


@pytest.mark.parametrize("config", STRICT)
def test_a_queue_whose_deletion_is_refused_keeps_its_keys(config: str) -> None:
    world = World(CONFIGS[config])
    assert put(world, "a") == "STORED"
    for _ in range(2):
        world.disk.fail("remove", "s/q", errno.EMFILE, times=1)
        assert "queue q is not deleted" in asks(world, "delete q")
        assert put(world, "a") == "EXISTS"
    for how in Crash:
        again = world.crash(how)
        assert put(again, "a") == "EXISTS" and again.items() == [b"x"]
    assert asks(world, "delete q") == "DELETED"
    for served in (world.crash(Crash.DROP), world):
        assert put(served, "a") == "STORED" and served.items() == [b"x"]


def test_keys_of_a_queue_whose_deletion_was_cut_off_are_forgotten_before_it() -> None:
    world = World()
    assert put(world, "a") == "STORED"
    for step in range(12):
        other = World(disk=world.disk.copy(), now_ms=world.now_ms)
        other.disk.stop_at = len(other.disk.log) + step
        heard = ""
        try:
            heard = asks(other, "delete q")
        except PowerCut:
            pass
        for how in Crash:
            again = other.crash(how)
            there = len(again.items())
            said = put(again, "a")
            # A deletion that a power cut undoes leaves the item without its key: it may be put twice, never lost.
            assert len(again.items()) == (there + 1 if said == "STORED" else 1), (step, there, said)
            assert not heard or (said == "STORED" and not there)


@pytest.mark.parametrize("config", ["", LIB, 'server.redo_log = "32KB"\n', 'default.sync_journal = "os"\n'])
def test_no_old_key_stands_for_an_item_of_a_queue_that_was_deleted_and_made_again(config: str) -> None:
    for step in range(30):
        world = World(config)
        assert put(world, "a") == "STORED"
        world.turn(1000)
        world.sync()
        world.disk.stop_at = len(world.disk.log) + step
        client = world.client()
        with suppress(PowerCut):
            client.sends(b"delete q\r\nset q/key=b 0 0 1\r\nb\r\nset q/key=a 0 0 1\r\na\r\n")
            for _ in range(4):
                world.turn()
                world.sync()
        for left in (world.disk.kill(), *([] if '"os"' in config else [world.disk.crash(how) for how in Crash])):
            again = World(config, left.copy(), world.now_ms + 1000)
            for key in ("a", "b"):
                assert put(again, key) in ("STORED", "EXISTS"), (step, key)
            assert len(again.items()) >= 2, (step, again.items())


def test_a_queue_with_keys_does_not_go_by_its_age() -> None:
    world = World('default.max_queue_age = "1s"\nserver.put_key_life = "10s"\n')
    assert put(world, "a") == "STORED" and "x" in asks(world, "get q")
    for _ in range(5):
        world.turn(1000)
        world.sync()
    assert put(world, "a") == "EXISTS"
    for _ in range(20):
        world.turn(1000)
        world.sync()
    assert world.broker.queues.find("q") is None


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOTDIR])
def test_a_log_of_keys_that_cannot_be_made_refuses_puts_with_keys_alone(code: int) -> None:
    world = World()
    world.disk.fail("make_folder", "keys", code)
    said = put(world, "a")
    assert said.startswith("SERVER_ERROR the keys of puts cannot be written: s/.staniel/keys: ")
    assert asks(world, "set q 0 0 1", "y") == "STORED"
    assert put(world, "a") == "STORED"


def test_numbers_of_puts_go_on_behind_those_that_are_forgotten_or_stored() -> None:
    for record, last in ((Forgotten("q", 7), 7), (PutsStored([3, 9]), 9), (PutsVoid([12]), 12), (PutsVoid([]), 0)):
        assert last_number(record) == last


def test_a_queue_in_memory_alone_remembers_keys_until_the_end() -> None:
    world = World("queues.q.keep_journal = false\n")
    assert put(world, "a") == "STORED" and put(world, "a") == "EXISTS"
    assert put(World(world.config, world.disk.kill(), world.now_ms), "a") == "STORED"


# how long keys are remembered


def test_a_key_is_remembered_for_its_life_also_over_restarts() -> None:
    world = World('server.put_key_life = "10s"\n')
    assert put(world, "a") == "STORED"
    world.turn(9000)
    assert put(world, "a") == "EXISTS"
    early = World(world.config, world.disk.kill(), world.now_ms + 900)
    late = World(world.config, world.disk.kill(), world.now_ms + 1000)
    assert put(early, "a") == "EXISTS" and put(late, "a") == "STORED"
    world.turn(1000)
    assert put(world, "a") == "STORED" and put(world, "a") == "EXISTS"


def test_a_clock_that_was_set_back_between_two_runs_ends_no_life_early() -> None:
    world = World('server.put_key_life = "10s"\n')
    assert put(world, "a") == "STORED"
    back = World(world.config, world.disk.kill(), START_MS - 3_600_000)
    assert put(back, "a") == "EXISTS"
    back.turn(9999)
    assert put(back, "a") == "EXISTS"
    back.turn(1)
    assert put(back, "a") == "STORED"


def test_a_flood_of_keys_drops_the_oldest_and_is_told() -> None:
    world = World("server.max_put_keys = 3\n")
    for key in "abcd":
        assert put(world, key) == "STORED"
    assert [put(world, key) for key in "bcd"] == ["EXISTS"] * 3 and len(world.broker.put_keys) == 3
    assert "limit.reached" in world.events and world.broker.limits.counts["max_put_keys"] == 1
    again = World(world.config, world.disk.kill(), world.now_ms)
    assert [put(again, key) for key in "bcda"] == ["EXISTS"] * 3 + ["STORED"]
    client = world.client()
    client.sends(b"".join(b"set q/key=%d 0 0 1\r\nx\r\n" % number for number in range(40)))
    for _ in range(3):
        world.turn()
    settle(world)
    assert client.hears().split() == ["STORED"] * 40 and len(world.broker.put_keys) == 3
    assert not world.broker.put_keys._unfinished


@pytest.mark.parametrize("setting", ['put_key_life = "none"', "max_put_keys = 0"])
def test_keys_can_be_turned_off(setting: str) -> None:
    world = World(f"server.{setting}\n")
    assert put(world, "a").startswith("CLIENT_ERROR key= is not in use on this server") and not world.items()
    world.config = ""
    world.broker.reload(world.now_ms)
    assert put(world, "a") == "STORED"


def test_files_go_when_their_last_key_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_key_log, "FILE_BYTES", 1000)
    world = World('server.put_key_life = "100s"\n')
    for number in range(40):
        assert put(world, f"{number}") == "STORED"
        world.turn(1000)
    there = [name for name, _ in world.disk.list(KEYS)]
    assert len(there) > 5
    again = World(world.config, world.disk.kill(), world.now_ms)
    assert [put(again, f"{number}") for number in range(40)] == ["EXISTS"] * 40
    for _ in range(80):
        again.turn(1000)
    there = [name for name, _ in again.disk.list(KEYS)]
    assert put(again, "19") == "STORED" and put(again, "39") == "EXISTS"
    again.turn(100_000)
    for _ in range(len(there) + 2):
        again.turn(1000)
        settle(again)
    assert len(again.disk.list(KEYS)) == 1 and not len(again.broker.put_keys)


# the journal meanwhile


def test_a_journal_is_not_started_over_before_its_puts_are_noted() -> None:
    """Nor is it held back for good: puts with keys wait for what it has to do."""
    world = World("default.default_journal_size = 100\ndefault.max_memory_size = 200\n")
    client, reader = world.client(), world.client()
    heard: list[str] = []
    for number in range(60):
        client.sends(f"set q/key={number} 0 0 30\r\n{'x' * 30}\r\n".encode())
        reader.sends(b"get q\r\n" * 4)
        world.turn(1)
        if number % 3 == 2:
            world.sync()
            world.turn(1)
        heard += client.hears().split()
    for _ in range(20):
        world.turn(1)
        settle(world)
    heard += client.hears().split()
    log = world.broker.queues.by_name["q"].journal
    assert heard == ["STORED"] * 60 and log.rewrites > 3 and not log.open_transfers  # type: ignore[attr-defined]


def test_a_delete_waits_for_the_puts_before_it_and_comes_before_those_behind_it() -> None:
    world = World()
    one, two, three = world.client(), world.client(), world.client()
    one.sends(b"set q/key=a 0 0 1\r\nx\r\n")
    two.sends(b"delete q\r\n")
    three.sends(b"set q/key=a 0 0 1\r\ny\r\n")
    three.sends(b"set q/key=b 0 0 1\r\ny\r\n")
    for _ in range(6):
        world.turn()
        settle(world)
    assert (one.hears(), two.hears()) == ("STORED", "DELETED")
    assert three.hears() == "EXISTS STORED" and world.items() == [b"y"]


# files that cannot be read, or are lost


def test_keys_are_unclear_while_the_files_of_their_queue_cannot_be_read() -> None:
    world = World("")
    client = world.client().says("set q/key=a 0 0 1", "x")
    client.says("set r/key=a 0 0 1", "x")
    disk = world.disk.kill()
    disk.fail("read", "s/q", errno.EIO, times=1 << 30)
    again = World("", disk, world.now_ms + 1000)
    assert put(again, "a", queue="r") == "EXISTS"
    assert put(again, "a").startswith("SERVER_ERROR queue q is not available")
    disk._faults.clear()
    again.broker.reload(again.now_ms)
    again.turn()
    assert put(again, "a") == "EXISTS" and again.items() == [b"x"]
    third = World("", again.disk.crash(Crash.DROP), again.now_ms + 1000)
    assert put(third, "a") == "EXISTS" and not unfinished_work(third.disk, "s")


def test_lost_files_are_written_again() -> None:
    world = World()
    assert put(world, "a") == "STORED"
    client = world.client().says("set q/key=b 0 0 1", "x")
    world.disk.remove(f"{KEYS}/1")
    world.turn(LOOK_MS)
    assert "spool.remade" in world.events
    settle(world)
    assert client.hears() == "STORED" and put(world, "c") == "STORED"
    for disk in (world.disk.kill(), world.disk.crash(Crash.DROP)):
        again = World("", disk, world.now_ms + 1000)
        assert [put(again, key) for key in "abc"] == ["EXISTS"] * 3


def test_a_flipped_bit_is_mended_and_a_lost_line_is_told() -> None:
    world = World()
    assert [put(world, key) for key in "abc"] == ["STORED"] * 3
    data = world.disk.read(f"{KEYS}/1", 0, 1 << 20)
    for flips, lost in ((1, 0), (9, 1)):
        bent = bytearray(data)
        for at in range(flips):
            bent[20 + at] ^= 0x05
            bent[20 + at] ^= 0x04 if flips == 1 else 0
        disk = world.disk.kill()
        disk.remove(f"{KEYS}/1")
        file = disk.append(f"{KEYS}/1")
        file.write(bytes(bent))
        file.close()
        again = World("", disk, world.now_ms + 1000)
        (told,) = again.reported("put_keys.damaged")
        assert (told["mended"], told["lost"]) == (1 - lost, lost)
        assert [put(again, key) for key in "bc"] == ["EXISTS"] * 2
        assert put(again, "a") == ("STORED" if lost else "EXISTS")


def test_a_failed_sync_of_the_keys_ends_the_server_before_any_answer() -> None:
    world = World()
    assert put(world, "a") == "STORED"
    world.disk.fail("sync", "/keys", errno.EIO)
    client = world.client()
    with pytest.raises(JournalFailure):
        client.says("set q/key=b 0 0 1", "x")
    assert client.hears() == ""
    again = World("", world.disk.kill(), world.now_ms + 1000)
    assert put(again, "a") == "EXISTS" and put(again, "b") == "STORED" and len(again.items()) == 2


def test_unfinished_puts_are_unfinished_work_of_their_queue() -> None:
    world = World()
    assert put(world, "a") == "STORED" and not unfinished_work(world.disk, "s")
    world.client().says("set r+x/key=b 0 0 1", "x")
    found = [Unfinished(Work.PUT_KEYS, KEYS, "r")]
    assert unfinished_work(world.disk.kill(), "s") == found
    assert unfinished_in(world.disk.kill(), "s", "r+x") == found and not unfinished_in(world.disk.kill(), "s", "q")


# the lines


LINES: dict[str, KeyedPut | PutsStored | PutsVoid | Forgotten] = {
    "a put": KeyedPut(1, "q", "a", 0, 22, 3, 4, 5),
    "a put of odd names": KeyedPut(1 << 40, "q\udcff", '\x01\xff"\\/', 1 << 70, 22, -3, 4, 5),
    "stored": PutsStored([1, 2]),
    "void": PutsVoid([3]),
    "forgotten": Forgotten("q\udcff", 7),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_read_as_it_was_written(name: str) -> None:
    line = encode(LINES[name])
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and decode(line[:-1]) == LINES[name]
    assert all(decode(line[:at]) is None for at in range(len(line) - 1))


def test_records_add_up() -> None:
    puts = [KeyedPut(number, "qr"[number % 2], f"{number}", 0, 0, 0, 0, 0) for number in range(1, 7)]
    records = [*puts[:4], PutsStored([1, 2]), PutsVoid([3]), Forgotten("r", 4), *puts[4:], PutsStored([5])]
    assert replayed(records) == ([puts[1], puts[4]], [puts[3], puts[5]])
