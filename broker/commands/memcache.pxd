cimport cython

from staniel.broker.commands.gets cimport get
from staniel.broker.commands.puts cimport store
from staniel.broker.session cimport FrequentCommands, Session
from staniel.protocol.memcache.item_requests cimport Get, Set
from staniel.queues.item cimport new_item


@cython.locals(expires_ms="long long")
cpdef set_item(Session session, Set request, long long now_ms)


cdef class MemcacheCommands(FrequentCommands):
    cpdef serve(self, Session session, request, long long now_ms)
