"""What two checkpoints say of a segment is what its bytes say: random histories of a queue that rotates, packs,
rewrites.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.kestrel.derived_effect import checkpoint_of, effect_of, effect_of_state, follow
from staniel.journal.kestrel.effect import NOTHING, SegmentEffect, apply, merge
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.replay import Replay
from staniel.journal.kestrel.segments import LogSegment
from staniel.queues.checkpoint import Checkpoint
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from tests.support.slices import result_of
from tests.support.world import World

CONFIG = """
default.sync_journal = "os"
default.max_memory_size = 400
default.max_journal_size = 1500
default.default_journal_size = 600
default.min_journal_compact_delay = "5ms"
default.journal_dialect = "{dialect}"
{more}
"""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 90), st.sampled_from([0, 0, 7]), st.sampled_from([0, 0, 0, 30])),
        st.tuples(st.just("put"), st.integers(0, 90), st.just(0), st.just(0)),
        st.tuples(st.just("burst"), st.integers(1, 12)),
        st.tuples(st.just("take"), st.integers(1, 8)),
        st.tuples(st.just("open"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["confirm", "abort", "abort"]), st.integers(0, 5)),
        st.tuples(st.just("turn"), st.sampled_from([0, 1, 20])),
        st.tuples(st.sampled_from(["seal", "seal", "flush", "rewrite"])),
    ),
    min_size=10,
    max_size=90,
)
MORE = st.sampled_from(["", 'default.retry_delay = "10ms"', 'default.expire_to_queue = "late"'])
DIALECTS = st.sampled_from(["documents", "kestrel-2.4"])
Steps = list[tuple[str, *tuple[int, ...]]]


class History:
    """Queue `q` of a server whose files are small."""

    def __init__(self, dialect: str, more: str, disk: Disk | None = None) -> None:
        self.world = World(CONFIG.format(dialect=dialect, more=more), disk)
        self.put_count = 0
        self.adopt()

    def adopt(self) -> None:
        """The world is another one now; a power loss under "os" may have left none of the queue."""
        if "q" not in self.world.broker.queues.by_name:
            self.world.client().puts("first")
        self.queue = self.world.broker.queues.by_name["q"]
        assert isinstance(self.queue.journal, Log)
        self.log = self.queue.journal

    def run(self, steps: Steps) -> None:
        for name, *numbers in steps:
            getattr(self, name)(*numbers)
        self.turn(0)

    def put(self, size: int, flags: int, lives_ms: int) -> None:
        self.put_count += 1
        now_ms = self.world.now_ms
        data = (b"%d." % self.put_count).ljust(size, b"x")
        self.queue.add(Item(data, now_ms, now_ms + lives_ms if lives_ms else 0, flags), now_ms)

    def burst(self, count: int) -> None:
        for _ in range(count):
            self.put(60, 0, 0)
        self.turn(0)

    def take(self, count: int) -> None:
        for _ in range(count):
            self.queue.remove_head(self.world.now_ms)

    def open(self, count: int) -> None:
        for _ in range(count):
            self.queue.open(self.world.now_ms)

    def confirm(self, which: int) -> None:
        if self.queue.open_reads:
            self.queue.confirm(list(self.queue.open_reads.values())[which % len(self.queue.open_reads)])

    def abort(self, which: int) -> None:
        if self.queue.open_reads:
            taken = list(self.queue.open_reads.values())[which % len(self.queue.open_reads)]
            self.queue.abort(taken, self.world.now_ms)

    def flush(self) -> None:
        self.queue.flush()

    def turn(self, ms: int) -> None:
        self.world.turn(ms)
        self.world.sync()

    def seal(self) -> None:
        self.log.seal_wanted = True
        self.world.broker.group.ask_for_sync(self.log)
        self.turn(1)

    def rewrite(self) -> None:
        while self.log.pending_bytes:
            self.turn(1)
        assert self.world.broker.maintenance.rewrite(self.queue, self.world.now_ms)

    def bytes_of(self, segment: LogSegment) -> bytes:
        return self.world.disk.read(self.log.segments.path(segment), 0, 1 << 30)


Numbers = tuple[list[int], dict[int, int], int]


def numbers_of(checkpoint: Checkpoint, counter: int) -> Numbers:
    """The line and the open reads, as numbers of items in the order of adding."""
    return [*checkpoint.heads, *range(checkpoint.left, checkpoint.end)], checkpoint.open, counter


def told_by(whole: SegmentEffect) -> Numbers:
    state = apply(whole)
    line = [symbol.number for symbol in state.front] + list(range(state.taken, state.added))
    return line, {xid: symbol.number for xid, symbol in state.opens.items()}, state.counter


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, dialect=DIALECTS, more=MORE)
def test_what_two_marks_say_of_a_file_is_what_its_bytes_say(steps: Steps, dialect: str, more: str) -> None:
    history = History(dialect, more)
    history.run(steps)
    replay = Replay(0)
    whole, checkpoint, counter = NOTHING, Checkpoint(0, 0), 0
    for segment in history.log.segments.sealed:
        data = history.bytes_of(segment)
        replay.begin_file()
        assert replay.consume(data, 0) == len(data)
        effect = result_of(effect_of(segment))
        assert effect is not None and segment.checkpoint is not None
        read = replay.checkpoint()
        whole = merge(whole, effect)
        assert told_by(whole) == numbers_of(read, replay.counter)
        assert (whole.added_bytes, whole.added_expiring) == (read.added_bytes, read.added_expiring)
        after = segment.checkpoint
        known = list(zip(after.ids, after.deliveries, strict=True))
        opens = dict(zip(after.xids, known, strict=False))
        checkpoint = follow(checkpoint, counter, effect, after.last_id, opens, known[len(opens) :])
        counter = segment.counter
        assert numbers_of(checkpoint, counter) == numbers_of(read, replay.counter)
        assert (
            numbers_of(checkpoint_of(whole), counter) == told_by(whole) == told_by(effect_of_state(checkpoint, counter))
        )
        assert (checkpoint.added_bytes, checkpoint.added_expiring) == (read.added_bytes, read.added_expiring)
