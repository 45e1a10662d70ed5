"""A stream over several spools: a stream of each, as one. Its offsets are {host: {queue: place}}.

Folders that a pattern matches later, and lines added to the file of hosts, join within a minute, from their first
record on. A spool that cannot be read ends the query, or with `ignoreUnreachable` keeps its offset until it can be read
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import TypeVar

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import CorruptJournal
from staniel.pipeline.lake.folders import FileVanished, folder
from staniel.pipeline.lake.watch import FolderWatch
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import (
    ALL,
    COUNTED,
    LOG,
    BatchDelay,
    JournalStream,
    Offset,
    PinnedPartition,
    ReadBudget,
    budget_of,
    default_limit,
    progress_of,
    read_pieces,
    shared,
    tasks_of,
)
from staniel.pipeline.sources.offsets import DataLoss
from staniel.pipeline.sources.planning import check_filled, no_queue
from staniel.pipeline.sources.spools import SpoolRef, SpoolUnreachable, list_of

LIST_S = 60.0  # how often patterns and the file of hosts are looked up
RETRY_S = 10.0  # how often a spool that cannot be read is tried
T = TypeVar("T")


class ReachedSpool(Struct):
    """A spool of the stream. `why` says why it cannot be read, "" if it can; `retry_s` is when it is tried again."""

    spool: SpoolRef
    stream: JournalStream
    why: str = ""
    retry_s: float = 0.0


class SpoolStreams(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over several spools. It lives in a process on the driver; `read` runs in tasks, on a copy."""

    def __init__(
        self, options: JournalOptions, columns: pa.Schema, form: str, clock: Callable[[], float] = monotonic
    ) -> None:
        options.check_stream()
        self.options = options
        self.columns = columns
        self._form = form
        self._clock = clock
        self._delay = BatchDelay(options, clock)
        self._watch: FolderWatch | None = None
        self._reached: dict[str, ReachedSpool] = {}
        self._listed_s: float | None = None
        self._is_bounded = False  # after prepareForTriggerAvailableNow no more spools join
        self._counted = 0

    def initialOffset(self) -> Offset:
        """Return the first offset. Raises SpoolUnreachable; ValueError for a queue that is in none of the spools."""
        names = {name for _, some in self._ask_each(lambda reached: self._queues_of(reached.spool)) for name in some}
        if unmet := self.options.queues.unmet(names):
            raise ValueError(no_queue(unmet[0], f"any of {len(self._reached)} spools", names))
        # The selected queues may all be in other spools, so each stream is asked without that check.
        return {host: begin for host, begin in self._ask_each(lambda reached: reached.stream.first_offset()) if begin}

    def _queues_of(self, spool: SpoolRef) -> set[str]:
        place = folder(spool.path)
        form, queues = list_segments(place, self._form)
        check_filled(place, self.options, form, queues)
        return set(queues)

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self.options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        budget = budget_of(self.options, limit, not self._is_bounded)
        if budget is not ALL and not self._is_bounded and self._delay.holds(start, self._count_on):
            return start
        end = self._end_of(start, budget)
        if end != start:
            self._delay.begin_batch()
        return end

    def _count_on(self, start: Offset) -> tuple[Offset, int]:
        return self._end_of(start, COUNTED), self._counted

    def _end_of(self, start: Offset, budget: ReadBudget) -> Offset:
        """Return where a batch from `start` ends; limits are shared among the spools as among queues."""
        self._check_present(start)
        limits: dict[str, ReadBudget] = {}
        if budget not in (ALL, COUNTED):
            sizes = dict(self._ask_each(lambda reached: reached.stream.unread(start.get(reached.spool.host, {}))))
            hosts, in_bytes = list(sizes), [size for size, _ in sizes.values()]
            in_files = [files for _, files in sizes.values()]
            shares = [shared(budget.bytes, in_bytes), shared(budget.records, in_bytes), shared(budget.files, in_files)]
            limits = {host: ReadBudget(*some) for host, some in zip(hosts, zip(*shares, strict=True), strict=True)}
        self._counted = 0

        def advance(reached: ReachedSpool) -> Offset:
            begin = start.get(reached.spool.host, {})
            share = limits.get(reached.spool.host, budget if not limits else None)
            end = begin if share is None else reached.stream.end_of(begin, share)
            self._counted += reached.stream.counted if share is not None else 0
            return end

        ends = {host: end for host, end in self._ask_each(advance) if end or host in start}
        return {**start, **ends}

    def _check_present(self, start: Offset) -> None:
        """Check that each spool that was read before is still there. Raises SpoolUnreachable."""
        self._list_spools()
        gone = [SpoolRef(host, host) for host in start if host not in self._reached]
        if gone and not self.options.ignores_unreachable:
            raise SpoolUnreachable(
                f"{list_of(gone)} was read before, and is no longer among the spools: was a host removed, or is a disk"
                " not mounted? ignoreUnreachable=true goes on without"
            )

    def prepareForTriggerAvailableNow(self) -> None:
        self._list_spools()
        self._is_bounded = True
        list(self._ask_each(lambda reached: reached.stream.prepareForTriggerAvailableNow()))

    def reportLatestOffset(self) -> Offset | None:
        """Return figures for the progress of a query, in place of an offset: nothing reads it back."""
        names = {
            f"{host}/{queue}": (host, queue)
            for host, reached in self._reached.items()
            for queue in reached.stream.unread_bytes
        }
        unread = {name: self._reached[host].stream.unread_bytes[queue] for name, (host, queue) in names.items()}
        unreachable = {host: reached.why for host, reached in self._reached.items() if reached.why}

        def lag(name: str) -> dict[str, int | None]:
            host, queue = names[name]
            return self._reached[host].stream.lag(queue)

        return progress_of(unread, lag, spools=len(self._reached), unreachable=unreachable)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan a batch. Raises SpoolUnreachable also with `ignoreUnreachable`, because its records are part of the
        batch, unless `failOnDataLoss` is false, too.
        """
        self._list_spools()
        pieces: list[PinnedPartition] = []
        for host, stop in end.items():
            begin = start.get(host, {})
            if stop == begin:
                continue
            try:
                pieces += self._pieces_of(host, begin, stop)
            except SpoolUnreachable as error:
                if not self.options.ignores_unreachable or self.options.fail_on_data_loss:
                    raise
                LOG.warning("%s: its part of a batch is lost", error)
        return tasks_of(pieces, self.options.min_partitions)

    def _pieces_of(self, host: str, begin: Offset, stop: Offset) -> list[PinnedPartition]:
        reached = self._reached.get(host)
        if reached is None:
            raise SpoolUnreachable(f"{host} is in a batch, and no longer among the spools")
        try:
            return reached.stream.all_pieces(begin, stop)
        except UNREADABLE as error:
            raise SpoolUnreachable(f"{reached.spool.describe()}: {error}") from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition, self.columns)

    def commit(self, end: Offset) -> None:
        """Let the holds pass what was read, if the stream has any: Spark has stored all before this offset."""
        for host, stop in end.items():
            if host in self._reached:
                self._reached[host].stream.commit(stop)

    def stop(self) -> None:
        """Do nothing: there is nothing to stop."""

    def _list_spools(self) -> None:
        """Look up which spools there are, now and then. Raises ValueError, see `list_spools`."""
        if self._listed_s is not None and (self._is_bounded or self._clock() - self._listed_s < LIST_S):
            return
        self._listed_s = self._clock()
        self._watch = self._watch or FolderWatch()
        before = self._reached
        self._reached = {}
        for spool in self.options.spools():
            known = before.get(spool.host)
            if known is not None and known.spool.path == spool.path:
                known.spool = spool
                self._reached[spool.host] = known
                continue
            alone = self.options.alone(spool.path, self._form)
            stream = JournalStream(alone, self.columns, host=spool.host, clock=self._clock)
            stream.watch = self._watch
            self._reached[spool.host] = ReachedSpool(spool, stream)

    def _ask_each(self, work: Callable[[ReachedSpool], T]) -> Iterator[tuple[str, T]]:
        """Yield (host, result) of each spool that can be read. Raises SpoolUnreachable, see `ignoreUnreachable`."""
        self._list_spools()
        is_any = False
        for host, reached in self._reached.items():
            if reached.why and self._clock() < reached.retry_s:
                continue
            try:
                if reached.spool.error:
                    raise SpoolUnreachable(reached.spool.error)
                result = work(reached)
            except UNREADABLE as error:
                self._note_unreachable(reached, str(error))
                continue
            if reached.why:
                LOG.warning("%s is read again", reached.spool.describe())
                reached.why = ""
            is_any = True
            yield host, result
        if not is_any and self._reached:
            first = next(iter(self._reached.values()))
            raise SpoolUnreachable(
                f"none of {len(self._reached)} spools can be read; {first.spool.describe()}: {first.why}"
            )

    def _note_unreachable(self, reached: ReachedSpool, why: str) -> None:
        if not self.options.ignores_unreachable:
            raise SpoolUnreachable(
                f"{reached.spool.describe()}: {why}; option ignoreUnreachable=true goes on with the other spools"
            ) from None
        if not reached.why:
            LOG.warning("%s is left out until it can be read: %s", reached.spool.describe(), why)
        reached.why, reached.retry_s = why, self._clock() + RETRY_S


UNREADABLE = (FileVanished, CorruptJournal, OSError, ValueError, SpoolUnreachable)
assert not issubclass(DataLoss, UNREADABLE)  # lost records are no matter of reaching a spool
