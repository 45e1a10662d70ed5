cpdef bytes leased(bytes id, bytes shown_terms, bytes payload)
