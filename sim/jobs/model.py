"""The reference model of jobs. It applies the recorded changes of the real jobs to the state of each job, even if
earlier changes are missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct, structs

from staniel.queues.jobs.job import Job
from staniel.queues.jobs.states import ATTEMPTS_MAX, COMPLETED, FAILED, LEASED, NEW, PENDING, JobState
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.queues.model import Written
from staniel.sim.violations import Kind, Violation


class JobRecord(Struct, frozen=True):
    """A job: the values that it was added with, and its state."""

    name: str
    ttr_ms: int
    ttl_ms: int
    priority: int
    max_attempts: int
    max_fails: int
    payload: bytes
    created_ns: int
    time_ns: int
    state: JobState = NEW
    attempts: int = 0
    fails: int = 0
    result: bytes = b""

    @property
    def limit_ms(self) -> int:
        return (self.time_ns or self.created_ns) // NS_A_MS + self.ttl_ms

    @property
    def is_over(self) -> bool:
        return self.state in (COMPLETED, FAILED)

    @property
    def place(self) -> tuple[int, int, int]:
        """The job's place in its queue. The least comes first."""
        return -self.priority, self.time_ns, self.created_ns

    @property
    def is_waiting(self) -> bool:
        return self.state in (NEW, PENDING)

    def __str__(self) -> str:
        return f"{self.state.name.lower()} in {self.name}, {self.attempts} attempts"


def record_of(job: Job) -> JobRecord:
    """Return the record of a real job."""
    terms = job.terms
    return JobRecord(
        terms.queue.name.decode(), terms.ttr_ms, terms.ttl_ms, terms.priority, terms.max_attempts, terms.max_fails,
        job.payload, job.created_ns, job.time_ns, job.state, job.attempts, job.fails, job.result,
    )  # fmt: skip


class Verb(Enum):
    """The changes of `staniel.queues.jobs.journal`."""

    ADD = "added"
    ATTEMPT = "leased"
    TIMEOUT = "timed out"
    FINISH = "finished"
    DELETE = "deleted"
    EXPIRE = "expired"


class Fact(Struct, frozen=True):
    """A change that a journal records. `segment`: its file of the log."""

    verb: Verb
    id: bytes
    segment: int
    added: JobRecord | None = None
    result: bytes = b""
    success: bool = False


class JobModel:
    """All jobs since the last start. `base`: the jobs that the start found. `lapsed`: jobs whose lifetime had ended at
    a start; several may have the same id.
    """

    def __init__(
        self, base: dict[bytes, JobRecord], lapsed: dict[bytes, list[JobRecord]], honours_max_fails: bool
    ) -> None:
        self.base = base
        self.lapsed = lapsed
        self.honours_max_fails = honours_max_fails
        self.facts: list[Fact] = []
        self.now = dict(base)
        self.leased_ms: dict[bytes, int] = {}
        self.promised_after_kill = 0
        self.promised_after_power_loss = 0
        self.written: list[Written] = []
        self.sync_ms = 0
        self._journaled_facts = 0

    def apply(self, fact: Fact) -> JobRecord | None:
        """Note a change. Return the job's record before it. Raises Violation if the change cannot follow from those
        before it.
        """
        before = self.now.get(fact.id)
        self._demand(before, fact)
        self.facts.append(fact)
        after = self.apply_change(before, fact)
        if after is None:
            self.now.pop(fact.id, None)
        else:
            self.now[fact.id] = after
        return before

    def _demand(self, before: JobRecord | None, fact: Fact) -> None:
        verb, what = fact.verb, f"{fact.verb.value} job {fact.id[:4].hex()}"
        if verb is Verb.ADD:
            if before is not None:
                raise Violation(Kind.DUPLICATED, f"{what}, which is there")
        elif before is None:
            raise Violation(Kind.INVENTED, f"{what}, which is not there")
        elif verb is Verb.ATTEMPT and before.state not in (NEW, PENDING):
            kind = Kind.TWO_HOLDERS if before.state is LEASED else Kind.REDELIVERED
            raise Violation(kind, f"{what}, which is {before.state.name.lower()}")
        elif verb is Verb.TIMEOUT and before.state is not LEASED:
            raise Violation(Kind.DUPLICATED, f"{what}, which is {before.state.name.lower()}")
        elif verb is Verb.FINISH and before.is_over:
            raise Violation(Kind.TWICE, f"{what}, which is {before.state.name.lower()}")

    def apply_change(self, before: JobRecord | None, fact: Fact) -> JobRecord | None:
        """Return a job's record after a change, as a reader of the log computes it. Earlier changes may be missing in
        the log.
        """
        verb = fact.verb
        if verb is Verb.ADD:
            return fact.added
        if before is None or verb is Verb.DELETE or verb is Verb.EXPIRE:
            return None
        if before.is_over:
            return before
        tired = before.attempts >= (before.max_attempts or ATTEMPTS_MAX)
        if verb is Verb.ATTEMPT:
            return structs.replace(before, state=LEASED, attempts=before.attempts + 1)
        if verb is Verb.TIMEOUT:
            return structs.replace(before, state=FAILED if tired else PENDING)
        fails = before.fails + (self.honours_max_fails and not fact.success)
        if self.honours_max_fails and not fact.success and fails < before.max_fails and not tired:
            return structs.replace(before, state=PENDING, fails=fails)
        return structs.replace(before, state=COMPLETED if fact.success else FAILED, fails=fails, result=fact.result)

    def acknowledge(self, facts: int) -> None:
        """Note that a reply that depends on this many changes has reached its client."""
        self.promised_after_kill = max(self.promised_after_kill, facts)
        if self.sync_ms == 0:
            self.promised_after_power_loss = max(self.promised_after_power_loss, facts)

    def committed(self, now_ms: int) -> None:
        """Note that a tick has written all recorded changes."""
        count = len(self.facts)
        if count > self._journaled_facts:
            self._journaled_facts = count
            self.written.append(Written(now_ms, count, self.sync_ms))

    def synced(self, began_ms: int) -> None:
        """Note a sync that began at `began_ms`, or that none was due then. Commits whose sync interval had passed by
        then are durable.
        """
        for written in self.written:
            if 0 < written.sync_ms <= began_ms - written.at_ms:
                self.promised_after_power_loss = max(self.promised_after_power_loss, written.facts)

    def facts_of(self, id: bytes) -> Iterable[tuple[int, Fact]]:
        """Return (number from 1 on, change) of one job, in order."""
        return ((number, fact) for number, fact in enumerate(self.facts, 1) if fact.id == id)
