"""What the server says, as bytes: one `Replies` a dialect.

Knows the words and line ends of the memcache protocol's answers. Refuses to know when which is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staniel.protocol import escaping as printed
from staniel.protocol.memcache.requests import Dialect, Get, Meta

HEADS_MAX = 4096
HEAD_BYTES_MAX = 512
"""Together 5 MB at worst."""

_NO_FACTS: Mapping[bytes, int] = {}


def _wire(text: object) -> bytes:
    """A line end inside would put the client out of step, and some clients read nothing but ASCII."""
    return printed.ascii_line(str(text)).encode()


class Replies:
    """The answers of the MEMCACHED dialect, each with its line end."""

    stored = b"STORED\r\n"
    not_stored = b"NOT_STORED\r\n"
    end = b"END\r\n"
    deleted = b"DELETED\r\n"
    not_found = b"NOT_FOUND\r\n"
    flushed_all = b"OK\r\n"
    ok = b"OK\r\n"
    touched = b"TOUCHED\r\n"
    meta_noop = b"MN\r\n"
    meta_miss = b"EN\r\n"
    error = b"ERROR\r\n"

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, int, int], bytes] = {}  # by key, flags and length

    def value(self, get: Get, data: bytes, flags: int, item_id: int) -> bytes:
        """One item, without END: the key as asked for, `flags`, the length in bytes, and for `gets` the item's id."""
        if get.with_id:
            return b"VALUE %b %d %d %d\r\n%b\r\n" % (get.key, flags, len(data), item_id, data)
        return b"".join((self._head(get, flags, len(data)), data, b"\r\n"))

    def item(self, get: Get, data: bytes, flags: int, item_id: int) -> bytes:
        """The whole answer to a get of one key: `value` and END."""
        if get.with_id:
            return self.value(get, data, flags, item_id) + self.end
        head = self._heads.get((get.key, flags, len(data))) or self._remember(get, flags, len(data))
        return b"".join((head, data, b"\r\nEND\r\n"))

    def item_in_pieces(self, get: Get, data: bytes, flags: int, item_id: int) -> list[bytes]:
        """The same as `item`, with `data` as it is: a long one is not copied."""
        return [self._head_of(get, flags, len(data), item_id), data, b"\r\nEND\r\n"]

    def value_in_pieces(self, get: Get, data: bytes, flags: int, item_id: int) -> list[bytes]:
        """The same as `value`, with `data` as it is."""
        return [self._head_of(get, flags, len(data), item_id), data, b"\r\n"]

    def _head_of(self, get: Get, flags: int, size: int, item_id: int) -> bytes:
        if get.with_id:
            return b"VALUE %b %d %d %d\r\n" % (get.key, flags, size, item_id)
        return self._head(get, flags, size)

    def _remember(self, get: Get, flags: int, size: int) -> bytes:
        head = self._head(get, flags, size)
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        if len(head) <= HEAD_BYTES_MAX:
            self._heads[get.key, flags, size] = head
        return head

    def _head(self, get: Get, flags: int, size: int) -> bytes:
        return b"VALUE %b %d %d\r\n" % (get.key, flags, size)

    def client_error(self, why: str) -> bytes:
        return b"CLIENT_ERROR %b\r\n" % _wire(why)

    def server_error(self, why: str) -> bytes:
        return b"SERVER_ERROR %b\r\n" % _wire(why)

    def version(self, text: str) -> bytes:
        return b"VERSION %b\r\n" % _wire(text)

    def stat(self, name: str, value: object) -> bytes:
        return b"STAT %b %b\r\n" % (printed.ascii_word(name).encode(), printed.ascii_text(str(value)).encode())

    def block(self, name: str, values: Sequence[tuple[str, object]]) -> bytes:
        """What is known of one queue: `queue 'NAME' {`, a line a value, `}`. Kestrel writes two blanks for nothing."""
        lines = [f"{key}={self._printed(str(value))}" for key, value in values] or [""]
        text = "".join(f"  {line}\r\n" for line in lines)
        return f"queue '{self._name(name)}' {{\r\n{text}}}\r\n".encode("latin-1", "replace")

    def _name(self, name: str) -> str:
        return printed.ascii_word(name)

    def _printed(self, text: str) -> str:
        return printed.ascii_text(text)

    def number(self, n: int) -> bytes:
        return b"%d\r\n" % n

    def reloaded(self, later: str) -> bytes:
        """`later`: the keys that only a restart takes over; empty if none have changed."""
        more = f" Only a restart takes over: {later}" if later else ""
        return f"Reloaded config.{self._printed(more)}\r\n".encode()

    def moved(self, n: int) -> bytes:
        return b"MOVED %d\r\n" % n

    def meta(self, code: bytes, meta: Meta, facts: Mapping[bytes, int] = _NO_FACTS, data: bytes | None = None) -> bytes:
        """The answer to a meta command: its code, the flags that the client asked for, the item if there is one.

        `facts` are what there is to say of an item, by flag; a flag without its fact is left out.
        """
        head = self._meta_head(code, meta, facts, None if data is None else len(data))
        return head if data is None else b"%b%b\r\n" % (head, data)

    def meta_in_pieces(self, code: bytes, meta: Meta, facts: Mapping[bytes, int], data: bytes) -> list[bytes]:
        """The same as `meta`, with `data` as it is."""
        return [self._meta_head(code, meta, facts, len(data)), data, b"\r\n"]

    def _meta_head(self, code: bytes, meta: Meta, facts: Mapping[bytes, int], size: int | None) -> bytes:
        words = [code] if size is None else [code, b"%d" % size]
        for word in meta.shown:
            flag = word[:1]
            if flag == b"O":
                words.append(word)
            elif flag == b"k":
                words.append(b"k%b b" % meta.key if meta.base64 else b"k%b" % meta.key)
            elif flag in facts:
                words.append(b"%b%d" % (flag, facts[flag]))
        return b" ".join(words) + b"\r\n"


class KestrelReplies(Replies):
    """The answers of Kestrel 2.4: a delete always succeeds, errors give no reason, items have neither flags nor ids."""

    not_found = Replies.deleted
    flushed_all = b"Flushed all queues.\r\n"

    def value(self, get: Get, data: bytes, flags: int, item_id: int) -> bytes:
        """One item, without END: the bare queue name and flags 0, whatever was asked for and set."""
        return b"".join((self._head(get, 0, len(data)), data, b"\r\n"))

    def _head_of(self, get: Get, flags: int, size: int, item_id: int) -> bytes:
        return self._head(get, flags, size)

    def _head(self, get: Get, flags: int, size: int) -> bytes:
        return b"VALUE %b 0 %d\r\n" % (get.queue.encode("latin-1", "replace"), size)

    def stat(self, name: str, value: object) -> bytes:
        return f"STAT {printed.word(name)} {printed.line(str(value))}\r\n".encode("latin-1", "replace")

    def _name(self, name: str) -> str:
        return printed.word(name)

    def _printed(self, text: str) -> str:
        return printed.line(text)

    def reloaded(self, later: str) -> bytes:
        return b"Reloaded config.\r\n"

    def client_error(self, why: str) -> bytes:
        return b"CLIENT_ERROR\r\n"

    def server_error(self, why: str) -> bytes:
        return b"SERVER_ERROR\r\n"


_REPLIES: dict[Dialect, Replies] = {Dialect.MEMCACHED: Replies(), Dialect.KESTREL: KestrelReplies()}


def replies_for(dialect: Dialect) -> Replies:
    """The one instance of a dialect."""
    return _REPLIES[dialect]
