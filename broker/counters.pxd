cdef class ServerCounters:
    cdef public long long curr_connections, total_connections, cmd_get, cmd_set, cmd_peek, get_hits, get_misses
    cdef public long long total_items, cmd_monitor, cmd_monitor_get, cmd_get_timeout_dropped, cmd_get_open_dropped
    cdef public long long finished_but_add, noreply_refused, bytes_read, bytes_written
