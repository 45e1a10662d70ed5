"""The two calls of a deque that busy queues are full of: the functions of C below its methods, without what a call of a
method does first. deques.py has the methods.
"""

from collections import deque

cdef extern from "Python.h":
    enum:
        METH_NOARGS
        METH_O
    ctypedef object (*Function "PyCFunction")(object itself, void *given)
    ctypedef struct PyMethodDef:
        Function ml_meth
        int ml_flags
    ctypedef struct PyMethodDescrObject:
        PyMethodDef *d_method

cdef object kind = deque
# A subclass may have methods of its own, and another Python's may take their arguments in another way.
cdef PyMethodDef *append_method = (<PyMethodDescrObject *>deque.append).d_method
cdef PyMethodDef *popleft_method = (<PyMethodDescrObject *>deque.popleft).d_method
cdef bint is_known = append_method.ml_flags == METH_O and popleft_method.ml_flags == METH_NOARGS


cpdef append(line, item):
    """Add `item` at the end. Raises TypeError if `line` is no deque."""
    if is_known and type(line) is kind:
        append_method.ml_meth(line, <void *>item)
    else:
        deque.append(line, item)


cpdef popleft(line):
    """Take the first item off. Raises IndexError, and TypeError if `line` is no deque."""
    if is_known and type(line) is kind:
        return popleft_method.ml_meth(line, NULL)
    return deque.popleft(line)
