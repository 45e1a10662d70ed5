cpdef long long end_ms(created_ns, time_ns, ttl_ms) except -1
cpdef next_ns(long long now_ms, last_ns, long long mark)
