"""A simulated etcd: one key, transactions that compare its revision, answers and watches that come late or never."""

from __future__ import annotations

from typing import NamedTuple

from staniel.cluster.effects import ReadKey, Transact
from staniel.cluster.key import Key, decode_key, encode_key


class Request(NamedTuple):
    """A question on its way to etcd. `life`: of the process that asked."""

    node: int
    life: int
    effect: ReadKey | Transact


class Reply(NamedTuple):
    """An answer on its way back. `taken`: whether a transaction took effect; None for a read."""

    node: int
    life: int
    ask: int
    taken: bool | None
    key: Key | None
    revision: int


class Etcd:
    """The key and what is on its way. `revision` is the store's; the key's `mod_revision` is the one of its last
    change.
    """

    def __init__(self) -> None:
        self.value: bytes | None = None
        self._decoded: tuple[bytes, Key] = b"", Key(b"", 0, b"", "", ())
        self.mod_revision = 0
        self.revision = 1
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.watches: dict[int, list[tuple[Key, int]]] = {}
        self.past: list[tuple[bytes, int]] = []

    @property
    def key(self) -> Key | None:
        """The key as it is now."""
        if self.value is None:
            return None
        if self._decoded[0] != self.value:
            key = decode_key(self.value)
            assert isinstance(key, Key), key
            self._decoded = self.value, key
        return self._decoded[1]

    def handle(self, request: Request) -> None:
        """Carry out a request, and have its answer come back."""
        effect, taken = request.effect, None
        if isinstance(effect, Transact):
            taken = self.compares(effect)
            if taken:
                self.put(encode_key(effect.key))
        self.replies.append(Reply(request.node, request.life, effect.ask, taken, self.key, self.mod_revision))

    def compares(self, effect: Transact) -> bool:
        """Tell whether the comparison of a transaction holds."""
        return effect.revision == self.mod_revision

    def restart(self) -> None:
        """End the process by a power cut, and start it: no reply comes any more, each watch begins anew with the key as
        it is, and what was acknowledged is there.
        """
        self.requests.clear()
        self.replies.clear()
        key = self.key
        for name in self.watches:
            self.watches[name] = [(key, self.mod_revision)] if key is not None else []

    def lose_key(self) -> None:
        """Remove the key, as the end of a lease would, or an operator."""
        self.value, self.mod_revision = None, 0

    def put(self, value: bytes) -> None:
        """Change the key, and have the watches tell of it."""
        if self.value is not None:
            self.past.append((self.value, self.mod_revision))
        self.revision += 1
        self.value, self.mod_revision = value, self.revision
        for events in self.watches.values():
            key = self.key
            assert key is not None
            events.append((key, self.mod_revision))
