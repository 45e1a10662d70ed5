from staniel.queues.item cimport Item


cpdef bytes addx_record(Item item)
