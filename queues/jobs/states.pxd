# Moments and times to live are Python integers, as in job.pxd.

cpdef followed(before, after)
cpdef long long attempts_allowed(long long max_attempts) except? -1
cpdef end_ms(created_ns, time_ns, ttl_ms)
