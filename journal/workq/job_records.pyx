"""The common records of a busy command log; job_records.py tells more. Each is written in one piece."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.string cimport memcpy

from google_crc32c import value as crc32c

from staniel.journal.workq import layout

cimport cython

cdef enum:
    ID_BYTES = 16
    BARE_BYTES = 17
    TIME_BYTES = 15
    CRC_BYTES = 4
    VARINT_BYTES = 10  # of 64 bits

cdef long long NS_A_SECOND = 1_000_000_000
cdef long long SECONDS_TO_1970 = 62_135_596_800

assert (layout.ID_BYTES, layout.BARE_BYTES, layout.TIME_BYTES) == (ID_BYTES, BARE_BYTES, TIME_BYTES)
assert (layout.CRC_BYTES, layout.NS_A_SECOND, layout.YEAR_1_S) == (CRC_BYTES, NS_A_SECOND, -SECONDS_TO_1970)
assert (layout.TIME.format, layout.UTC) == (">bqih", -1)


@cython.overflowcheck(False)  # bytes of a number, whose value is known to fit
cdef void put(unsigned long long number, Py_ssize_t count, char *at) noexcept:
    """Write a number of `count` bytes, the high ones first."""
    while count > 0:
        count -= 1
        at[count] = <char>(number & 0xFF)
        number >>= 8


@cython.overflowcheck(False)
cdef Py_ssize_t put_varint(unsigned long long number, char *at) noexcept:
    """Write a varint and return how many bytes it takes."""
    cdef Py_ssize_t count = 0
    while number >= 0x80:
        at[count] = <char>(number & 0x7F | 0x80)
        number >>= 7
        count += 1
    at[count] = <char>number
    return count + 1


cpdef bytes encode_time(at_ns):
    """Return a TIME, big-endian: version 1, seconds, nanoseconds, the zone -1."""
    cdef int is_long = 0
    cdef long long nanos_since_1970 = PyLong_AsLongLongAndOverflow(at_ns, &is_long), seconds, nanos
    if is_long:
        more, rest = divmod(at_ns, NS_A_SECOND)
        seconds, nanos = more + SECONDS_TO_1970, rest
    else:
        seconds, nanos = nanos_since_1970 // NS_A_SECOND + SECONDS_TO_1970, nanos_since_1970 % NS_A_SECOND
    cdef bytes time = PyBytes_FromStringAndSize(NULL, TIME_BYTES)
    cdef char *at = PyBytes_AS_STRING(time)
    at[0] = 1
    put(<unsigned long long>seconds, 8, at + 1)
    put(<unsigned long long>nanos, 4, at + 9)
    at[13] = at[14] = <char>0xFF
    return time


cpdef bytes encode_unsigned(unsigned long long number):
    """Encode a varint: seven bits a byte, the low ones first."""
    cdef char varint[VARINT_BYTES]
    return PyBytes_FromStringAndSize(varint, put_varint(number, varint))


cpdef bytes crc_of(bytes record):
    """Return the CRC that follows a record."""
    cdef char crc[CRC_BYTES]
    put(crc32c(record), CRC_BYTES, crc)
    return PyBytes_FromStringAndSize(crc, CRC_BYTES)


# A bare record without its CRC, written anew for each: nothing but the checksum's function sees it.
cdef bytes bare = PyBytes_FromStringAndSize(NULL, TIME_BYTES + 1 + BARE_BYTES)


cdef check(bytes time, bytes id):
    if time is None or id is None:
        raise TypeError("a record takes bytes")
    if PyBytes_GET_SIZE(time) != TIME_BYTES or PyBytes_GET_SIZE(id) != ID_BYTES:
        raise ValueError("a TIME has 15 bytes, an id 16")


cpdef bytes addition(bytes time, long kind, bytes id, bytes coded, bytes data, bytes later):
    """Encode an add or schedule without its CRC."""
    check(time, id)
    check(later, id)
    if coded is None or data is None:
        raise TypeError("a record takes bytes")
    cdef char length[VARINT_BYTES]
    cdef char sized[VARINT_BYTES]
    cdef Py_ssize_t coded_size = PyBytes_GET_SIZE(coded), count = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t length_size = put_varint(count, length)
    cdef Py_ssize_t size = BARE_BYTES + 2 * TIME_BYTES + coded_size + length_size + count
    cdef Py_ssize_t sized_size = put_varint(size, sized)
    cdef bytes record = PyBytes_FromStringAndSize(NULL, TIME_BYTES + sized_size + size)
    cdef char *at = PyBytes_AS_STRING(record)
    memcpy(at, PyBytes_AS_STRING(time), TIME_BYTES)
    at += TIME_BYTES
    memcpy(at, sized, sized_size)
    at += sized_size
    at[0] = <char>kind
    memcpy(at + 1, PyBytes_AS_STRING(id), ID_BYTES)
    at += BARE_BYTES
    memcpy(at, PyBytes_AS_STRING(coded), coded_size)
    at += coded_size
    memcpy(at, length, length_size)
    at += length_size
    memcpy(at, PyBytes_AS_STRING(data), count)
    at += count
    memcpy(at, PyBytes_AS_STRING(later), TIME_BYTES)
    memcpy(at + TIME_BYTES, PyBytes_AS_STRING(time), TIME_BYTES)
    return record


cpdef bytes encode_bare(bytes time, long kind, bytes id):
    """Encode a record whose payload is a type and an id, with its CRC."""
    check(time, id)
    cdef char *at = PyBytes_AS_STRING(bare)
    memcpy(at, PyBytes_AS_STRING(time), TIME_BYTES)
    at[TIME_BYTES] = BARE_BYTES
    at[TIME_BYTES + 1] = <char>kind
    memcpy(at + TIME_BYTES + 2, PyBytes_AS_STRING(id), ID_BYTES)
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, TIME_BYTES + 1 + BARE_BYTES + CRC_BYTES)
    memcpy(PyBytes_AS_STRING(whole), at, TIME_BYTES + 1 + BARE_BYTES)
    put(crc32c(bare), CRC_BYTES, PyBytes_AS_STRING(whole) + TIME_BYTES + 1 + BARE_BYTES)
    return whole
