# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""Reads and writes the bits of Huffman-coded JPEG scans; shared by `_jpeg` and `_progressive`.

A scan is *cleaned* before it is read: it is copied, without byte stuffing and restart markers, into a private buffer
that always has `GUARD` bytes beyond its end, more than one block can consume. `clean` checks every read of input bytes
against the length of the input; code that reads the buffer checks after every block that it has not passed the end.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy, memset


cdef enum:
    MAX_COMPONENTS = 4
    GUARD = 512  # one block consumes at most 64 × (16 + 15) bits = 248 bytes; loads reach 9 bytes further
    MAX_RST_GAP = 8  # an interval ends within the last byte before its marker


cdef enum Status:
    OK = 0
    NO_MEMORY
    BAD_CODE
    BAD_RUN
    BAD_DC
    NO_DC_CODE
    SHORT
    BAD_MARKER
    BAD_RESTART
    BAD_INDEX


cdef struct Huffman:
    uint32_t limit[17]  # limit[n]: first 16-bit left-aligned value above all codes of up to n bits
    int32_t offset[17]  # offset[n] + code of n bits = position in `values`
    uint8_t values[256]


cdef struct Cursor:
    const uint8_t *raw
    size_t raw_bytes
    size_t raw_next  # first byte not yet cleaned
    uint8_t *buf
    size_t filled
    size_t capacity
    size_t *breaks  # positions in `buf` at which restart markers were removed
    size_t breaks_known
    size_t breaks_capacity
    size_t breaks_passed
    size_t end  # position in `buf`, in bits, that no MCU may pass
    size_t pos  # position in `buf`, in bits: the next MCU, or the padding before a restart
    uint32_t mcu
    uint32_t to_restart  # MCUs left before a restart marker is due
    size_t point  # the last index point jumped to
    int32_t dc[MAX_COMPONENTS]


cdef struct Writer:
    uint8_t *buf
    size_t filled
    size_t capacity
    uint64_t held  # the lowest `held_bits` bits are not yet in `buf`
    int held_bits  # 0 .. 31


cdef inline uint64_t load(const uint8_t *p) noexcept nogil:
    return (
        <uint64_t>p[0] << 56 | <uint64_t>p[1] << 48 | <uint64_t>p[2] << 40 | <uint64_t>p[3] << 32
        | <uint64_t>p[4] << 24 | <uint64_t>p[5] << 16 | <uint64_t>p[6] << 8 | <uint64_t>p[7]
    )


cdef inline uint64_t peek(const uint8_t *buf, size_t pos) noexcept nogil:
    """Return at least 57 bits from bit `pos` on, left-aligned."""
    return load(buf + (pos >> 3)) << (pos & 7)


# Huffman tables


cdef inline int build_huffman(Huffman *table, const uint8_t *spec) noexcept nogil:
    """Fill in the table from `spec`: 16 counts, then the values; return 0 if libjpeg would not accept the code."""
    cdef uint32_t code = 0
    cdef int used = 0
    cdef int n
    memset(table.values, 0, sizeof(table.values))
    table.limit[0] = 0
    table.offset[0] = 0
    for n in range(1, 17):
        table.offset[n] = used - <int32_t>code
        if used + spec[n - 1] > 256:
            return 0
        memcpy(table.values + used, spec + 16 + used, spec[n - 1])
        used += spec[n - 1]
        code += spec[n - 1]
        if spec[n - 1] and code >= <uint32_t>1 << n:
            return 0
        table.limit[n] = code << (16 - n)
        code <<= 1
    return 1


cdef inline int symbol(const Huffman *table, uint64_t bits, int *code_bits) noexcept nogil:
    """Return the next symbol, or -1 if there is none; `code_bits` gets the length of its code."""
    cdef uint32_t top = <uint32_t>(bits >> 48)
    cdef int n = 1
    while n <= 16 and top >= table.limit[n]:
        n += 1
    if n > 16:
        return -1
    code_bits[0] = n
    return table.values[(<int32_t>(top >> (16 - n)) + table.offset[n]) & 0xFF]


cdef inline const uint8_t *checked(bytes spec) except NULL:
    """Return the bytes of a Huffman table after checking that it has as many values as its counts say."""
    cdef const uint8_t *counts = <const uint8_t *>PyBytes_AS_STRING(spec)
    cdef Py_ssize_t values = 0
    cdef int i
    if len(spec) >= 16:
        for i in range(16):
            values += counts[i]
    if len(spec) != 16 + values or values > 256:
        raise ValueError("a Huffman table needs 16 counts and as many values as they add up to")
    return counts


# Cleaning


cdef inline int reserve_input(Cursor *c, size_t extra) noexcept nogil:
    cdef size_t need = c.filled + extra + GUARD
    cdef uint8_t *grown
    if need <= c.capacity:
        return OK
    if need < 2 * c.capacity:
        need = 2 * c.capacity
    grown = <uint8_t *>realloc(c.buf, need)
    if grown == NULL:
        return NO_MEMORY
    memset(grown + c.capacity, 0, need - c.capacity)
    c.buf = grown
    c.capacity = need
    return OK


cdef inline int note_break(Cursor *c) noexcept nogil:
    cdef size_t capacity
    cdef size_t *grown
    if c.breaks_known == c.breaks_capacity:
        capacity = 2 * c.breaks_capacity + 64
        grown = <size_t *>realloc(c.breaks, capacity * sizeof(size_t))
        if grown == NULL:
            return NO_MEMORY
        c.breaks = grown
        c.breaks_capacity = capacity
    c.breaks[c.breaks_known] = c.filled
    c.breaks_known += 1
    return OK


cdef inline int clean(Cursor *c, size_t until, bint ordered, bint to_eoi) noexcept nogil:
    """Clean the bytes before offset `until`, which is at most `raw_bytes`.

    With `ordered`, restart markers must count up from RST0. With `to_eoi`, an EOI marker must come before `until`, and
    cleaning stops there. Without `to_eoi`, there must be no markers other than RSTn, and no marker cut in two.
    """
    cdef const uint8_t *p = c.raw + c.raw_next
    cdef const uint8_t *end = c.raw + until
    cdef const uint8_t *q
    cdef size_t run
    cdef int status, code
    if c.raw_next > until:
        return BAD_INDEX
    status = reserve_input(c, until - c.raw_next)
    if status:
        return status
    while p < end:
        q = <const uint8_t *>memchr(p, 0xFF, end - p)
        run = (end if q == NULL else q) - p
        memcpy(c.buf + c.filled, p, run)
        c.filled += run
        if q == NULL:
            break
        if q + 1 == end:
            return BAD_MARKER
        code = q[1]
        if code == 0:
            c.buf[c.filled] = 0xFF
            c.filled += 1
        elif code & 0xF8 == 0xD0:
            if ordered and <size_t>(code & 7) != (c.breaks_known & 7):
                return BAD_RESTART
            status = note_break(c)
            if status:
                return status
        elif code == 0xD9 and to_eoi:
            c.raw_next = q - c.raw
            return OK
        else:
            return BAD_MARKER
        p = q + 2
    if to_eoi:
        return BAD_MARKER
    c.raw_next = until
    return OK


cdef inline void free_cursor(Cursor *c) noexcept nogil:
    free(c.buf)
    free(c.breaks)


cdef inline size_t segment_end(const Cursor *c) noexcept nogil:
    if c.breaks_passed < c.breaks_known:
        return c.breaks[c.breaks_passed] << 3
    return c.end


cdef inline int restart(Cursor *c, uint32_t interval) noexcept nogil:
    """Pass the restart marker that is due at this point."""
    cdef size_t at
    cdef int i
    if c.breaks_passed >= c.breaks_known:
        return BAD_RESTART
    at = c.breaks[c.breaks_passed] << 3
    if at < c.pos or at - c.pos >= MAX_RST_GAP:
        return BAD_RESTART
    c.breaks_passed += 1
    c.pos = at
    for i in range(MAX_COMPONENTS):
        c.dc[i] = 0
    c.to_restart = interval
    return OK


# Writing


cdef inline int reserve_output(Writer *out, size_t extra) noexcept nogil:
    cdef size_t need = out.filled + extra
    cdef uint8_t *grown
    if need <= out.capacity:
        return OK
    if need < 2 * out.capacity:
        need = 2 * out.capacity
    if need < 16384:
        need = 16384
    grown = <uint8_t *>realloc(out.buf, need)
    if grown == NULL:
        return NO_MEMORY
    out.buf = grown
    out.capacity = need
    return OK


cdef inline void put(Writer *out, uint64_t value, int bits) noexcept nogil:
    """Write up to 32 bits."""
    out.held = out.held << bits | value
    out.held_bits += bits
    if out.held_bits >= 32:
        out.held_bits -= 32
        value = out.held >> out.held_bits
        out.buf[out.filled] = <uint8_t>(value >> 24)
        out.buf[out.filled + 1] = <uint8_t>(value >> 16)
        out.buf[out.filled + 2] = <uint8_t>(value >> 8)
        out.buf[out.filled + 3] = <uint8_t>value
        out.filled += 4


cdef inline void put_whole_bytes(Writer *out) noexcept nogil:
    while out.held_bits >= 8:
        out.held_bits -= 8
        out.buf[out.filled] = <uint8_t>(out.held >> out.held_bits)
        out.filled += 1


cdef inline size_t stuffed_bytes(const Writer *out) noexcept nogil:
    cdef const uint8_t *p = out.buf
    cdef const uint8_t *end = out.buf + out.filled
    cdef size_t escapes = 0
    while p < end:
        p = <const uint8_t *>memchr(p, 0xFF, end - p)
        if p == NULL:
            break
        escapes += 1
        p += 1
    return out.filled + escapes


cdef inline void stuff(const Writer *out, uint8_t *to) noexcept nogil:
    """Write the scan with its byte stuffing and an EOI marker."""
    cdef const uint8_t *p = out.buf
    cdef const uint8_t *end = out.buf + out.filled
    cdef const uint8_t *q
    while p < end:
        q = <const uint8_t *>memchr(p, 0xFF, end - p)
        if q == NULL:
            memcpy(to, p, end - p)
            to += end - p
            break
        memcpy(to, p, q + 1 - p)
        to += q + 1 - p
        to[0] = 0
        to += 1
        p = q + 1
    to[0] = 0xFF
    to[1] = 0xD9


