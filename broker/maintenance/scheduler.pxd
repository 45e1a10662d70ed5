cimport cython

from staniel.broker.maintenance.memory cimport MemoryBudget
from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.kestrel.log cimport Log
from staniel.queues.line cimport Line
from staniel.queues.queue cimport Queue


cdef class MaintenanceScheduler:
    cdef public object queues, tasks, packs, read_ahead, sidecars, deferred_free, _report
    cdef public GroupCommit group
    cdef public MemoryBudget memory
    cdef public dict _by_name, _sealing
    cdef public tuple waiting

    @cython.locals(queue=Queue, line=Line, sealed_bytes="long long", is_large=bint)
    cpdef look_after(self, Log log, long long now_ms)
