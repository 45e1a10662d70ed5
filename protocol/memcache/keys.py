"""The key of a read: a queue's name and, after slashes, how to read it (`jobs/t=500/open`).

Source: Kestrel 2.4's docs/guide.md. The broker checks the names of queues, except the empty one.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.words import INT32_MAX, INT32_MIN, integer, queue_name, text

SOME_MAX = 1000
"""The most items that one `n=` may ask for; a reply's bytes are limited too."""

ALSO = b"/also="
QUEUES_MAX = 64
"""The most queues that one read may name: as many keys as a line is served at once."""

ID_MAX = 2**64 - 1
PUT_KEY = b"/key="
PUT_KEY_BYTES_MAX = 250
"""The length of the longest key of memcached."""
PUT_DELAY = b"/delay="
DELAY_MS_MAX = 366 * 86_400_000  # a year

_FORBIDDEN = (
    (frozenset({b"peek", b"open"}), "peek and open exclude each other"),
    (frozenset({b"peek", b"close"}), "peek and close exclude each other"),
    (frozenset({b"abort", b"open"}), "abort and open exclude each other"),
    (frozenset({b"abort", b"close"}), "abort and close exclude each other"),
    (frozenset({b"peek", b"abort"}), "peek and abort exclude each other"),
)


def fetches(*, open: bool, close: bool, abort: bool) -> bool:
    """Tell whether a read with these options asks for an item. An abort, and a close without an open, only end an open
    read. Such a read does not wait.
    """
    return not abort and (open or not close)


def parse_key(key: bytes, with_id: bool = False) -> Get | str:
    """Return the read that `key` asks for, or why it is refused.

    Options come in any order and are case-sensitive; unknown and empty ones are ignored and the last `t=`
    (milliseconds) counts. `wait_ms` is 0 if the read does not fetch an item, see `fetches`.
    """
    name, *options = key.split(b"/")
    if not name:
        return "the queue name is empty"
    wait_ms: int | None = 0
    for option in options:
        if option.startswith(b"t="):
            wait_ms = integer(option[2:], INT32_MIN, INT32_MAX)
            if wait_ms is None:
                return "t= needs a number of milliseconds"
    names = frozenset(options)
    for pair, why in _FORBIDDEN:
        if pair <= names:
            return why
    opens, closes, aborts = b"open" in names, b"close" in names, b"abort" in names
    return Get(
        key=key,
        queue=queue_name(name),
        wait_ms=wait_ms if wait_ms is not None and fetches(open=opens, close=closes, abort=aborts) else 0,
        open=opens,
        close=closes,
        abort=aborts,
        peek=b"peek" in names,
        with_id=with_id,
    )


def parse_some(key: bytes) -> int | str | None:
    """Return how many items `key` asks for with its last `n=`, or why that is refused; None if it has no `n=`. Kestrel
    ignores the option.
    """
    if b"/n=" not in key:
        return None
    _, *options = key.split(b"/")
    word = [option for option in options if option.startswith(b"n=")][-1]
    count = integer(word[2:], 1, SOME_MAX)
    if count is None:
        return f"n= needs a number of items from 1 to {SOME_MAX}"
    if count > 1 and b"peek" in options:
        return "peek shows one item, n= does not go with it"
    return count


def parse_first(key: bytes, with_id: bool = False) -> tuple[Get, ...] | str | None:
    """Return the reads that a key such as `jobs/t=500/open/also=mail,logs` asks for, of which the first that finds an
    item counts, or why that is refused; None if the key has no `also=`. The key of each is its queue's name.
    """
    if ALSO not in key:
        return None
    get = parse_key(key, with_id)
    if isinstance(get, str):
        return get
    first, *options = key.split(b"/")
    lists = [option[5:] for option in options if option.startswith(b"also=")]
    names = [first, *lists[0].split(b",")]
    if len(lists) > 1:
        return "also= is given once, with all further queues: also=b,c"
    if b"" in names:
        return "also= needs the names of queues, with a comma between two"
    if len(names) > QUEUES_MAX:
        return f"a get reads at most {QUEUES_MAX} queues, and also= makes it {len(names)}"
    if len(set(names)) < len(names):
        return f"also= names {text(next(name for name in names if names.count(name) > 1))} twice"
    if get.close or get.abort:
        return "also= takes an item, close and abort do not go with it: name the read by id="
    if parse_some(key) not in (None, 1):
        return "also= gives one item, n= above 1 does not go with it"
    return tuple(Get(name, queue_name(name), get.wait_ms, get.open, peek=get.peek, with_id=with_id) for name in names)


class PutOptions(Struct, frozen=True, gc=False):
    """The name of a put's queue, its idempotency key, "" without one, and its delay."""

    name: bytes
    key: str
    delay_ms: int


def parse_put_options(word: bytes) -> PutOptions | str:
    """Return what the key of a put says, as in `jobs/delay=5000/key=order-17`, or why that is refused. The idempotency
    key comes last: it is all that follows, slashes included.
    """
    name, key_mark, key = word.partition(PUT_KEY)
    if key_mark and not 1 <= len(key) <= PUT_KEY_BYTES_MAX:
        return f"key= needs a key of 1 to {PUT_KEY_BYTES_MAX} bytes"
    name, delay_mark, number = name.partition(PUT_DELAY)
    delay_ms = integer(number, 0, DELAY_MS_MAX) if delay_mark else 0
    if delay_ms is None:
        return f"delay= needs a number of milliseconds from 0 to {DELAY_MS_MAX}"
    return PutOptions(name, text(key), delay_ms)


class OpenItem(Struct, frozen=True, gc=False):
    """An open read by the id of its item, from a key such as `jobs/id=115343360`; `abort`: it is to be handed back."""

    queue: str
    id: int
    abort: bool


def parse_id(key: bytes) -> OpenItem | str | None:
    """Return the open read that `key` names with its `id=`, or why that is refused; None if it has no `id=`.

    Unlike the key of a read, such a key ends a read, so an option that is not understood is refused.
    """
    if b"/id=" not in key:
        return None
    name, *options = key.split(b"/")
    if not name:
        return "the queue name is empty"
    ids = [option for option in options if option.startswith(b"id=")]
    item_id = integer(ids[0][3:], 0, ID_MAX)
    if item_id is None or len(ids) > 1:
        return "id= needs the id of one item, as gets shows it"
    other_options = set(options) - set(ids)
    if not other_options <= {b"abort"}:
        return f"only abort goes with id=, not {text(min(other_options - {b'abort'})) or 'an empty option'}"
    return OpenItem(queue_name(name), item_id, b"abort" in other_options)
