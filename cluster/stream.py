"""The numbered records as one member has them, and the last place that two members have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from staniel.cluster.places import NOWHERE, Place

RECORD_COST = 200
"""Bytes of memory that a kept record takes beside its data."""


class RecordKind(IntEnum):
    """The meaning of a record to a member. Its data means nothing to it."""

    EPOCH = 1  # the first record of an epoch: open reads of connections to earlier leaders end here
    CHANGE = 2
    PUT = 3  # held while the set has fewer members than min_in_sync
    EMPTY = 4  # a round, for replies that rest on no record


class Record(NamedTuple):
    """A numbered change of the spool: opaque bytes."""

    place: Place
    kind: RecordKind
    data: bytes


class Run(NamedTuple):
    """The records of one epoch: `first` is the number of the first one. They end where the next run begins."""

    epoch: int
    first: int


class Stream:
    """The records of a member, without gaps. `runs` covers all of them; `records` holds those behind `base`, which is
    the last record whose effect is in files alone. `data_bytes`: of all of `records`.
    """

    def __init__(self, base: Place = NOWHERE, runs: Sequence[Run] = ()) -> None:
        self.base = base
        self.runs = list(runs)
        self.records: list[Record] = []
        self.data_bytes = 0

    @property
    def last(self) -> Place:
        return self.records[-1].place if self.records else self.base

    def epoch_of(self, number: int) -> int:
        """Return the epoch of the record with this number, or 0 if there is no such record."""
        if not 0 < number <= self.last.number:
            return 0
        return next((run.epoch for run in reversed(self.runs) if run.first <= number), 0)

    def follows(self, record: Record) -> bool:
        """Tell whether the record may stand behind the last one."""
        return record.place.number == self.last.number + 1 and record.place.epoch >= max(1, self.last.epoch)

    def append(self, record: Record) -> None:
        """Add a record behind the last one."""
        assert self.follows(record), f"{record.place} behind {self.last}"
        if record.place.epoch > self.last.epoch:
            self.runs.append(Run(record.place.epoch, record.place.number))
        self.records.append(record)
        self.data_bytes += len(record.data)

    def cut(self, number: int) -> None:
        """Remove the records behind this number."""
        assert number >= self.base.number, f"cannot cut off up to {number}: kept from {self.base}"
        self._remove(slice(number - self.base.number, None))
        self.runs = [run for run in self.runs if run.first <= number]

    def forget(self, number: int) -> None:
        """Stop keeping the records up to this number: their effect is in files."""
        if number > self.base.number:
            kept = self.base.number
            self.base = Place(self.epoch_of(number), number)
            self._remove(slice(number - kept))

    def _remove(self, which: slice) -> None:
        self.data_bytes -= sum([len(record.data) for record in self.records[which]])
        del self.records[which]

    @property
    def kept_bytes(self) -> int:
        """The memory that the kept records take."""
        return self.data_bytes + RECORD_COST * len(self.records)

    def spare_upto(self, bytes_max: int, records_max: int) -> int:
        """Return the number up to which records must go, so that no more than this is kept."""
        spare_bytes, spare_records = self.kept_bytes - bytes_max, len(self.records) - records_max
        number = self.base.number
        for record in self.records:
            if spare_bytes <= 0 and spare_records <= 0:
                break
            spare_bytes -= RECORD_COST + len(record.data)
            spare_records -= 1
            number = record.place.number
        return number

    def has_behind(self, number: int) -> bool:
        """Tell whether all records behind this number are kept."""
        return self.base.number <= number <= self.last.number

    def behind(self, number: int) -> Iterator[Record]:
        """Yield the kept records behind this number."""
        for at in range(max(0, number - self.base.number), len(self.records)):
            yield self.records[at]


def last_common(ours: Stream, runs: Sequence[Run], last: int) -> int:
    """Return the highest number at which two members have a record of the same epoch, or 0. `runs`, `last`: the other
    member's.
    """
    ends = {run.epoch: _end(ours.runs, at, ours.last.number) for at, run in enumerate(ours.runs)}
    firsts = {run.epoch: run.first for run in ours.runs}
    common = 0
    for at, run in enumerate(runs):
        number = min(_end(runs, at, last), ends.get(run.epoch, 0))
        if number >= max(run.first, firsts.get(run.epoch, 0)):
            common = max(common, number)
    return common


def _end(runs: Sequence[Run], at: int, last: int) -> int:
    """Return the number of the last record of a run."""
    return runs[at + 1].first - 1 if at + 1 < len(runs) else last
