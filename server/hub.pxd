cimport cython

from staniel.broker.broker cimport Broker
from staniel.broker.counters cimport ServerCounters
from staniel.journal.group_commit cimport GroupCommit
from staniel.server.connection cimport Connection
from staniel.server.disk_work cimport SyncRunner
from staniel.server.latency_samples cimport LatencySamples
from staniel.server.read_schedule cimport ReadSchedule


cdef long long _CLOCK_CHECK_BYTES, _CLIENT_BYTES


cdef class Hub:
    cdef object __weakref__
    cdef public Broker broker
    cdef public object clock, connection_limits, handshakes, _elapsed_ns, _poller, _workers, _dispatcher, _timeouts, _pending
    cdef public object _tasks, _task_runner
    cdef public dict _connections, _of_session, _backlogged, _holding, _tracked
    cdef public list _active, _listeners, _dropped
    cdef public long long _queue_read_ns, _rest_ns
    cdef public bint _stopping
    cdef public GroupCommit _group
    cdef public ServerCounters _counters
    cdef public ReadSchedule _schedule
    cdef public LatencySamples _samples
    cdef public SyncRunner _syncs

    @cython.locals(unchecked_bytes="long long", broker=Broker, connections=dict, active=list, group=GroupCommit, schedule=ReadSchedule, read="long long", size=Py_ssize_t, connection=Connection, until_ns="long long", began_ns="long long", now_ns="long long")
    cpdef turn(self, list events)
    @cython.locals(at=Py_ssize_t, connection=Connection)
    cpdef _read_short(self, list events, long long until_ns, long long now_ms)
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t _read(self, Connection connection, long long now_ms) except? -3
    @cython.locals(durable="long long", active=list, written="long long", written_max="long long", connection=Connection, sent=Py_ssize_t)
    cpdef _answer_all(self, long long now_ms)
    @cython.locals(durable="long long", connection=Connection, written_max="long long")
    cpdef _release_held(self, long long now_ms)
