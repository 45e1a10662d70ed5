cimport cython

from staniel.journal.workq.job_records cimport addition, crc_of, encode_time
from staniel.queues.jobs.job cimport Job, Terms


@cython.locals(terms=Terms, coded=bytes)
cpdef bytes encode_addition(Job job, bytes time, ahead_ns=*)
