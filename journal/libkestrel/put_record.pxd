from staniel.queues.item cimport Numbered


cpdef bytes put_record(Numbered item)
