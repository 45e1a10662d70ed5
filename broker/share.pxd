cdef class StepClock:
    cdef public object now_ns


cdef class Share:
    cdef object _now_ns
    cdef long long _until_ns
