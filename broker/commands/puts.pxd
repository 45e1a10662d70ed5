cimport cython

from staniel.broker.session cimport Session
from staniel.journal.group_commit cimport GroupCommit
from staniel.protocol.memcache.item_requests cimport Set
from staniel.queues.item cimport Item, new_item
from staniel.queues.queue cimport Queue


cdef long long _OVERHEAD_BYTES


@cython.locals(expires_ms="long long")
cpdef set_item(Session session, Set request, long long now_ms)
@cython.locals(size="long long", group=GroupCommit, queue=Queue, batch="long long")
cpdef store(Session session, str name, Item item, long long now_ms)
