from staniel.broker.commands.gets cimport get
from staniel.broker.commands.puts cimport set_item
from staniel.broker.session cimport FrequentCommands, Session
from staniel.protocol.memcache.item_requests cimport Get, Set


cdef class MemcacheCommands(FrequentCommands):
    cpdef serve(self, Session session, request, long long now_ms)
