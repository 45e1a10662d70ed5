cpdef followed(before, after)
cpdef long long attempts_allowed(long long max_attempts) except? -1
