cimport cython

from staniel.queues.item cimport Delivery


@cython.locals(taken=Delivery, seqs=list, ids=list, deliveries=list)
cpdef tuple numbers_of(list those)
