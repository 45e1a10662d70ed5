"""The workload of one seed: the requests of its clients, and the configuration, drawn from the given `Random`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from staniel.queues.names import family_of
from staniel.sim.crc_collisions import colliding_item
from staniel.sim.profiles import Profile
from staniel.sim.queues.conversation import Request, Want

PLAIN = ("a", "b", "c")
MEMORY = "m"
FURTHER = ("ey", "dd")  # queues for items that have already changed queues
ALIAS = "al"
SECOND_ALIAS = "am"
CHANGING = "z"  # sometimes a queue, sometimes an alias
STATIONS = ("v", "w")  # on the way to it; no alias leads to them: of equal items it were unknown which has left
FLAGS = (1, 2, 3, 7, 20, 2**31 - 1, 2**31, 2**32 - 1)
GROWING = 'queues.d.retry_delay = ["5ms", "60ms"]\nqueues.d.retry_jitter = 50'
ABSURD = 'queues.b.max_age = "9223372036854775807ms"\n'
AGED = "c"  # if the wall clock is set, this queue has a max_age, so all its items have a lifetime
EXPIRIES, MORTAL = (0, 0, 0, 0, 0, 1, -1), (0, 0, 1, 1, 1, 2, -1)


def journals_kept(memory_queues: Sequence[str], families: Sequence[str]) -> list[str]:
    """Return lines of the configuration file. A child has its parent's setting unless it has its own."""
    lines = [f'queues."{name}".keep_journal = false' for name in memory_queues]
    return lines + [f'queues."{name}".keep_journal = true' for name in families if name not in memory_queues]


class Workload:
    """The properties of one seed: which queues there are and what clients request of them."""

    def __init__(self, rng: Random, profile: Profile) -> None:
        self.profile = profile
        self.names = list(PLAIN)
        self.readers = list(PLAIN)
        if profile.fanout:
            self.names += ["f", "f+x"] + (["f+y"] if rng.random() < 0.5 else [])
            self.readers += ["f", "f+x", "f+y"]
        if profile.transfers:
            self.names += ["e", "d", "e", "d"]
            self.readers += ["e", "ex", "d", "d", "dl"]
        if profile.deliveries:
            self.names, self.readers = ["d"], ["d", "d", "d", "dl"]
        if profile.memory_queue and rng.random() < 0.3:
            self.names.append(MEMORY)
            self.readers.append(MEMORY)
        self.names += profile.families
        self.readers += profile.families
        self.streams = self._streams(rng)
        self.memory_queues = (MEMORY, *self._lapsed(rng))
        self.aliases = {ALIAS: tuple(rng.sample(PLAIN, 2))}
        self.names.append(ALIAS)
        if profile.aliased:
            self.aliases[SECOND_ALIAS] = (ALIAS, self.aliases[ALIAS][0])
            self.names += [SECOND_ALIAS, SECOND_ALIAS, CHANGING, CHANGING]
            self.readers += [CHANGING, CHANGING]
        self.redo_log = rng.choice(profile.redo_logs) if profile.redo_logs else ""
        self.count = 0

    def _streams(self, rng: Random) -> list[str]:
        """Return the queues that are stored with all their children in libkestrel's format, during the whole seed."""
        if not self.profile.streams:
            return []
        kestrels = {AGED} if self.profile.wall_steps else set()
        parents = sorted({family_of(name) for name in [*self.names, *self.readers, *FURTHER]} - kestrels)
        return [name for name in parents if rng.randrange(1000) < self.profile.streams]

    def _lapsed(self, rng: Random) -> list[str]:
        """Return the families that keep no journal, during the whole seed."""
        return [name for name in self.profile.families if rng.random() < 0.25] if self.profile.mixed else []

    def config(self, rng: Random) -> str:
        """Return a configuration file: a different one each time, with the same queues."""
        lines = [
            f'server.expiration_timer_frequency = "{rng.choice(("20ms", "100ms", "1s", "none"))}"',
            f'default.sync_journal = "{rng.choice(self.profile.policies)}"',
            *([f'server.redo_log = "{self.redo_log}"'] if self.redo_log else []),
            *self._sizes(rng),
            *journals_kept(self.memory_queues, self.profile.families if self.profile.mixed else ()),
        ]
        others = [name for name in ("a", "b", "f", "f+y", "ex", "dl", "e", "d") if rng.random() < 0.5]
        lines += [f'queues."{name}".sync_journal = "{rng.choice(self.profile.policies)}"' for name in others]
        for name in PLAIN:
            lines += self._limits(rng, name)
        if self.profile.transfers:
            lines += self._transfers(rng)
        if self.streams:
            lines += self._shared(rng)
        lines += [f"aliases.{name} = {json.dumps(targets)}" for name, targets in self.aliases.items()]
        if self.profile.aliased and rng.random() < 0.5:
            lines.append(f"aliases.{CHANGING} = {json.dumps(rng.sample(PLAIN, 2))}")
        return "\n".join(lines) + "\n"

    def _sizes(self, rng: Random) -> list[str]:
        """Return the settings for sealing, rewriting and reading back journals."""
        if self.profile.deliveries:
            return []
        busy = rng.randrange(1000) < self.profile.busy
        start_over = rng.choice((60, 200, 500, 5000))
        memory = rng.choice((60, 100, 150, 300) if busy else (100, 300, 1000, 100_000))
        total = rng.choice((150, 250, 400) if busy else (150, 400, 1500, 1_000_000))
        delay = rng.choice((0, 0, 5) if busy else (0, 30, 60_000))
        return [
            f"default.default_journal_size = {start_over}",
            f"default.max_memory_size = {memory}",
            f"default.max_journal_size = {total}",
            f"default.min_journal_compact_delay = {delay}",
        ]

    def _limits(self, rng: Random, name: str) -> list[str]:
        lines = []
        if rng.random() < (0.8 if self.profile.full_queues else 0.2):
            lines.append(f"queues.{name}.max_items = {rng.randrange(1, 8)}")
        if rng.random() < 0.15:
            lines.append(f"queues.{name}.max_size = {rng.randrange(10, 400)}")
        if lines and rng.random() < 0.5:
            lines.append(f"queues.{name}.discard_old_when_full = true")
        if name == AGED if self.profile.wall_steps else rng.random() < 0.15:
            lines.append(f'queues.{name}.max_age = "{rng.choice((20, 100, 1000))}ms"')
        if rng.random() < 0.25:
            lines.append(f'queues.{name}.open_transaction_timeout = "{rng.choice((10, 50, 500))}ms"')
        if rng.random() < 0.15:
            lines.append(f'queues.{name}.retry_delay = "{rng.choice((5, 40))}ms"')
        if rng.random() < 0.1:
            lines.append(f'queues.{name}.max_queue_age = "{rng.choice((100, 1000))}ms"')
        if rng.random() < 0.2:
            lines.append(f'queues.{name}.journal_dialect = "kestrel-2.4"')
        return lines

    def _shared(self, rng: Random) -> list[str]:
        lines = [f'queues.{name}.journal_format = "libkestrel"' for name in self.streams]
        if rng.random() < 0.3:
            lines.append('default.archive_path = "archive"')
        for name in self.profile.families:
            if rng.random() < 0.3:
                lines.append(f'queues."{name}".open_transaction_timeout = "{rng.choice((10, 50, 500))}ms"')
            if rng.random() < 0.15:
                lines.append(f'queues."{name}".max_items = {rng.randrange(2, 8)}')
                lines.append(f'queues."{name}".discard_old_when_full = {rng.choice(("true", "false"))}')
        return lines

    def _transfers(self, rng: Random) -> list[str]:
        lines = [
            'queues.e.expire_to_queue = "ex"',
            f'queues.e.max_age = "{rng.choice((15, 60, 500))}ms"',
            'queues.d.dead_letter_queue = "dl"',
            f"queues.d.max_deliveries = {rng.choice((1, 2, 3))}",
        ]
        if rng.random() < 0.4:
            lines.append(f'queues.d.open_transaction_timeout = "{rng.choice((10, 50))}ms"')
        if rng.random() < 0.3:
            lines.append(rng.choice(('queues.d.retry_delay = "15ms"', GROWING)))
        if rng.random() < 0.3:
            lines += ['queues.ex.expire_to_queue = "ey"', 'queues.ex.max_age = "30ms"']
        if rng.random() < 0.3:
            lines += ["queues.dl.max_deliveries = 1", 'queues.dl.dead_letter_queue = "dd"']
        return lines

    def next_requests(self, rng: Random, is_text: bool, now_ms: int) -> list[Request]:
        """Return one request, or a short pipeline of them."""
        if self.profile.crc_collisions and not is_text and rng.randrange(1000) < self.profile.crc_collisions:
            return self._colliding_items(rng)
        if self.profile.turnabout and not is_text and rng.randrange(1000) < self.profile.turnabout:
            return self._turnabout(rng)
        if self.profile.torn_groups and not is_text and rng.randrange(1000) < 200:
            return rng.choice((self._put_and_moved, self._put_and_died, self._put_and_expired))(rng)
        if self.profile.aliased and not is_text and rng.randrange(1000) < 60:
            return self._sent_to_an_alias(rng)
        count = 1 if rng.random() < 0.75 else rng.randrange(2, 6)
        return [self._request(rng, is_text, now_ms) for _ in range(count)]

    def _request(self, rng: Random, is_text: bool, now_ms: int) -> Request:
        if self.profile.reload and not is_text and rng.randrange(1000) < self.profile.reload:
            return Request(Want.RELOAD, "", b"reload\r\n")
        if rng.randrange(1000) < self.profile.operator:
            return self._operator(rng, is_text)
        if rng.random() < 0.45:
            return self._put(rng, is_text, now_ms)
        return self._text_read(rng) if is_text else self._read(rng)

    def _data(self, rng: Random) -> bytes:
        self.count += 1
        data = b"%d" % self.count
        if rng.randrange(1000) < self.profile.large_items:
            return data + b"." * rng.choice((200, 520, 1100))
        return data + b"." * rng.choice((0, 0, 1, 7))

    def _colliding_items(self, rng: Random) -> list[Request]:
        """Return several colliding items in one packet; perhaps one is moved elsewhere at once."""
        name = rng.choice(("a", "b", "e", "d", "ex", "dl"))
        size = rng.choice((12, 12, 1300))
        requests = [self._colliding_item(name, size) for _ in range(rng.choice((2, 2, 3)))]
        if rng.random() < 0.5:
            target = rng.choice([other for other in ("a", "b", "e", "d", "ex", "dl") if other != name])
            requests.append(Request(Want.MOVE, name, f"move {name} {target} 1\r\n".encode(), target=target))
        return requests

    def _colliding_item(self, name: str, size: int) -> Request:
        self.count += 1
        data = colliding_item(self.count, size)
        return Request(Want.PUT, name, b"set %b 0 0 %d\r\n%b\r\n" % (name.encode(), len(data), data), (data,))

    def _put_and_moved(self, rng: Random) -> list[Request]:
        """Return an item with flags, and a move of items out of its queue, in one batch."""
        name, target = rng.sample(("a", "b", "d", "dl"), 2)
        data = self._data(rng)
        line = b"set %b %d 0 %d\r\n%b\r\n" % (name.encode(), rng.choice(FLAGS), len(data), data)
        move = Request(Want.MOVE, name, f"move {name} {target} {rng.choice((1, 3))}\r\n".encode(), target=target)
        return [Request(Want.PUT, name, line, (data,)), move]

    def _put_and_died(self, rng: Random) -> list[Request]:
        """Return items with flags, and aborted reads of items before them, in one batch. An item that was delivered
        often enough becomes a dead letter.
        """
        ends = [Request(Want.OPEN, "d", b"get d/open\r\n"), Request(Want.ABORT, "d", b"get d/abort\r\n")]
        return [*self._flagged_items("d", rng), *ends]

    def _put_and_expired(self, rng: Random) -> list[Request]:
        """Return items with flags, and a read that may find items before them expired, in one batch."""
        return [*self._flagged_items("e", rng), Request(Want.PEEK, "e", b"get e/peek\r\n")]

    def _flagged_items(self, name: str, rng: Random) -> list[Request]:
        """Return puts of one or two items whose flags look like numbers of transactions."""
        puts = []
        for _ in range(rng.choice((1, 2))):
            data = self._data(rng)
            line = b"set %b %d 0 %d\r\n%b\r\n" % (name.encode(), rng.choice(FLAGS), len(data), data)
            puts.append(Request(Want.PUT, name, line, (data,)))
        return puts

    def _turnabout(self, rng: Random) -> list[Request]:
        """Return two puts with a reload between them, in one batch."""
        name = rng.choice(self.names)
        puts = []
        for _ in range(2):
            data = self._data(rng)
            line = b"set %b 0 0 %d\r\n%b\r\n" % (name.encode(), len(data), data)
            puts.append(Request(Want.PUT, name, line, (data,)))
        return [puts[0], Request(Want.RELOAD, "", b"reload\r\n"), puts[1]]

    def _sent_to_an_alias(self, rng: Random) -> list[Request]:
        """Return items that are still to be transferred when a reload comes."""
        one, other = STATIONS
        data = self._data(rng)
        line = b"set %b 0 0 %d\r\n%b\r\n" % (one.encode(), len(data), data)
        moves = [
            Request(Want.MOVE, source, f"move {source} {target}\r\n".encode(), target=target)
            for source, target in ((one, other), (other, CHANGING))
        ]
        return [Request(Want.PUT, one, line, (data,)), *moves, Request(Want.RELOAD, "", b"reload\r\n")]

    def absurd(self, rng: Random) -> str:
        """Return a line of a configuration that every server rejects; mostly ""."""
        return ABSURD if self.profile.ranges and rng.random() < 0.5 else ""

    def _put(self, rng: Random, is_text: bool, now_ms: int) -> Request:
        name = rng.choice(self.names)
        if is_text:
            items = tuple(self._data(rng) for _ in range(rng.choice((1, 1, 1, 2, 4))))
            ttl = rng.choice((b"", b"", b"", b" 30"))
            line = b"put %b%b:\n%b\n\n" % (name.encode(), ttl, b"\n".join(items))
            return Request(Want.TEXT_PUT, name, line, items)
        data = self._data(rng)
        flags, expiry = (
            rng.choice((0, 0, 0, 7, 2**32 - 1)),
            rng.choice(MORTAL if self.profile.full_queues else EXPIRIES),
        )
        if self.profile.flagged and rng.randrange(1000) < self.profile.flagged:
            flags = rng.choice(FLAGS)
        if self.profile.wall_steps:
            dates = [now_ms // 1000 + ahead for ahead in (-1, 2, 30, 7200)] if name != AGED else []
            expiry = rng.choice((0, 1, 2, 30, 3600, *dates))
        is_over = self.profile.ranges and now_ms % 1000 == 0 and rng.random() < 0.3
        if is_over:
            expiry = -now_ms // 1000
        noreply = rng.random() < 0.08
        word = b" noreply" if noreply else b""
        line = b"set %b %d %d %d%b\r\n%b\r\n" % (name.encode(), flags, expiry, len(data), word, data)
        return Request(Want.PUT, name, line, (data,), silent=noreply, is_over=is_over)

    def _read(self, rng: Random) -> Request:
        name = rng.choice(self.readers)
        wait = rng.choice(("", "", "", "/t=20", "/t=300"))
        want, key = rng.choice(
            (
                (Want.GET, f"{name}{wait}"),
                (Want.OPEN, f"{name}{wait}/open"),
                (Want.OPEN, f"{name}{wait}/open"),
                (Want.CLOSE_OPEN, f"{name}{wait}/close/open"),
                (Want.CLOSE_OPEN, f"{name}/close/open"),
                (Want.CLOSE, f"{name}/close"),
                (Want.CLOSE, f"{name}/close"),
                (Want.CLOSE, f"{name}/close"),
                (Want.ABORT, f"{name}/abort"),
                (Want.PEEK, f"{name}{wait}/peek"),
                (Want.MANY, ""),
                (Want.SOME, f"{name}{wait}/n=3"),
                (Want.SOME, f"{name}/open/n=4"),
                (Want.MONITOR, name),
                (Want.CONFIRM, name),
                (Want.TOUCH, name),
            )
        )
        if want is Want.MANY:
            return self._many(rng)
        if want is Want.MONITOR:
            line = f"monitor {name} {rng.choice((0, 1))} {rng.randrange(1, 5)}\r\n"
            return Request(want, name, line.encode())
        if want is Want.CONFIRM:
            count = rng.choice((1, 1, 2, 3))
            return Request(want, name, b"confirm %b %d\r\n" % (name.encode(), count), count=count)
        if want is Want.TOUCH:
            return Request(want, name, b"touch %b 0\r\n" % name.encode())
        return Request(want, name, b"get %b\r\n" % key.encode(), opens=want is Want.SOME and "/open" in key)

    def _many(self, rng: Random) -> Request:
        names = rng.sample(sorted(set(self.readers)), 2)
        kinds = {
            Want.GET: "",
            Want.OPEN: "/open",
            Want.CLOSE_OPEN: "/close/open",
            Want.CLOSE: "/close",
            Want.ABORT: "/abort",
            Want.PEEK: "/peek",
        }
        keys = tuple((rng.choice(list(kinds)), name) for name in names)
        words = " ".join(f"{name}{kinds[want]}" for want, name in keys)
        return Request(Want.MANY, names[0], b"get %b\r\n" % words.encode(), keys=keys)

    def _text_read(self, rng: Random) -> Request:
        name = rng.choice(self.readers)
        wait = rng.choice(("", "", " 30"))
        want = rng.choice((Want.TEXT_GET,) * 4 + (Want.TEXT_PEEK, Want.TEXT_MONITOR, Want.TEXT_CONFIRM))
        if want is Want.TEXT_MONITOR:
            return Request(want, name, f"monitor {name} {rng.choice((5, 60))}\n".encode())
        if want is Want.TEXT_CONFIRM:
            return Request(want, name, f"confirm {name} 1\n".encode(), count=1)
        word = "get" if want is Want.TEXT_GET else "peek"
        return Request(want, name, f"{word} {name}{wait}\n".encode())

    def _operator(self, rng: Random, is_text: bool) -> Request:
        name = rng.choice(self.readers)
        end = "\n" if is_text else "\r\n"
        if is_text:
            word, want = rng.choice((("flush", Want.FLUSH), ("delete", Want.DELETE)))
            return Request(want, name, f"{word} {name}{end}".encode())
        want = rng.choice(
            (Want.FLUSH, Want.FLUSH_EXPIRED, Want.FLUSH_ALL, Want.DELETE, Want.MOVE, Want.MOVE)
            if rng.random() < 0.5
            else (Want.STATS, Want.STATS, Want.STATS, Want.PAUSE, Want.PAUSE, Want.STATUS, Want.RELOAD)
        )
        if want is Want.MOVE:
            target = rng.choice([reader for reader in self.readers if reader != name])
            count = rng.choice(("", " 1", " 3"))
            return Request(want, name, f"move {name} {target}{count}{end}".encode(), target=target)
        if want is Want.PAUSE:
            what = rng.choice(("pause", "resume", "resume"))
            return Request(want, name, f"{what} {name} {rng.choice(('gets', 'puts', 'all'))}{end}".encode())
        if want is Want.STATUS:
            status = rng.choice(("up", "up", "up", "readonly", "quiescent", "writeavoid"))
            return Request(want, "", f"status {status}{end}".encode())
        if want in (Want.STATS, Want.RELOAD, Want.FLUSH_ALL):
            return Request(want, "", f"{want.value}{end}".encode())
        return Request(want, name, f"{want.value} {name}{end}".encode())
