cimport cython

from staniel.queues.item cimport Delivery


@cython.locals(delivery=Delivery, seqs=list, ids=list, deliveries=list)
cpdef tuple numbers_of(list those)
