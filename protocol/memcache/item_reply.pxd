from staniel.protocol.memcache.item_requests cimport Get


cpdef bytes item_reply(Get get, bytes data, long long flags, object item_id)
