cimport cython

from staniel.broker.session cimport Session
from staniel.journal.group_commit cimport GroupCommit
from staniel.queues.item cimport Item
from staniel.queues.queue cimport Queue


cdef long long _OVERHEAD_BYTES


@cython.locals(size="long long", group=GroupCommit, queue=Queue, batch="long long")
cpdef store(Session session, str name, Item item, long long now_ms)
