"""What a busy connection reads and writes of jobs; job_texts.py tells more."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from staniel.protocol.memcache.item_reply cimport digits_of

cdef enum:
    ID_BYTES = 36
    RAW_BYTES = 16
    NUMBER_BYTES = 24  # a sign and the digits of 64 bits

cdef const char *DIGITS = b"0123456789abcdef"


@cython.overflowcheck(False)  # small numbers
cdef int value_of(unsigned char digit) noexcept:
    """Of a hexadecimal digit; negative for another byte."""
    if 48 <= digit <= 57:
        return digit - 48
    digit |= 32
    return digit - 87 if 97 <= digit <= 102 else -1


@cython.overflowcheck(False)
cdef bint read(const char *text, unsigned char *raw) noexcept:
    """ID_BYTES of text to RAW_BYTES; whether they are an id."""
    cdef int byte, high, low
    for byte in range(RAW_BYTES):
        if byte == 4 or byte == 6 or byte == 8 or byte == 10:
            if text[0] != c"-":
                return False
            text += 1
        high, low = value_of(<unsigned char>text[0]), value_of(<unsigned char>text[1])
        if high < 0 or low < 0:
            return False
        raw[byte] = <unsigned char>(high * 16 + low)
        text += 2
    return True


@cython.overflowcheck(False)
cdef void show(const unsigned char *raw, char *text) noexcept:
    """RAW_BYTES to ID_BYTES of text."""
    cdef int byte
    for byte in range(RAW_BYTES):
        if byte == 4 or byte == 6 or byte == 8 or byte == 10:
            text[0] = c"-"
            text += 1
        text[0], text[1] = DIGITS[raw[byte] >> 4], DIGITS[raw[byte] & 15]
        text += 2


cpdef bytes read_id(bytes word):
    """The 16 bytes of a UUID in canonical form, of any version."""
    cdef unsigned char raw[RAW_BYTES]
    if word is None:
        raise TypeError("an id is bytes")
    if PyBytes_GET_SIZE(word) != ID_BYTES or not read(PyBytes_AS_STRING(word), raw):
        return None
    return PyBytes_FromStringAndSize(<char *>raw, RAW_BYTES)


cpdef bint is_job_id(bytes raw) except -1:
    """Whether it is one that a job can have."""
    return raw[6] & 0xF0 == 0x40 and raw[8] & 0xC0 == 0x80


cpdef bytes job_id_at(bytes data, Py_ssize_t at):
    """The 16 bytes of the id whose text begins at byte `at`, if it is one that a job can have."""
    cdef unsigned char raw[RAW_BYTES]
    if data is None:
        raise TypeError("an id is bytes")
    if at < 0 or at > PyBytes_GET_SIZE(data) - ID_BYTES or not read(PyBytes_AS_STRING(data) + at, raw):
        return None
    if raw[6] & 0xF0 != 0x40 or raw[8] & 0xC0 != 0x80:
        return None
    return PyBytes_FromStringAndSize(<char *>raw, RAW_BYTES)


cdef const unsigned char *sixteen(bytes raw) except NULL:
    if raw is None or PyBytes_GET_SIZE(raw) != RAW_BYTES:
        raise ValueError("an id has 16 bytes")
    return <const unsigned char *>PyBytes_AS_STRING(raw)


cpdef bytes show_id(bytes raw):
    """The canonical text of 16 bytes."""
    cdef bytes text
    cdef const unsigned char *id = sixteen(raw)
    text = PyBytes_FromStringAndSize(NULL, ID_BYTES)
    show(id, PyBytes_AS_STRING(text))
    return text


cpdef bytes leased(bytes id, bytes shown_terms, bytes payload):
    """The answer to a lease, in one piece."""
    cdef const unsigned char *raw = sixteen(id)
    if shown_terms is None or payload is None:
        raise TypeError("leased takes bytes")
    cdef char digits[NUMBER_BYTES]
    cdef Py_ssize_t terms_size = PyBytes_GET_SIZE(shown_terms), size = PyBytes_GET_SIZE(payload)
    cdef Py_ssize_t digits_size = digits_of(size, digits + NUMBER_BYTES)
    cdef bytes reply = PyBytes_FromStringAndSize(NULL, 7 + ID_BYTES + terms_size + digits_size + 2 + size + 2)
    cdef char *at = PyBytes_AS_STRING(reply)
    memcpy(at, b"+OK 1\r\n", 7)
    show(raw, at + 7)
    at += 7 + ID_BYTES
    memcpy(at, PyBytes_AS_STRING(shown_terms), terms_size)
    at += terms_size
    memcpy(at, digits + NUMBER_BYTES - digits_size, digits_size)
    at += digits_size
    memcpy(at, b"\r\n", 2)
    memcpy(at + 2, PyBytes_AS_STRING(payload), size)
    memcpy(at + 2 + size, b"\r\n", 2)
    return reply
