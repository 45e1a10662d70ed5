"""The large requests of one client, each kind as a loop that runs until it is told to stop.

`abuse.py` measures the cost from outside. A client that is refused or disconnected continues with its next attempt, as
an attacker would.
"""

from __future__ import annotations

import itertools
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from msgspec import Struct

CONFIG = """
[default]
sync_journal = "1s"
[text]
port = 0
[workq]
port = 0
[thrift]
port = 0
"""
ANSWER_SECONDS_MAX = 300.0
LINE_BYTES_MAX = 15_000
DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
BRIEF_SECONDS = 0.002


class Target(Struct, frozen=True):
    """The server's ports, and the size of an attack: 1.0 is the original size, less in a test."""

    memcache: int
    text: int
    workq: int
    thrift: int
    scale: float = 1.0

    def sized(self, count: int) -> int:
        return max(1, int(count * self.scale))


Over = threading.Event
Work = Callable[[Target, Over], None]


class Attack(Struct, frozen=True):
    """An attack. `prepare` runs before the measurement."""

    name: str
    work: Work
    prepare: Callable[[Target], None] | None = None


def names(length: int) -> Iterator[bytes]:
    """Return each name of this length once."""
    return (bytes(digits) for digits in itertools.product(DIGITS, repeat=length))


class Asker:
    """A client that sends a request and waits for the end of the reply; it reconnects after each disconnection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock: socket.socket | None = None

    def ask(self, request: bytes, end: bytes, count: int = 1) -> None:
        """Send a request, and wait for `count` replies. An error counts as a reply."""
        try:
            if self._sock is None:
                self._sock = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_SECONDS_MAX)
            self._sock.sendall(request)
            tail, seen = b"", 0
            while seen < count:
                data = self._sock.recv(1 << 18)
                if not data:
                    raise ConnectionResetError
                heard = tail + data
                seen += heard.count(end) or (b"ERROR" in heard and heard.endswith(b"\n"))
                tail = heard[1 - len(end) :] if len(end) > 1 else b""
        except (ConnectionError, BrokenPipeError):
            self.close()
            time.sleep(BRIEF_SECONDS)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def repeated(port: int, over: Over, requests: Iterator[tuple[bytes, int]], end: bytes) -> None:
    """Send each request, with its number of replies, one after the other."""
    asker = Asker(port)
    try:
        for request, count in requests:
            if over.is_set():
                return
            asker.ask(request, end, count)
    finally:
        asker.close()


# reads and dumps


def get_lines(target: Target) -> Iterator[bytes]:
    fresh = names(3) if target.scale == 1.0 else names(2)
    fresh = itertools.chain(fresh, names(4))
    while batch := list(itertools.islice(fresh, target.sized(3600))):
        while sum(map(len, batch)) + len(batch) > LINE_BYTES_MAX:
            batch = batch[: len(batch) * 9 // 10]
        yield b"get " + b" ".join(batch) + b"\r\n"


def multi_get(target: Target, over: Over) -> None:
    repeated(target.memcache, over, ((line, 1) for line in get_lines(target)), b"END\r\n")


def many_multi_gets(target: Target, over: Over) -> None:
    lines, at_once = get_lines(target), target.sized(32)
    bursts = iter(lambda: list(itertools.islice(lines, at_once)), [])
    repeated(target.memcache, over, ((b"".join(burst), len(burst)) for burst in bursts), b"END\r\n")


def dump_names(target: Target, over: Over) -> None:
    line = b"dump_config" + b" d" * target.sized(7_500) + b"\r\n"
    repeated(target.memcache, over, itertools.repeat((line, 1)), b"\nEND\r\n")


def make_one(target: Target) -> None:
    put(target, [b"d"])


def make_many(target: Target) -> None:
    put(target, list(itertools.islice(names(3), target.sized(10_000))))


def put(target: Target, queues: Sequence[bytes], data: bytes = b"x") -> None:
    with socket.create_connection(("127.0.0.1", target.memcache), timeout=ANSWER_SECONDS_MAX) as sock:
        for at in range(0, len(queues), 100):
            some = queues[at : at + 100]
            sock.sendall(b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data) for name in some))
            left = len(b"STORED\r\n") * len(some)
            while left:
                more = len(sock.recv(left))
                if not more:
                    raise ConnectionResetError("hung up on while it was prepared")
                left -= more


def dump_all(target: Target, over: Over) -> None:
    repeated(target.memcache, over, itertools.repeat((b"dump_config\r\n", 1)), b"\nEND\r\n")


# puts, calls, leases


def text_put(target: Target, over: Over) -> None:
    request = b"put flood:\n" + b"x\n" * target.sized(1_000_000) + b"\n"
    repeated(target.text, over, itertools.repeat((request, 1)), b"\n")


def thrift_list(target: Target, over: Over) -> None:
    """Send a call with an unknown field, a list of empty structs."""
    count = target.sized(262_000)
    call = b"\x80\x01\x00\x01\x00\x00\x00\x0bget_version\x00\x00\x00\x07"
    call += b"\x0f\x00\x09\x0c" + count.to_bytes(4, "big") + bytes(count) + b"\x00"
    frame = len(call).to_bytes(4, "big") + call
    repeated(target.thrift, over, itertools.repeat((frame, 1)), b"\x80\x01\x00")


def leases(target: Target, over: Over) -> None:
    lines = itertools.cycle(lease_lines(target.sized(150_000)))
    repeated(target.workq, over, ((line, 1) for line in lines), b"\r\n")


@cache
def lease_lines(count: int) -> list[bytes]:
    """Make lines before the attack: making them takes longer than refusing them, and on the polite clients' core."""
    fresh = names(5)
    return [b"lease " + b" ".join(itertools.islice(fresh, count)) + b" 0\r\n" for _ in range(20)]


def make_lines(target: Target) -> None:
    lease_lines(target.sized(150_000))


def children(target: Target, over: Over) -> None:
    """Make children of the polite clients' own queue. Once they exist, the polite client pays for them."""
    keys = [b"polite-0+%x" % number for number in range(target.sized(1_200))]
    repeated(target.memcache, over, itertools.repeat((b"get " + b" ".join(keys) + b"\r\n", 1)), b"END\r\n")


# what is held


def hold(target: Target, over: Over, clients: int, first: bytes, then: bytes, then_bytes: int) -> None:
    """Connect clients that send `first`, then `then` repeatedly while the server takes it, at most `then_bytes`, and
    read nothing. A dropped client reconnects.
    """
    poller = select.poll()
    socks: dict[int, tuple[socket.socket, int]] = {}
    chunk = then * max(1, (1 << 16) // len(then))
    try:
        while not over.is_set():
            while len(socks) < clients:
                sock = socket.create_connection(("127.0.0.1", target.memcache), timeout=ANSWER_SECONDS_MAX)
                sock.sendall(first)
                sock.setblocking(False)
                socks[sock.fileno()] = sock, then_bytes
                poller.register(sock, select.POLLOUT | select.POLLRDHUP)
            for fd, mask in poller.poll(10):
                sock, left = socks[fd]
                try:
                    if mask & ~select.POLLOUT:
                        raise ConnectionResetError
                    left -= sock.send(chunk[:left])
                    socks[fd] = sock, left
                    if not left:
                        poller.modify(fd, select.POLLRDHUP)
                except ConnectionError:
                    poller.unregister(fd)
                    sock.close()
                    del socks[fd]
                except BlockingIOError:
                    pass
    except ConnectionError:
        pass  # while it connected; the server is judged by what it keeps
    finally:
        for sock, _ in socks.values():
            sock.close()


def newlines(target: Target, over: Over) -> None:
    hold(target, over, 20, b"get nothing/t=600000\r\n", b"\n", target.sized(10 << 20))


def bodies(target: Target, over: Over) -> None:
    first = b"set large 0 0 %d\r\n" % (16_000_000)
    hold(target, over, target.sized(100), first, b"x", target.sized(15_900_000))


def make_large(target: Target) -> None:
    put(target, [b"large"], bytes(target.sized(4 << 20)))


def unread(target: Target, over: Over) -> None:
    hold(target, over, target.sized(300), b"", b"get large/peek\r\n", 160_000)


ATTACKS = (
    Attack("get of 3,600 new names", multi_get),
    Attack("32 such gets in one send", many_multi_gets),
    Attack("dump_config of 7,500 names", dump_names, make_one),
    Attack("dump_config of 10,000 queues", dump_all, make_many),
    Attack("text put of 1,000,000 items", text_put),
    Attack("10 MB of newlines behind a wait, 20 clients", newlines),
    Attack("thrift list of 262,000 structs", thrift_list),
    Attack("workq lease of 150,000 names", leases, make_lines),
    Attack("1,200 children of a polite queue", children),
    Attack("unfinished bodies of 100 clients", bodies),
    Attack("unread replies of 300 clients", unread, make_large),
)
