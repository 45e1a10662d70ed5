"""The items that a Kestrel journal's records add, in order, and nothing else of what they say.

Knows where records end. Refuses to know the state of a queue: read-behind needs only what comes next.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.journal.errors import Corrupt, NeedMore, Truncated
from staniel.journal.kestrel.encoder import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
)
from staniel.journal.kestrel.replay import ADDX_BODY, BLOCK_MIN, FLAGS_MASK, Replay
from staniel.queues.item import LOST_MS, Item

ONE_BYTE = (REMOVE, REMOVE_TENTATIVE)
LOST = Item(b"", 0, LOST_MS)


def is_stand_in(item: Item) -> bool:
    """Whether a summary put it in the place of an item that is removed: no client puts items at the moment 0."""
    return not item.added_ms and not item.data and not item.expires_ms


class ItemReader(Replay):
    """Reads on where it stopped, as long as it is given the bytes behind. `stand_ins`: how many of a summary it has
    found and made lost items of; None: they are taken as they are.
    """

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.stand_ins: int | None = None
        self._readers: dict[int, Callable[[bytes, int, int], int]] = {
            ADD: self._add,
            ADD_XID: self._add_xid,
            SAVE_XID: self._save_xid,
            STATE_DUMP: self._eight,
            UNREMOVE: self._pass_over,
            CONFIRM_REMOVE: self._pass_over,
            REMOVE_TENTATIVE_XID: self._pass_over,
        }

    def read(self, data: bytes, at: int, rest_bytes: int, items: list[Item], count_max: int) -> int:
        """Append at most `count_max` items to `items`, from byte `at` of `data` on; the byte where it stopped.

        `rest_bytes` of the file follow `data`. Raises Corrupt with the byte in `data` if a record is damaged; `items`
        holds those before it.
        """
        end, count_max = len(data), count_max + len(items)
        unpack, readers, saves = ADDX_BODY.unpack_from, self._readers, self._saves
        self._rest_bytes = rest_bytes
        fresh = self.line.fresh
        try:
            while at < end and len(items) < count_max:
                op = data[at]
                if op == ADDX:
                    if end - at < 21:
                        raise NeedMore
                    size, added_ms, expires_ms = unpack(data, at + 1)
                    stop = at + 5 + size
                    if size < BLOCK_MIN or stop > end:
                        self._block(size, BLOCK_MIN, at + 5, end)
                    flags = self._flags() if saves else 0
                    if size == BLOCK_MIN and self.stand_ins is not None and not (added_ms or expires_ms):
                        self.stand_ins += 1
                        expires_ms = LOST_MS
                    items.append(Item(data[at + 21 : stop], added_ms, expires_ms, flags))
                    at = stop
                elif op in ONE_BYTE:
                    saves.clear()
                    at += 1
                elif op in readers:
                    at = readers[op](data, at + 1, end)
                    if fresh:
                        items.append(fresh.popleft())
                else:
                    raise Corrupt(f"unknown opcode {op}")
        except NeedMore:
            if not rest_bytes:
                raise Truncated(at=at) from None
        except Corrupt as error:
            error.at = at
            raise
        return at

    def _flags(self) -> int:
        # Begun in the middle of a file, the counter before the pair is not known; two SAVE_XID in front of an item have
        # no other meaning.
        saves = self._saves
        flags = saves[-2][1] & FLAGS_MASK if len(saves) >= 2 else 0
        saves.clear()
        return flags

    def _pass_over(self, data: bytes, at: int, end: int) -> int:
        if end - at < 4:
            raise NeedMore
        self._saves.clear()
        return at + 4
