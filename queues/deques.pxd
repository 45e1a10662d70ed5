cpdef append(line, item)
cpdef popleft(line)
