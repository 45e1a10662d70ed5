cimport cython

from staniel.broker.broker cimport Broker
from staniel.broker.counters cimport ServerCounters
from staniel.journal.group_commit cimport GroupCommit
from staniel.server.connection cimport Connection


cdef long long _CLOCK_CHECK_BYTES, _CLIENT_BYTES


cdef class Hub:
    cdef object __weakref__
    cdef public Broker broker
    cdef public object clock, max_connections, reserved_connections, addresses, _clients_max, _now_ns, _elapsed_ns, _waiting_bytes, _poller, _sync_thread
    cdef public object _task_thread, _tasks, _pending, _read_queue, _latency_of_one, _latency_of_several, _latencies, _sync
    cdef public object handshakes
    cdef public dict _connections, _of_session, _handlers, _backlogged, _holding, _tracked, _postponed
    cdef public list _active, _listeners, _dropped, _sampled
    cdef public long long heard_ms, _turn_ms, _round_ms, _heard_in_rounds_ms, _looks_left, _queue_read_ns, _rest_ns, _sample_due_ns, _delivery_due_ns
    cdef public bint _is_cut, _stopping
    cdef public GroupCommit _group
    cdef public ServerCounters _counters

    @cython.locals(unchecked_bytes="long long", broker=Broker, connections=dict, active=list, group=GroupCommit, read="long long", size=Py_ssize_t, connection=Connection, until_ns="long long", began_ns="long long", now_ns="long long")
    cpdef turn(self, list events)
    @cython.locals(connection=Connection)
    cpdef bint _sends_much(self, int fd) except -1
    @cython.locals(at=Py_ssize_t, connection=Connection)
    cpdef _read_short(self, list events, long long until_ns, long long now_ms)
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t _read(self, Connection connection, long long now_ms) except? -3
    @cython.locals(durable="long long", active=list, written="long long", written_max="long long", connection=Connection, sent=Py_ssize_t)
    cpdef _answer_all(self, long long now_ms)
    @cython.locals(durable="long long", connection=Connection, written_max="long long")
    cpdef _release_held(self, long long now_ms)
