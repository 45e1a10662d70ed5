cimport cython

from staniel.broker.counters cimport ServerCounters
from staniel.broker.share cimport Share
from staniel.journal.group_commit cimport GroupCommit
from staniel.protocol.memcache.replies cimport Replies
from staniel.queues.calendar cimport Calendar


cdef long long _OUT_BYTES_PER_TURN, _REQUESTS_PER_LOOK


cdef class FrequentCommands:
    cpdef serve(self, Session session, request, long long now_ms)


cdef class Session:
    cdef public object _answer, _delivered, _queue, broker, dialect, backlog, number, rights, shown, spec, state, waited_at, workq
    cdef public str address, client_id, client_name, protocol, user
    cdef public Replies replies
    cdef public ServerCounters counters
    cdef public GroupCommit group
    cdef public Calendar calendar
    cdef public dict handlers, reads, by_name, readable, writable
    cdef public list out
    cdef public bytes stored
    cdef public FrequentCommands commands
    cdef public long long out_bytes, batch, max_open_reads
    cdef public int failures
    cdef public bint creates, refuse_reads, refuse_writes, needs_check, opens, peeks, makes

    cpdef bint knows(self, dict allowed, str name) except -1
    cpdef execute(self, list requests, long long now_ms)
    @cython.locals(handlers=dict, commands=FrequentCommands, done=Py_ssize_t, share=Share)
    cpdef _execute_many(self, list requests, long long now_ms)
    @cython.locals(handlers=dict, left=Py_ssize_t, share=Share)
    cpdef run_backlog(self, long long now_ms)
    cpdef clear_out(self)
    @cython.locals(batch="long long")
    cpdef depend_on(self, queue)
