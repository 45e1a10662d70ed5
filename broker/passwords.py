"""Passwords as `scrypt$LN$R$P$SALT$KEY`, and their comparison, which takes a twentieth of a second on purpose.

The comparison runs in the thread of background tasks (hashlib releases the interpreter lock meanwhile), one at a time,
with a few waiting. A correct pair is remembered by a keyed digest, so that a client that connects again does not wait.
Source of the parameters: RFC 7914, and OWASP's password storage cheat sheet.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

LN, R, P = 14, 8, 1  # 16 MB, and 50 ms
LN_MAX, R_MAX, P_MAX = 17, 16, 4  # a line of the configuration must not take minutes, or all memory
SALT_BYTES, KEY_BYTES = 16, 32
PASSWORD_BYTES_MAX = 1024
CHECKS_MAX = 64  # that may wait; further ones are refused: at 20 a second these take three seconds
REMEMBERED_MAX = 4096
SAMPLE_MAX = 16  # hashes that a refusal may imitate: checking each takes 9 us, while all clients wait


class PasswordHash(Struct, frozen=True):
    """A parsed hash."""

    ln: int
    r: int
    p: int
    salt: bytes
    key: bytes

    def matches(self, password: bytes) -> bool:
        """Tell whether `password` is right. Takes 50 ms or more, and 128 * r * 2**ln bytes."""
        return hmac.compare_digest(_scrypt(password, self.salt, self.ln, self.r, self.p), self.key)


def hash_password(password: bytes, salt: bytes) -> str:
    """Return the hash of `password` for the configuration."""
    key = _scrypt(password, salt, LN, R, P)
    return f"scrypt${LN}${R}${P}${b64encode(salt).decode()}${b64encode(key).decode()}"


def parse_hash(text: str) -> PasswordHash:
    """Parse a hash. Raises ValueError, whose text does not contain the hash."""
    words = text.split("$")
    if len(words) != 6 or words[0] != "scrypt" or not all(word.isascii() and word.isdigit() for word in words[1:4]):
        raise ValueError("not a hash of scrypt")
    ln, r, p = (int(word[:4]) for word in words[1:4])
    if not (1 <= ln <= LN_MAX and 1 <= r <= R_MAX and 1 <= p <= P_MAX):
        raise ValueError("parameters beyond what is sensible")
    if ln >= 16 * r:
        raise ValueError("parameters that scrypt does not take")  # RFC 7914, 2: N is less than 2^(128 * r / 8)
    try:
        salt, key = b64decode(words[4], validate=True), b64decode(words[5], validate=True)
    except (Error, ValueError):
        raise ValueError("not a hash of scrypt") from None
    if len(salt) < SALT_BYTES:
        raise ValueError(f"a salt of {len(salt)} bytes, at least {SALT_BYTES} are needed")
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes, it must have {KEY_BYTES}")
    return PasswordHash(ln, r, p, salt, key)


def _scrypt(password: bytes, salt: bytes, ln: int, r: int, p: int) -> bytes:
    memory = 128 * r * ((1 << ln) + p + 2) + (1 << 20)
    return hashlib.scrypt(password, salt=salt, n=1 << ln, r=r, p=p, maxmem=memory, dklen=KEY_BYTES)


NOBODYS = PasswordHash(LN, R, P, bytes(SALT_BYTES), bytes(KEY_BYTES))


def sample(hashes: list[PasswordHash]) -> list[PasswordHash]:
    """Return the hashes that `stand_in` chooses from if there are thousands of users: some of them, and one of each
    cost. The choice is by key, so it is the same each time and still as good as random.
    """
    chosen: list[PasswordHash] = []
    costs = set[tuple[int, int, int]]()
    is_one_cost = len({(known.ln, known.r, known.p) for known in hashes}) == 1
    for known in sorted(hashes, key=lambda known: known.key):
        cost = (known.ln, known.r, known.p)
        if cost not in costs or (len(chosen) < SAMPLE_MAX and not is_one_cost):
            chosen.append(known)
            costs.add(cost)
    return chosen


def stand_in(name: str, hashes: list[PasswordHash]) -> PasswordHash:
    """Return a hash for a name that no user has, or whose user has no password. The time of a refusal must not
    distinguish such names from those in `hashes`, so it costs as much as one of them: for a name always the same one,
    also after a restart.
    """
    if not hashes:
        return NOBODYS
    like = max(hashes, key=lambda known: hmac.digest(known.key, name.encode(), "sha256"))
    return PasswordHash(like.ln, like.r, like.p, NOBODYS.salt, NOBODYS.key)


class PasswordCheck:
    """A background task that compares a password. `then(is_right, now_ms)` is called in the hub's thread. `is_awaited`
    is called in the other thread, so it only reads a field. A password that no client waits for any more is not
    compared, and delays no other login.
    """

    def __init__(
        self,
        wanted: PasswordHash,
        password: bytes,
        then: Callable[[bool, int], None],
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        self._wanted = wanted
        self._password = password
        self._then = then
        self._is_awaited = is_awaited
        self._is_right = False

    def run(self) -> None:
        if not self._is_awaited():
            return
        with suppress(MemoryError, ValueError):  # out of memory (OpenSSL's ValueError) counts as wrong
            self._is_right = self._wanted.matches(self._password)

    def on_done(self, now_ms: int) -> None:
        self._then(self._is_right, now_ms)


class Remembered:
    """Pairs of name and password that were right, as digests under a key that only this process knows."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._digests: dict[bytes, None] = {}

    def knows(self, name: str, wanted: PasswordHash, password: bytes) -> bool:
        return self._digest(name, wanted, password) in self._digests

    def learn(self, name: str, wanted: PasswordHash, password: bytes) -> None:
        if len(self._digests) >= REMEMBERED_MAX:
            self._digests.clear()
        self._digests[self._digest(name, wanted, password)] = None

    def forget(self) -> None:
        """Forget all pairs, because the users have changed."""
        self._digests.clear()

    def _digest(self, name: str, wanted: PasswordHash, password: bytes) -> bytes:
        return hmac.digest(self._key, b"\0".join((name.encode(), wanted.key, password)), "sha256")
