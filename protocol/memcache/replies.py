"""The replies of the memcache protocol as bytes, in each of the two dialects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from staniel.protocol import escaping
from staniel.protocol.memcache.item_reply import ITEM_END, append_item
from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.memo import remember

MetaValues = Mapping[bytes, int | bytes]
_NO_VALUES: MetaValues = {}


def _wire(text: object) -> bytes:
    """Encode a text of a reply. A line end in it would end the reply too early, and some clients read only ASCII."""
    return escaping.ascii_line(str(text)).encode()


class Replies:
    """The replies of the MEMCACHED dialect, each with its line end."""

    stored = b"STORED\r\n"
    not_stored = b"NOT_STORED\r\n"
    exists = b"EXISTS\r\n"
    end = b"END\r\n"
    deleted = b"DELETED\r\n"
    not_found = b"NOT_FOUND\r\n"
    flushed_all = b"OK\r\n"
    ok = b"OK\r\n"
    touched = b"TOUCHED\r\n"
    meta_noop = b"MN\r\n"
    meta_miss = b"EN\r\n"
    error = b"ERROR\r\n"

    def value(self, get: Get, data: bytes, flags: int, item_id: int) -> bytes:
        """Return one item, without END: the requested key, `flags`, the length in bytes, and for `gets` the
        item's id.
        """
        if get.with_id:
            return b"VALUE %b %d %d %d\r\n%b\r\n" % (get.key, flags, len(data), item_id, data)
        return b"".join((self._head(get, flags, len(data)), data, b"\r\n"))

    def append_item(self, out: list[bytes], get: Get, data: bytes, flags: int, item_id: int) -> None:
        """Append the whole reply to a get of one key to `out`: what `value` returns and END, with `data` uncopied."""
        append_item(out, get, data, flags, item_id)

    def value_in_pieces(self, get: Get, data: bytes, flags: int, item_id: int) -> list[bytes]:
        """Return what `value` returns in pieces, with `data` uncopied."""
        return [self._head_of(get, flags, len(data), item_id), data, b"\r\n"]

    def _head_of(self, get: Get, flags: int, size: int, item_id: int) -> bytes:
        if get.with_id:
            return b"VALUE %b %d %d %d\r\n" % (get.key, flags, size, item_id)
        return self._head(get, flags, size)

    def _head(self, get: Get, flags: int, size: int) -> bytes:
        return b"VALUE %b %d %d\r\n" % (get.key, flags, size)

    def client_error(self, why: str) -> bytes:
        return b"CLIENT_ERROR %b\r\n" % _wire(why)

    def server_error(self, why: str) -> bytes:
        return b"SERVER_ERROR %b\r\n" % _wire(why)

    def version(self, text: str) -> bytes:
        return b"VERSION %b\r\n" % _wire(text)

    def stat(self, name: str, value: object) -> bytes:
        return b"STAT %b %b\r\n" % (escaping.ascii_word(name).encode(), escaping.ascii_text(str(value)).encode())

    def block(self, name: str, values: Sequence[tuple[str, object]]) -> bytes:
        """Return the values of one queue: `queue 'NAME' {`, a line for each, `}`. Kestrel writes two blanks for
        no values.
        """
        lines = [f"{key}={self._line(str(value))}" for key, value in values] or [""]
        text = "".join(f"  {line}\r\n" for line in lines)
        return f"queue '{self._name(name)}' {{\r\n{text}}}\r\n".encode("latin-1", "replace")

    def _name(self, name: str) -> str:
        return escaping.ascii_word(name)

    def _line(self, text: str) -> str:
        return escaping.ascii_text(text)

    def number(self, n: int) -> bytes:
        return b"%d\r\n" % n

    def reloaded(self, later: str) -> bytes:
        """Return the reply to a reload. `later` has the changed keys that only a restart applies; empty if none
        changed.
        """
        more = f" Only a restart takes over: {later}" if later else ""
        return f"Reloaded config.{self._line(more)}\r\n".encode()

    def moved(self, n: int) -> bytes:
        return b"MOVED %d\r\n" % n

    def meta(self, code: bytes, meta: Meta, values: MetaValues = _NO_VALUES, data: bytes | None = None) -> bytes:
        """Return the reply to a meta command: its code, the requested flags, and the item if there is one.

        `values` has an item's figures by flag, bytes as they are sent; a flag without a value is left out.
        """
        head = self._meta_head(code, meta, values, None if data is None else len(data))
        return head if data is None else b"%b%b\r\n" % (head, data)

    def meta_in_pieces(self, code: bytes, meta: Meta, values: MetaValues, data: bytes) -> list[bytes]:
        """Return what `meta` returns in pieces, with `data` uncopied."""
        return [self._meta_head(code, meta, values, len(data)), data, b"\r\n"]

    def _meta_head(self, code: bytes, meta: Meta, values: MetaValues, size: int | None) -> bytes:
        words = [code] if size is None else [code, b"%d" % size]
        for word in meta.shown:
            flag = word[:1]
            if flag == b"O":
                words.append(word)
            elif flag == b"k":
                words.append(b"k%b b" % meta.key if meta.base64 else b"k%b" % meta.key)
            elif flag in values:
                value = values[flag]
                words.append(b"%b%b" % (flag, value) if isinstance(value, bytes) else b"%b%d" % (flag, value))
        return b" ".join(words) + b"\r\n"


_kestrel_heads: dict[tuple[str, int], bytes] = {}  # by queue and length; a queue's name is short


def _kestrel_head(queue: str, size: int) -> bytes:
    key = queue, size
    head = _kestrel_heads.get(key)
    if head is None:
        head = b"VALUE %b 0 %d\r\n" % (queue.encode("latin-1", "replace"), size)
        remember(_kestrel_heads, key, head)
    return head


class KestrelReplies(Replies):
    """The replies of Kestrel 2.4: a delete always succeeds, errors give no reason, items have neither flags nor ids."""

    not_found = Replies.deleted
    flushed_all = b"Flushed all queues.\r\n"

    def value(self, get: Get, data: bytes, flags: int, item_id: int) -> bytes:
        """Return one item, without END: the bare queue name and flags 0, whatever the client requested and set."""
        return b"".join((self._head(get, 0, len(data)), data, b"\r\n"))

    def append_item(self, out: list[bytes], get: Get, data: bytes, flags: int, item_id: int) -> None:
        out += (_kestrel_head(get.queue, len(data)), data, ITEM_END)

    def _head_of(self, get: Get, flags: int, size: int, item_id: int) -> bytes:
        return self._head(get, flags, size)

    def _head(self, get: Get, flags: int, size: int) -> bytes:
        return _kestrel_head(get.queue, size)

    def stat(self, name: str, value: object) -> bytes:
        return f"STAT {escaping.word(name)} {escaping.line(str(value))}\r\n".encode("latin-1", "replace")

    def _name(self, name: str) -> str:
        return escaping.word(name)

    def _line(self, text: str) -> str:
        return escaping.line(text)

    def reloaded(self, later: str) -> bytes:
        return b"Reloaded config.\r\n"

    def client_error(self, why: str) -> bytes:
        return b"CLIENT_ERROR\r\n"

    def server_error(self, why: str) -> bytes:
        return b"SERVER_ERROR\r\n"


MEMCACHED = Replies()
_REPLIES: dict[Dialect, Replies] = {Dialect.MEMCACHED: MEMCACHED, Dialect.KESTREL: KestrelReplies()}


def replies_for(dialect: Dialect) -> Replies:
    """Return the one instance of a dialect."""
    return _REPLIES[dialect]
