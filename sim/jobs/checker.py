"""The checker of jobs while a history runs. Every change that their journal records needs a cause; every reply needs
its change.

promises.py judges what a crash has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from msgspec import Struct

from staniel.broker.broker import Broker
from staniel.broker.jobs import sync_ms_of
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.states import LEASED, NEW
from staniel.sim.jobs.conversation import ADDS, FINISHES, Answer, Request, Want, number_of
from staniel.sim.jobs.model import Fact, JobModel, JobRecord, Verb
from staniel.sim.jobs.times import JobTimes
from staniel.sim.violations import Kind, Violation

LATE_MS = 20  # deadlines are kept in slots of 8 ms


class CheckedClient(Protocol):
    """A client, as the checker sees it."""

    is_leaving: bool

    @property
    def unanswered(self) -> deque[Request]: ...


class Handed(Struct, eq=False):
    """A lease that is about to be shown to a client. `is_given_up`: that client may have left. `is_over`: the lease
    ended before it was shown.
    """

    id: bytes
    record: JobRecord
    is_given_up: bool = False
    is_over: bool = False


class JobChecker:
    """The checker of one server's life."""

    def __init__(self, model: JobModel, times: JobTimes) -> None:
        self.model = model
        self.times = times
        self.clients: list[CheckedClient] = []
        self.now_ms = self.settled_ms = 0
        self.transcript: list[tuple[str, str, str]] = []
        self.facts = 0
        self.answers = 0
        self.handed: list[Handed] = []  # leases of this turn that no client has seen yet
        self.finished: dict[bytes, JobRecord] = {}  # jobs that finished in this turn
        self.runs: dict[bytes, int] = {}  # the time of each run's lease; 0: not leased yet
        self.ended_runs: set[bytes] = set()  # runs that ended in this turn

    def listen(self, broker: Broker) -> None:
        """Compare the jobs that a server has recovered with the expected ones, and listen to their changes from
        now on.
        """
        service = broker.workq
        self.model.sync_ms = sync_ms_of(service.settings)
        self._check_startup({id: self.times.served(job, self._known(id)) for id, job in service.jobs.by_id.items()})
        log: Any = service.log
        for name, verb in (
            ("added", Verb.ADD), ("attempted", Verb.ATTEMPT), ("timed_out", Verb.TIMEOUT),
            ("finished", Verb.FINISH), ("deleted", Verb.DELETE), ("expired", Verb.EXPIRE),
        ):  # fmt: skip
            setattr(log, name, self._door(log, verb, getattr(log, name)))

    def _known(self, id: bytes) -> list[JobRecord]:
        base = self.model.base.get(id)
        return [*([base] if base is not None else []), *self.model.lapsed.get(id, ())]

    def _check_startup(self, served: dict[bytes, JobRecord]) -> None:
        model = self.model
        for id, record in model.base.items():
            is_over = self.times.limit_ms(record) <= self.now_ms or self.times.is_doubtful(record)
            if id not in served and not is_over:
                raise Violation(Kind.LOST, f"job {number_of(id)} was found, and is not served: {record}")
        for id, record in served.items():
            if record not in self._known(id):
                raise Violation(Kind.INVENTED, f"job {number_of(id)} is served, and was not found: {record}")
        gone = {id: record for id, record in model.base.items() if id not in served}
        for id, record in gone.items():
            self.times.ended(record)
            model.lapsed[id] = [*model.lapsed.get(id, ()), record]
        model.base = served
        model.now = dict(served)
        model.leased_ms = {id: self.now_ms for id, record in served.items() if record.state is LEASED}

    def _door(self, log: Any, verb: Verb, right: Any) -> Any:
        def stated(job: Job, *more: Any, **options: Any) -> None:
            right(job, *more, **options)
            added = self.times.added(job, log.ahead_ns) if verb is Verb.ADD else None
            result = more[0] if verb is Verb.FINISH else b""
            self.states(Fact(verb, job.id, log.segment.number, added, result, options.get("success", False)))

        return stated

    def states(self, fact: Fact) -> None:
        self.facts += 1
        self.transcript.append(("fact", f"#{number_of(fact.id)}", fact.verb.value))
        before = self.model.apply(fact)
        if fact.verb is Verb.ADD:
            self._added(fact)
            return
        assert before is not None
        if fact.verb is Verb.ATTEMPT:
            self._attempted(fact, before)
        elif fact.verb is Verb.TIMEOUT:
            self._timed_out(fact.id, before)
        elif fact.verb is Verb.FINISH:
            self._finished(fact)
        elif fact.verb is Verb.DELETE:
            self._end_lease(fact.id)
            self._need(self._asking(fact.id, (Want.DELETE,)), f"job {number_of(fact.id)} was deleted")
            for request in self._asking(fact.id, (Want.RESULT,)):
                request.is_done = True  # its reply says so, perhaps when there is another job with that id
        else:
            self._end_lease(fact.id)
            if self.times.limit_ms(before) > self.now_ms:
                raise Violation(Kind.LOST, f"job {number_of(fact.id)} expired before its time: {before}")

    def _added(self, fact: Fact) -> None:
        assert fact.added is not None
        requests = [
            request
            for request in self._asking(fact.id, ADDS)
            if request.data == fact.added.payload and not request.is_done
        ]
        if not requests:
            raise Violation(Kind.INVENTED, f"job {number_of(fact.id)} was added without a request")
        requests[0].is_done = True

    def _attempted(self, fact: Fact, before: JobRecord) -> None:
        number, now_ms = number_of(fact.id), self.now_ms
        if before.state is NEW and not self.times.has_come(before, now_ms):
            raise Violation(Kind.ORDER, f"job {number} was leased before its time")
        if self.times.limit_ms(before) + LATE_MS < now_ms:
            raise Violation(Kind.REDELIVERED, f"job {number} was leased after its life")
        for id, other in self.surely_ready((before.name,)):
            if id != fact.id and self.times.is_before(other, id, before, fact.id):
                raise Violation(Kind.ORDER, f"job {number} was leased before job {number_of(id)}")
        after = self.model.now[fact.id]
        self.model.leased_ms[fact.id] = now_ms
        self.handed.append(Handed(fact.id, after))

    def _timed_out(self, id: bytes, before: JobRecord) -> None:
        is_given_up = self._is_given_up(id)
        self._end_lease(id)
        if not is_given_up and self.now_ms < self.model.leased_ms[id] + before.ttr_ms:
            raise Violation(Kind.DUPLICATED, f"the lease of job {number_of(id)} ended before its time")

    def _finished(self, fact: Fact) -> None:
        want = Want.COMPLETE if fact.success else Want.FAIL
        requests = [
            request for request in self._asking(fact.id, (want,)) if request.data == fact.result and not request.is_done
        ]
        self._need(requests, f"job {number_of(fact.id)} was finished")
        requests[0].is_done = True
        self._end_lease(fact.id)
        self.finished[fact.id] = self.model.now[fact.id]

    def _is_given_up(self, id: bytes) -> bool:
        return any(lease.is_given_up for lease in self.handed if lease.id == id and not lease.is_over)

    def _end_lease(self, id: bytes) -> None:
        for lease in self.handed:
            lease.is_over |= lease.id == id

    def _need(self, requests: list[Request], what: str) -> None:
        if not requests:
            raise Violation(Kind.LOST, f"{what}, without a request for that")

    def _asking(self, id: bytes, wants: Iterable[Want]) -> list[Request]:
        return [
            request
            for client in self.clients
            for request in client.unanswered
            if request.want in wants and request.id == id
        ]

    def on_request(self, who: str, request: Request) -> None:
        self.transcript.append(("ask", who, request.shown()))
        if request.want is Want.RUN:
            self.runs.setdefault(request.id, 0)

    def on_answer(self, client: CheckedClient, who: str, answer: Answer) -> list[int]:
        """Note a reply. Return how many changes it promises once it has reached the client. Raises Violation."""
        self.answers += 1
        request, end = answer.request, answer.end
        self.transcript.append(("answer", who, f"{end} {answer.data.decode('latin-1')}".strip()))
        if end.startswith("-SERVER-ERROR"):
            if request.is_done:
                raise Violation(Kind.INVENTED, f"{end} to {request.shown()!r}, and it was recorded")
            return []
        if request.want in (Want.ADD, Want.SCHEDULE):
            self._heard_add(request, end)
        elif request.want is Want.RUN:
            self.ended_runs.add(request.id)
            self._forget_run(request)
        elif request.want is Want.LEASE:
            self._heard_lease(request, answer)
        elif request.want in FINISHES:
            self._heard_finish(request, end)
        elif request.want is Want.RESULT:
            self._heard_result(request, answer)
        elif request.want is Want.INSPECT:
            self._heard_inspect(request, answer)
        if end == "-NOT-FOUND" and request.want not in (Want.LENGTH, Want.RUN):
            self._must_be_gone(request)
        return [len(self.model.facts)] if end.startswith("+OK") and request.want is not Want.LENGTH else []

    def on_arrival(self, mark: int) -> None:
        self.model.acknowledge(mark)

    def _heard_add(self, request: Request, end: str) -> None:
        number = number_of(request.id)
        if end == "+OK" and not request.is_done:
            raise Violation(Kind.LOST, f"+OK for job {number}, and no journal was told")
        if end != "+OK" and request.is_done:
            raise Violation(Kind.INVENTED, f"{end} for job {number}, and it was added")
        if end == "-CLIENT-ERROR Duplicate job" and request.id not in self.model.now and request.id not in self.runs:
            raise Violation(Kind.INVENTED, f"{end} for job {number}, and there is none")

    def _heard_lease(self, request: Request, answer: Answer) -> None:
        if answer.end == "-TIMEOUT":
            # In the tick in which a job becomes free, the reply to a client that has waited may still be the time-out.
            if not request.wait_ms:
                self._must_find_nothing(request)
            return
        id = bytes.fromhex(answer.head[0].replace("-", ""))
        number = number_of(id)
        mine = [lease for lease in self.handed if lease.id == id and lease.record.payload == answer.data]
        handed = next((lease for lease in mine if not lease.is_over), mine[0] if mine else None)
        if handed is not None:
            self.handed.remove(handed)
            given = handed.record
            if (given.name, str(given.ttr_ms), given.payload) != (answer.head[1], answer.head[2], answer.data):
                raise Violation(Kind.INVENTED, f"job {number} was shown with {answer.head} {answer.data!r}")
        elif id in self.runs and (id not in self.ended_runs or self._is_awaited(id, answer.data)):
            self._lease_run(id, int(answer.head[2]))
        elif id not in self.ended_runs:
            raise Violation(Kind.TWO_HOLDERS, f"job {number} was given to a client, and no journal was told")

    def _must_find_nothing(self, request: Request) -> None:
        for id, record in self.surely_ready(request.names):
            raise Violation(Kind.LOST, f"{request.shown()!r} got nothing, and job {number_of(id)} is {record}")

    def _is_awaited(self, id: bytes, payload: bytes) -> bool:
        """Tell whether a client waits for the run with this payload. Another run with its id may have ended in this
        turn, before the reply to its lease was heard.
        """
        return any(request.data == payload for request in self._asking(id, (Want.RUN,)))

    def _lease_run(self, id: bytes, ttr_ms: int) -> None:
        if self.runs[id] and self.now_ms < self.runs[id] + ttr_ms:
            raise Violation(Kind.TWO_HOLDERS, f"run {number_of(id)} was given to two")
        self.runs[id] = self.now_ms

    def _forget_run(self, request: Request) -> None:
        """Forget a run whose end was reported, or for which no client waits any more, unless another run with its id is
        requested.
        """
        if any(other is not request for other in self._asking(request.id, (Want.RUN,))):
            self.runs[request.id] = 0
        else:
            self.runs.pop(request.id, None)

    def _heard_finish(self, request: Request, end: str) -> None:
        number = number_of(request.id)
        record = self.model.now.get(request.id)
        if end == "+OK" and not request.is_done and request.id not in self.runs:
            raise Violation(Kind.LOST, f"+OK to {request.want.value} job {number}, and no journal was told")
        if end == "-CLIENT-ERROR Duplicate result" and (record is None or not record.is_over):
            raise Violation(Kind.INVENTED, f"{end} for job {number}, which is {record}")

    def _heard_result(self, request: Request, answer: Answer) -> None:
        record = self.finished.get(request.id) or self.model.now.get(request.id)
        number = number_of(request.id)
        if answer.head:
            shown = answer.head[1], answer.data
            is_run = request.id in self.runs or request.id in self.ended_runs
            if not is_run and (record is None or not self._is_result(record, shown)):
                raise Violation(Kind.INVENTED, f"result {shown} of job {number}, which is {record}")
        elif answer.end == "-TIMEOUT" and not request.wait_ms and self._has_result(request.id):
            raise Violation(Kind.LOST, f"job {number} is {record}, and has no result")

    def _has_result(self, id: bytes) -> bool:
        record = self.model.now.get(id)
        return record is not None and record.is_over

    def _is_result(self, record: JobRecord, shown: tuple[str, bytes]) -> bool:
        return record.is_over and (str(int(record.state.name == "COMPLETED")), record.result) == shown

    def _heard_inspect(self, request: Request, answer: Answer) -> None:
        record = self.model.now.get(request.id)
        if not answer.keys or request.id in self.runs:
            return
        shown = tuple(answer.keys[key] for key in ("name", "attempts", "state", "payload-size"))
        if record is None:
            raise Violation(Kind.INVENTED, f"job {number_of(request.id)} is shown, and there is none")
        mine = record.name, str(record.attempts), str(record.state.value), str(len(record.payload))
        if shown != mine:
            raise Violation(Kind.STATISTICS, f"job {number_of(request.id)} is shown as {shown}, the model says {mine}")

    def _must_be_gone(self, request: Request) -> None:
        if request.want is Want.RESULT and (request.id in self.runs or request.id in self.ended_runs):
            return  # the reply reports the run's end, perhaps when there is another job with that id
        record = self.model.now.get(request.id)
        if record is not None and self.times.limit_ms(record) > self.now_ms and not request.is_done:
            raise Violation(Kind.LOST, f"job {number_of(request.id)} is not found, and it is {record}")

    def check_turn(self) -> None:
        """Check that all leases of this turn were shown to a client, and that everything whose time has come
        has ended.
        """
        for lease in self.handed:
            if not lease.is_given_up and not lease.is_over:
                raise Violation(Kind.LOST, f"job {number_of(lease.id)} is leased, and no client has it")
        self.handed.clear()
        self.finished.clear()
        self.ended_runs.clear()
        self.settled_ms = self.now_ms
        for client in self.clients:
            if client.unanswered and client.unanswered[0].want is Want.LEASE:
                self._must_find_nothing(client.unanswered[0])
        for id, record in self.model.now.items():
            if self.times.limit_ms(record) + LATE_MS < self.now_ms:
                raise Violation(Kind.REDELIVERED, f"job {number_of(id)} is there after its life: {record}")
            if record.state is LEASED and self.model.leased_ms[id] + record.ttr_ms + LATE_MS < self.now_ms:
                raise Violation(Kind.LOST, f"the lease of job {number_of(id)} never ends")

    def on_leave(self, client: CheckedClient) -> None:
        """Note that a client is about to disconnect. Its latest leases return to their queues, at once or later."""
        if any(request.want is Want.LEASE for request in client.unanswered):
            for lease in self.handed:
                lease.is_given_up = True
        for request in client.unanswered:
            if request.want is Want.RUN:
                self.ended_runs.add(request.id)
                self._forget_run(request)

    def surely_ready(self, names: Iterable[str]) -> Iterable[tuple[bytes, JobRecord]]:
        """Yield the jobs that a lease must find now, even if something is a few milliseconds late."""
        now_ms = self.now_ms
        seen_ms = min(now_ms, self.settled_ms) - LATE_MS  # jobs that become due in this tick come one after another
        for id, record in self.model.now.items():
            is_ready = record.is_waiting and self.times.has_come(record, seen_ms)
            if record.name in names and is_ready and self.times.limit_ms(record) > now_ms:
                yield id, record
