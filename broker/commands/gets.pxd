cimport cython

from staniel.broker.counters cimport ServerCounters
from staniel.broker.session cimport Session
from staniel.protocol.memcache.item_requests cimport Get
from staniel.queues.deques cimport append, popleft
from staniel.queues.item cimport Delivery, Item
from staniel.queues.queue cimport Queue


@cython.locals(queue=Queue, taken=Delivery, item=Item, counters=ServerCounters, batch="long long")
cpdef get(Session session, Get request, long long now_ms)
@cython.locals(queue=Queue, taken=Delivery)
cpdef get_with_care(Session session, Get request, long long now_ms)
@cython.locals(limit="long long", count=Py_ssize_t)
cpdef bint may_read(Session session, Get request) except -1
@cython.locals(taken=Delivery)
cpdef Delivery fetch(Session session, Get request, Queue queue, long long now_ms)
cpdef hold(Session session, Queue queue, Delivery taken)
@cython.locals(queue=Queue, taken=Delivery, batch="long long")
cpdef close_oldest(Session session, str name, bint keeps_list=*)
@cython.locals(batch="long long", item=Item, size=Py_ssize_t)
cpdef answer(Session session, Get request, Queue queue, Delivery taken)
@cython.locals(counters=ServerCounters)
cpdef count(Session session, Get request, Queue queue, Delivery taken)
