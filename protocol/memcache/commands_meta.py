"""The meta commands `ms`, `mg`, `md`, `mn`, `me` and `ma`, as far as a queue can serve them: words become requests.

Source: memcached 1.6's doc/protocol.txt, "Meta Commands". A flag that would change an item in place (compare, vivify,
recache, modes of storing) is refused, never ignored.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable

from msgspec import structs

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.fields import block_too_large, expiry, hang_up, refuse
from staniel.protocol.memcache.item_requests import Get, SetHead
from staniel.protocol.memcache.keys import (
    OpenItem,
    fetches,
    parse_first,
    parse_id,
    parse_key,
    parse_put_options,
    parse_some,
)
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.memcache.requests import (
    MetaDebug,
    MetaDelete,
    MetaGet,
    MetaGetFirst,
    MetaNoop,
    MetaOpenItem,
    Parsed,
    RefusedBlock,
)
from staniel.protocol.requests import Invalid
from staniel.protocol.words import INT32_MAX, UINT32_MAX, integer, text

OPAQUE_BYTES_MAX = 32
"""The limit of memcached."""

OPEN_NEEDS_V = "open needs v, or the item would be lost to the client"

_SET_FLAGS = frozenset(b"bcFIkMOqsST")
_GET_FLAGS = frozenset(b"bcdfhklOpqstuv")
_DELETE_FLAGS = frozenset(b"bkOq")
_SHOWN = frozenset(b"cdfhklOpst")
_SET_MODES = (b"", b"S", b"s", b"SET", b"set", b"Set")


def parse_set(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `ms <key> <length> <flags>*`, which a block follows. I and S are ignored."""
    if len(words) < 3:
        return refuse("ms needs a key and a length")
    length = integer(words[2], 0, INT32_MAX)
    if length is None:
        return hang_up("the length is not a number of bytes")
    meta = _meta(words[1], words[3:], _SET_FLAGS)
    if isinstance(meta, str):
        return RefusedBlock(length, refuse(meta))
    head = _head(length, meta, words[3:])
    if isinstance(head, str):
        return RefusedBlock(length, refuse(head))
    if length > limits.item_bytes_max:
        return RefusedBlock(length, refuse(block_too_large(length, limits)))
    return head


def _head(length: int, meta: Meta, words: list[bytes]) -> SetHead | str:
    name = _key(meta)
    flags = integer(_token(words, b"F", b"0"), 0, UINT32_MAX)
    until = expiry(_token(words, b"T", b"0"))
    if not name:
        return "error decoding key"
    if flags is None:
        return "the flags are not a 32-bit number"
    if isinstance(until, str):
        return until
    if _token(words, b"M") not in _SET_MODES:
        return "a queue has no mode but set"
    if b"/" in name:
        options = parse_put_options(name)
        if isinstance(options, str):
            return options
        name, meta = options.name, structs.replace(meta, put_key=options.key, delay_ms=options.delay_ms)
    return SetHead(length, text(name), flags, until.ttl_ms, until.expires_ms, noreply=False, meta=meta)


def parse_get(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `mg <key> <flags>*`: with `v` it does what `get` does, without it it inspects the head, or the item that
    the key names with `id=`. u is ignored.
    """
    if len(words) < 2:
        return refuse("mg needs a key")
    meta = _meta(words[1], words[2:], _GET_FLAGS)
    if isinstance(meta, str):
        return refuse(meta)
    key = _key(meta)
    if not key:
        return refuse("error decoding key")
    named = parse_id(key)
    if named is not None:
        return _open_item(named, meta, has_value=_has(words[2:], b"v"))
    count = parse_some(key)
    if isinstance(count, str):
        return refuse(count)
    if count is not None and count > 1:
        return refuse("mg answers with one item, n= above 1 does not go with it")
    first = parse_first(key)
    if first is not None:
        return refuse(first) if isinstance(first, str) else _get_first(first, meta, has_value=_has(words[2:], b"v"))
    get = parse_key(key)
    if isinstance(get, str):
        return refuse(get)
    if _has(words[2:], b"v"):
        return MetaGet(get, meta, value=True)
    if get.open:
        return refuse(OPEN_NEEDS_V)
    is_peek = fetches(open=get.open, close=get.close, abort=get.abort)
    return MetaGet(Get(get.key, get.queue, get.wait_ms, peek=True) if is_peek else get, meta, value=False)


def _get_first(gets: tuple[Get, ...], meta: Meta, *, has_value: bool) -> MetaGetFirst | Invalid:
    if has_value:
        return MetaGetFirst(gets, meta, value=True)
    if gets[0].open:
        return refuse(OPEN_NEEDS_V)
    looks = [Get(get.key, get.queue, get.wait_ms, peek=True) for get in gets]
    return MetaGetFirst(tuple(looks), meta, value=False)


def _open_item(named: OpenItem | str, meta: Meta, *, has_value: bool) -> MetaOpenItem | Invalid:
    if isinstance(named, str):
        return refuse(named)
    if named.abort:
        return refuse("mg inspects a read, use touch to abort one")
    if has_value:
        return refuse("mg with id= shows figures of an open read, leave out v")
    return MetaOpenItem(named.queue, named.id, meta)


def parse_delete(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `md <key> <flags>*`, which deletes the whole queue."""
    if len(words) < 2:
        return refuse("md needs a key")
    meta = _meta(words[1], words[2:], _DELETE_FLAGS)
    if isinstance(meta, str):
        return refuse(meta)
    name = _key(meta)
    return MetaDelete(text(name), meta) if name else refuse("error decoding key")


def parse_noop(words: list[bytes], limits: Limits) -> Parsed:
    return MetaNoop()


def parse_debug(words: list[bytes], limits: Limits) -> Parsed:
    """Parse `me <key>`, which asks for internals of a cached item; a queue has none."""
    return MetaDebug() if len(words) > 1 else refuse("me needs a key")


def parse_arithmetic(words: list[bytes], limits: Limits) -> Invalid:
    return refuse("ma is not supported by a queue")


def _meta(key: bytes, words: list[bytes], known_flags: frozenset[int]) -> Meta | str:
    """Return what the reply must contain, or what is wrong with the flags."""
    letters = [word[0] for word in words]
    if len(set(letters)) < len(letters):
        return "duplicate flag"
    unknown = set(letters) - known_flags
    if unknown:
        return f"invalid flag, or none for a queue: {_spelled(unknown)}"
    if len(_token(words, b"O")) > OPAQUE_BYTES_MAX:
        return "opaque token too long"
    shown = tuple(word for word in words if word[0] in _SHOWN)
    return Meta(key=key, base64=_has(words, b"b"), quiet=_has(words, b"q"), shown=shown)


def _spelled(letters: Iterable[int]) -> str:
    return " ".join(sorted(chr(letter) for letter in letters))


def _has(words: list[bytes], flag: bytes) -> bool:
    return any(word.startswith(flag) for word in words)


def _token(words: list[bytes], flag: bytes, default: bytes = b"") -> bytes:
    """Return the text behind the letter of a flag; `default` without that flag."""
    return next((word[1:] for word in words if word.startswith(flag)), default)


def _key(meta: Meta) -> bytes:
    """Return the key, decoded if it is base64; empty if it is not valid base64."""
    if not meta.base64:
        return meta.key
    try:
        return binascii.a2b_base64(meta.key, strict_mode=True)
    except binascii.Error:
        return b""
