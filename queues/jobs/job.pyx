# cython: language_level=3
"""One job; job.py tells more. The neighbours in a ring are neither shown nor copied."""

cimport cython

from staniel.queues.jobs.states cimport attempts_allowed, followed
from staniel.queues.jobs.times cimport end_ms
from staniel.queues.jobs.states import NEW, PROCESSED, RUN_TTL_MS
from staniel.queues.jobs.times import NEVER_MS
from staniel.values import copied, shown


@cython.no_gc
cdef class Link:
    """As in the .py beside this file."""

    def __init__(self, *, Link prev=None, Link next=None):
        self.prev = prev
        self.next = next


@cython.no_gc
cdef class Ring(Link):
    """As in the .py beside this file."""


@cython.no_gc
cdef class Terms:
    """As in the .py beside this file."""

    __match_args__ = ("queue", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails", "coded", "shown")

    def __init__(self, queue, long long ttr_ms, ttl_ms, long long priority=0, long long max_attempts=0,
                 long long max_fails=0, bytes coded not None=b"", bytes shown not None=b""):
        self.queue = queue
        self.ttr_ms = ttr_ms
        self.ttl_ms = ttl_ms
        self.priority = priority
        self.max_attempts = max_attempts
        self.max_fails = max_fails
        self.coded = coded
        self.shown = shown

    @property
    def attempts_max(self):
        return attempts_allowed(self.max_attempts)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


@cython.no_gc
cdef class Job(Link):
    """As in the .py beside this file."""

    __match_args__ = ("id", "terms", "payload", "created_ns", "time_ns", "state", "attempts", "fails", "until_ms", "result",
                      "holder", "origin")

    def __init__(self, bytes id not None, Terms terms not None, bytes payload not None, created_ns, time_ns=0, state=NEW,
                 long long attempts=0, long long fails=0, until_ms=NEVER_MS, bytes result not None=b"", str holder not None="",
                 long long origin=0):
        self.id = id
        self.terms = terms
        self.payload = payload
        self.created_ns = created_ns
        self.time_ns = time_ns
        self.state = state
        self.attempts = attempts
        self.fails = fails
        self.until_ms = until_ms
        self.result = result
        self.holder = holder
        self.origin = origin

    @property
    def limit_ms(self):
        return end_ms(self.created_ns, self.time_ns, self.terms.ttl_ms)

    @property
    def is_run(self):
        return self.terms.ttl_ms == RUN_TTL_MS

    @property
    def is_processed(self):
        return self.state in PROCESSED

    cpdef become(self, state):
        """Enter `state`."""
        self.state = followed(self.state, state)

    def __repr__(self):
        return shown(self, ", prev=None, next=None" if self.next is None else ", prev=..., next=...")

    def __reduce__(self):
        return copied(self)


cpdef Job new_job(bytes id, Terms terms, bytes payload, object created_ns, object time_ns):
    """The same as Job(...), called from compiled code at a quarter of the cost."""
    cdef Job made = Job.__new__(Job)
    made.id = id
    made.terms = terms
    made.payload = payload
    made.created_ns = created_ns
    made.time_ns = time_ns
    made.state = NEW
    made.until_ms = NEVER_MS
    made.result = b""
    made.holder = ""
    return made
