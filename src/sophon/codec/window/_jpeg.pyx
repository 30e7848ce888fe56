# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=True
"""The bit-level work of the `window` codec: walks, indexes and cuts one Huffman-coded JPEG scan.

A scan is first *cleaned* (copied into a private buffer, without byte stuffing and restart markers), then walked there
block by block. Walking needs only the lengths of AC codes, never their values, so one table look-up passes several
coefficients at once. Cutting copies the bits of the kept MCUs unchanged; a DC difference is rewritten only where the
preceding block is not the same as in the source.

Memory safety: input bytes are read only in `clean`, `locate`, `jump`, `fingerprint` and `condensed`, and every read is
checked against the length of the buffer. Everything else reads the private buffer, which always has `GUARD` bytes
beyond its end, more than one block can consume; the end is checked after every block. Numbers that come from an index
are checked against the file before use. If another thread changes the buffer in the meantime, the result is a wrong
picture, but never an out-of-bounds read.

Concurrency: no global state; a `Scan` does not change after construction, so threads may share one. `index`, `cut`,
`fingerprint` and `condensed` release the GIL.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcpy, memset

from sophon.codec.window._bits cimport (
    BAD_CODE, BAD_DC, BAD_INDEX, BAD_MARKER, BAD_RESTART, BAD_RUN, GUARD, MAX_COMPONENTS, NO_DC_CODE, NO_MEMORY, OK,
    SHORT, Cursor, Huffman, Writer, build_huffman, checked, clean, free_cursor, load, peek, put, put_whole_bytes,
    reserve_output, restart, segment_end, stuff, stuffed_bytes, symbol,
)

from sophon.codec.window.refusal import NotWindowable
from sophon.errors import ArtifactError


cdef extern from *:
    """
    typedef unsigned __int128 sophon_wide;
    """
    ctypedef unsigned long long sophon_wide


cdef enum:
    MAX_TABLES = 4
    DC_BITS = 9  # width of the look-up table; longer codes take the slow path
    MAX_AC_BITS = 11
    LONG = 0xFF00  # look-up entry: decode this code by the slow path
    END_OF_BLOCK = 128  # advance of an entry that ends the block; coefficients passed before it are added
    DC_LIMIT = 2047  # |DC| of an 8-bit picture never exceeds this, so differences fit in 12 bits
    DC_CATEGORIES = 12
    BLOCK_WORDS = 512  # `condensed` makes two words of them; a key of this size stays in the fastest cache


_REASONS = {
    BAD_CODE: "a Huffman code or symbol that has no meaning",
    BAD_RUN: "a block with more than 64 coefficients",
    BAD_DC: "a DC value out of the range of 8-bit pictures",
    NO_DC_CODE: "a DC difference that the Huffman table cannot hold",
    SHORT: "entropy-coded data that end too early",
    BAD_MARKER: "entropy-coded data without an EOI marker at their end",
    BAD_RESTART: "restart markers that are missing, surplus or out of order",
}


cdef struct DcTable:
    Huffman huffman
    uint16_t look[1 << DC_BITS]  # code bits << 8 | category, or LONG


cdef struct AcTable:
    Huffman huffman
    int shift  # 64 - width of `look` in bits
    uint16_t look[1 << MAX_AC_BITS]  # coefficients passed << 8 | bits passed, or LONG
    uint32_t eob_code
    int eob_bits


cdef struct DcCode:
    uint32_t code[DC_CATEGORIES]
    int bits[DC_CATEGORIES]  # 0: the table has no such category


cdef struct Layout:
    int components
    int h[MAX_COMPONENTS]
    int v[MAX_COMPONENTS]
    int dc[MAX_COMPONENTS]
    int ac[MAX_COMPONENTS]
    size_t start  # offset of the first entropy-coded byte
    uint32_t per_row  # MCUs
    uint32_t rows
    uint32_t interval  # MCUs between restarts, or more than there are MCUs


cdef struct Points:
    size_t known
    uint32_t stride
    uint32_t per_row
    uint64_t *bit  # position in the file
    int16_t *dc  # known × components


cdef struct Region:
    uint32_t x0, x1, y0, y1  # MCUs
    uint32_t whole_x0, whole_x1  # columns in which every block is kept
    # Blocks that are kept, by component; all others become a DC difference of zero and an end of block.
    uint32_t bx0[MAX_COMPONENTS]
    uint32_t bx1[MAX_COMPONENTS]
    uint32_t by0[MAX_COMPONENTS]
    uint32_t by1[MAX_COMPONENTS]


cdef inline void store(uint8_t *p, uint64_t word) noexcept nogil:
    p[0] = <uint8_t>(word >> 56)
    p[1] = <uint8_t>(word >> 48)
    p[2] = <uint8_t>(word >> 40)
    p[3] = <uint8_t>(word >> 32)
    p[4] = <uint8_t>(word >> 24)
    p[5] = <uint8_t>(word >> 16)
    p[6] = <uint8_t>(word >> 8)
    p[7] = <uint8_t>word


# Huffman tables


cdef inline uint32_t ac_entry(int value, int code_bits) noexcept nogil:
    """Return the look-up entry of one AC symbol."""
    cdef int run = value >> 4
    cdef int size = value & 15
    if size:
        return (run + 1) << 8 | (code_bits + size)
    if run == 15:
        return 16 << 8 | code_bits
    if run == 0:
        return END_OF_BLOCK << 8 | code_bits
    return LONG


cdef void fill(uint16_t *look, uint8_t *lengths, const uint8_t *spec, int width, bint ac) noexcept nogil:
    """Fill a look-up table of `width` bits with single symbols."""
    cdef uint32_t code = 0
    cdef uint32_t first
    cdef int p = 0
    cdef int n, i
    cdef uint16_t entry
    for i in range(1 << width):
        look[i] = LONG
    memset(lengths, 0, <size_t>1 << width)
    for n in range(1, width + 1):
        for i in range(spec[n - 1]):
            entry = <uint16_t>(ac_entry(spec[16 + p], n) if ac else n << 8 | spec[16 + p])
            for first in range(code << (width - n), (code + 1) << (width - n)):
                look[first] = entry
                lengths[first] = <uint8_t>n
            code += 1
            p += 1
        code <<= 1


cdef int build_dc(DcTable *table, const uint8_t *spec) noexcept nogil:
    cdef uint8_t lengths[1 << DC_BITS]
    if not build_huffman(&table.huffman, spec):
        return 0
    fill(table.look, lengths, spec, DC_BITS, False)
    return 1


cdef int build_ac(AcTable *table, const uint8_t *spec, int width) noexcept nogil:
    cdef uint8_t lengths[1 << MAX_AC_BITS]
    cdef uint16_t single[1 << MAX_AC_BITS]
    cdef uint32_t code = 0
    cdef uint32_t mask = (1 << width) - 1
    cdef uint32_t entry, second, passed, i, j
    cdef int n, p
    if not build_huffman(&table.huffman, spec):
        return 0
    table.shift = 64 - width
    fill(single, lengths, spec, width, True)
    # Join symbols: the bits of an entry may include the next codes too, even if not all of their magnitude bits.
    for i in range(mask + 1):
        entry = single[i]
        while entry < (END_OF_BLOCK << 8):
            passed = entry & 0xFF
            if passed >= <uint32_t>width:
                break
            j = (i << passed) & mask
            second = single[j]
            if (
                second == LONG
                or passed + lengths[j] > <uint32_t>width
                or (entry >> 8) + ((second >> 8) & (END_OF_BLOCK - 1)) > 63
            ):
                break
            entry += second
        table.look[i] = <uint16_t>entry
    table.eob_code = 0
    table.eob_bits = 0
    p = 0
    for n in range(1, 17):
        for i in range(spec[n - 1]):
            if spec[16 + p] == 0 and table.eob_bits == 0:
                table.eob_code = code
                table.eob_bits = n
            code += 1
            p += 1
        code <<= 1
    return 1


cdef void build_code(DcCode *table, const uint8_t *spec) noexcept nogil:
    cdef uint32_t code = 0
    cdef int p = 0
    cdef int n, i, value
    for i in range(DC_CATEGORIES):
        table.bits[i] = 0
    for n in range(1, 17):
        for i in range(spec[n - 1]):
            value = spec[16 + p]
            if value < DC_CATEGORIES and table.bits[value] == 0:
                table.code[value] = code
                table.bits[value] = n
            code += 1
            p += 1
        code <<= 1


# Walking blocks


cdef inline int walk_dc(const DcTable *table, const uint8_t *buf, size_t *pos, int32_t *dc) noexcept nogil:
    """Pass the DC difference of a block and add it to the predictor."""
    cdef uint64_t bits = peek(buf, pos[0])
    cdef uint32_t entry = table.look[bits >> (64 - DC_BITS)]
    cdef int n, category
    if entry == LONG:
        category = symbol(&table.huffman, bits, &n)
        if category < 0:
            return BAD_CODE
    else:
        n = entry >> 8
        category = entry & 0xFF
    if category >= DC_CATEGORIES:
        return BAD_DC
    # Without branches, which would be mispredicted half of the time: no magnitude bits if the category is 0, and
    # a leading zero bit means a negative difference.
    bits <<= n
    dc[0] += <int32_t>((bits >> 1) >> (63 - category)) + ((<int32_t>(bits >> 63) - 1) & (1 - (1 << category)))
    if dc[0] > DC_LIMIT or dc[0] < -DC_LIMIT:
        return BAD_DC
    pos[0] += n + category
    return OK


cdef inline int walk_ac(const AcTable *table, const uint8_t *buf, size_t *at) noexcept nogil:
    """Pass the AC coefficients of a block."""
    cdef size_t pos = at[0]
    cdef uint64_t bits
    cdef int k = 1
    cdef int after, value, n
    cdef uint32_t entry
    while True:
        # 57 bits are enough for an entry, which passes at most 11 + 15 bits, and for any one symbol after it.
        bits = peek(buf, pos)
        entry = table.look[bits >> table.shift]
        after = k + <int>(entry >> 8)
        if after < 64:
            n = entry & 0xFF
            pos += n
            k = after
            bits <<= n
            entry = table.look[bits >> table.shift]
            after = k + <int>(entry >> 8)
            if after < 64:
                pos += entry & 0xFF
                k = after
                continue
        if after == 64 or (entry >= (END_OF_BLOCK << 8) and entry != LONG and after - END_OF_BLOCK < 64):
            at[0] = pos + (entry & 0xFF)
            return OK
        # A long code, or joined symbols of which only the first few belong to this block: take a single symbol.
        value = symbol(&table.huffman, bits, &n)
        if value < 0:
            return BAD_CODE
        entry = ac_entry(value, n)
        if entry == LONG:
            return BAD_CODE
        after = k + <int>(entry >> 8)
        pos += entry & 0xFF
        if after < 64:
            k = after
            continue
        if after > 64 and entry < (END_OF_BLOCK << 8):
            return BAD_RUN
        at[0] = pos
        return OK


cdef int open_whole(Cursor *c, const Layout *layout) noexcept nogil:
    """Clean the scan to its end and place the cursor before its first MCU."""
    cdef uint64_t mcus = <uint64_t>layout.per_row * layout.rows
    cdef int status
    c.raw_next = layout.start
    status = clean(c, c.raw_bytes, True, True)
    if status:
        return status
    if c.breaks_known != (mcus - 1) // layout.interval:
        return BAD_RESTART
    memset(c.buf + c.filled, 0, GUARD)
    c.end = c.filled << 3
    c.to_restart = layout.interval
    return OK


# Index points


cdef int unpack(Points *points, const uint8_t *packed, size_t packed_bytes, const Layout *layout, size_t raw_bytes,
                uint32_t stride, uint32_t rows) noexcept nogil:
    """Read the points of the first `rows` rows and the next point; every number is checked against the file."""
    cdef size_t known, i
    cdef size_t at = 0
    cdef uint64_t bit = <uint64_t>layout.start << 3
    cdef uint64_t last = <uint64_t>raw_bytes << 3
    cdef uint64_t value
    cdef int32_t dc[MAX_COMPONENTS]
    cdef int c, shift
    if stride == 0:
        return BAD_INDEX
    points.stride = stride
    points.per_row = (layout.per_row - 1) // stride + 1
    known = <size_t>points.per_row * rows + 1
    # A point has at least one byte for its position and one for each DC value, which bounds the allocation.
    if packed_bytes // (1 + layout.components) < known:
        return BAD_INDEX
    points.known = known
    points.bit = <uint64_t *>malloc(known * sizeof(uint64_t))
    points.dc = <int16_t *>malloc(known * layout.components * sizeof(int16_t))
    if points.bit == NULL or points.dc == NULL:
        return NO_MEMORY
    for c in range(MAX_COMPONENTS):
        dc[c] = 0
    for i in range(known):
        for c in range(-1, layout.components):
            value = 0
            shift = 0
            while True:
                if at >= packed_bytes or shift > 42:
                    return BAD_INDEX
                value |= <uint64_t>(packed[at] & 0x7F) << shift
                shift += 7
                at += 1
                if packed[at - 1] < 0x80:
                    break
            if c < 0:
                bit += value
                if bit > last:
                    return BAD_INDEX
                points.bit[i] = bit
            else:
                if value > 4 * DC_LIMIT + 1:
                    return BAD_INDEX
                dc[c] += <int32_t>(value >> 1) ^ -<int32_t>(value & 1)
                if dc[c] > DC_LIMIT or dc[c] < -DC_LIMIT:
                    return BAD_INDEX
                points.dc[i * layout.components + c] = <int16_t>dc[c]
    return OK if at == packed_bytes or rows < layout.rows else BAD_INDEX


cdef inline uint32_t mcu_of(const Layout *layout, const Points *points, size_t point) noexcept nogil:
    cdef uint32_t row = <uint32_t>(point // points.per_row)
    return row * layout.per_row + <uint32_t>(point - <size_t>row * points.per_row) * points.stride


cdef int jump(Cursor *c, const Layout *layout, const Points *points, size_t point) noexcept nogil:
    """Move to an index point at or after the bytes already cleaned, and clean all bytes up to the next point."""
    cdef size_t byte = <size_t>(points.bit[point] >> 3)
    cdef size_t following
    cdef int status, i
    status = clean(c, byte, False, False)
    if status:
        return status
    c.pos = (c.filled << 3) + (points.bit[point] & 7)
    c.breaks_passed = c.breaks_known
    for i in range(layout.components):
        c.dc[i] = points.dc[point * layout.components + i]
    c.point = point
    c.mcu = mcu_of(layout, points, point)
    c.to_restart = layout.interval - c.mcu % layout.interval
    following = point + 1 if point + 1 < points.known else point
    status = clean(c, <size_t>(points.bit[following] >> 3), False, False)
    if status:
        return status
    # The byte that contains the next point is readable but not cleaned: a later jump to that point starts with it.
    c.buf[c.filled] = c.raw[c.raw_next] if c.raw_next < c.raw_bytes else 0
    c.end = (c.filled << 3) + (points.bit[following] & 7)
    return OK


cdef int step(Cursor *c, const Layout *layout, const Points *points) noexcept nogil:
    """Continue from the next index point, which a walk has just reached; both must agree."""
    cdef Cursor walked = c[0]
    cdef int status, i
    status = jump(c, layout, points, c.point + 1)
    if status or walked.to_restart == 0:
        return status
    if c.pos != walked.pos:
        return BAD_INDEX
    for i in range(layout.components):
        if c.dc[i] != walked.dc[i]:
            return BAD_INDEX
    return OK


# Writing


cdef void copy(Writer *out, const uint8_t *buf, size_t start, size_t end) noexcept nogil:
    """Write the bits from `start` to `end`; the caller has reserved enough space for them and 32 more bytes."""
    cdef const uint8_t *p = buf + (start >> 3)
    cdef size_t left = end - start
    cdef int shift = start & 7
    cdef int held
    cdef uint64_t bits, carry
    cdef uint8_t *to
    if left >= 64:
        put_whole_bytes(out)
        held = out.held_bits
        carry = (out.held << 1) << (63 - held)
        to = out.buf + out.filled
        while left >= 64:
            bits = load(p) << shift | p[8] >> (8 - shift)
            store(to, carry | bits >> held)
            carry = (bits << 1) << (63 - held)
            p += 8
            to += 8
            left -= 64
        out.filled = to - out.buf
        out.held = (carry >> 1) >> (63 - held)
    bits = load(p) << shift | p[8] >> (8 - shift)
    if left >= 32:
        put(out, bits >> 32, 32)
        bits <<= 32
        left -= 32
    if left:
        put(out, bits >> (64 - left), <int>left)


cdef inline int put_dc(Writer *out, const DcCode *table, int32_t difference) noexcept nogil:
    cdef uint32_t magnitude = <uint32_t>(difference if difference >= 0 else -difference)
    cdef int category = 0
    while magnitude >> category:
        category += 1
    if category >= DC_CATEGORIES or table.bits[category] == 0:
        return NO_DC_CODE
    if difference < 0:
        difference += (1 << category) - 1
    put(out, <uint64_t>table.code[category] << category | <uint32_t>difference, table.bits[category] + category)
    return OK


cdef inline void put_leb128(Writer *out, uint64_t value) noexcept nogil:
    while value >= 0x80:
        out.buf[out.filled] = <uint8_t>(value | 0x80)
        out.filled += 1
        value >>= 7
    out.buf[out.filled] = <uint8_t>value
    out.filled += 1


cdef inline uint64_t zigzag(int32_t value) noexcept nogil:
    return <uint64_t>(2 * value if value >= 0 else -2 * value - 1)


cdef void locate(const Cursor *c, size_t *raw, size_t *byte, size_t target) noexcept nogil:
    """Advance `raw`, the offset in the file of cleaned byte `byte`, to the offset of cleaned byte `target`."""
    cdef const uint8_t *p = c.raw + raw[0]
    cdef const uint8_t *end = c.raw + c.raw_next
    cdef const uint8_t *q
    cdef size_t left = target - byte[0]
    while p < end:
        if p[0] == 0xFF and p + 1 < end and p[1] != 0:
            p += 2  # a restart marker has no cleaned byte; a point at a marker is placed after it
            continue
        if left == 0:
            break
        if p[0] == 0xFF:
            p += 2
            left -= 1
            continue
        q = <const uint8_t *>memchr(p, 0xFF, min(left, <size_t>(end - p)))
        if q == NULL:
            q = p + min(left, <size_t>(end - p))
        left -= q - p
        p = q
    raw[0] = p - c.raw
    byte[0] = target


cdef object refusal(int status):
    if status == NO_MEMORY:
        return MemoryError()
    if status == BAD_INDEX:
        return ArtifactError("a window index whose points do not fit the file; build it again")
    return NotWindowable(_REASONS[status])


# Walking MCUs


@cython.final
cdef class Scan:
    """One Huffman-coded scan with all components.

    Args:
        start: Offset of its first entropy-coded byte.
        per_row: MCUs per row.
        rows: Rows of MCUs.
        interval: MCUs between restart markers, 0 for none.
        components: For each component, its blocks across and down in an MCU, and the numbers of its quantisation, DC
            and AC tables.
        dc_tables: Table number → 16 counts, then the values; at least the DC tables that the components use.
        ac_tables: The same for AC tables.
        look_bits: Width of the look-up tables for AC codes, 8 to 11 bits: wider ones pay off in longer walks.

    Raises:
        NotWindowable: A table is not a prefix code.
    """

    cdef Layout layout
    cdef DcTable dc_tables[MAX_TABLES]
    cdef AcTable ac_tables[MAX_TABLES]

    def __init__(self, size_t start, uint32_t per_row, uint32_t rows, uint32_t interval, tuple components,
                 dict dc_tables, dict ac_tables, int look_bits):
        cdef int i, h, v, dc, ac
        cdef int built_dc = 0
        cdef int built_ac = 0
        if not 8 <= look_bits <= MAX_AC_BITS:
            raise ValueError(f"look-up tables of {look_bits} bits; expected 8 to {MAX_AC_BITS}")
        if not 0 < per_row < 1 << 14 or not 0 < rows < 1 << 14:
            raise ValueError(f"a scan of {per_row} × {rows} MCUs; expected 1 to 16383 each way")
        if not 0 < len(components) <= MAX_COMPONENTS:
            raise ValueError(f"{len(components)} components; expected 1 to 4")
        self.layout.start = start
        self.layout.per_row = per_row
        self.layout.rows = rows
        self.layout.interval = interval if interval else 0xFFFFFFFF
        self.layout.components = len(components)
        for i, (h, v, _, dc, ac) in enumerate(components):
            if not (0 < h <= 4 and 0 < v <= 4 and 0 <= dc < MAX_TABLES and 0 <= ac < MAX_TABLES):
                raise ValueError(f"component {i}: sampling or table out of range")
            self.layout.h[i] = h
            self.layout.v[i] = v
            self.layout.dc[i] = dc
            self.layout.ac[i] = ac
            if not built_dc >> dc & 1 and not build_dc(&self.dc_tables[dc], checked(dc_tables[dc])):
                raise NotWindowable("a Huffman table that is not a prefix code")
            if not built_ac >> ac & 1 and not build_ac(&self.ac_tables[ac], checked(ac_tables[ac]), look_bits):
                raise NotWindowable("a Huffman table that is not a prefix code")
            built_dc |= 1 << dc
            built_ac |= 1 << ac

    def index(self, const uint8_t[::1] data, uint32_t stride):
        """Walk the whole scan and return its packed index points, one at every `stride` MCUs of each row.

        A point is the bit position in the file and the DC predictors, each as the difference from the previous point,
        in LEB128 (zigzag-coded if signed). The last point is the end of the last MCU.

        Raises:
            NotWindowable: The scan is damaged.
        """
        cdef Cursor cursor
        cdef Writer out
        cdef int status
        if stride == 0:
            raise ValueError("stride 0; expected at least 1")
        memset(&cursor, 0, sizeof(Cursor))
        memset(&out, 0, sizeof(Writer))
        if self.layout.start >= <size_t>data.shape[0]:
            raise NotWindowable(_REASONS[SHORT])
        cursor.raw = &data[0]
        cursor.raw_bytes = data.shape[0]
        try:
            with nogil:
                status = self._index(&cursor, &out, stride)
            if status:
                raise refusal(status)
            return PyBytes_FromStringAndSize(<char *>out.buf, out.filled)
        finally:
            free_cursor(&cursor)
            free(out.buf)

    def cut(self, const uint8_t[::1] data, tuple region, tuple kept, dict dc_targets, bytes head,
            bytes points=None, uint32_t stride=0):
        """Return `head`, the scan of a region, and an EOI marker.

        Args:
            data: The whole file.
            region: MCUs (left, top, right, bottom).
            kept: For each component, the blocks (left, top, right, bottom) whose samples matter; the coefficients of
                all other blocks are dropped.
            dc_targets: Table number → the DC table that the new scan is written with: the same codes, and possibly
                more.
            head: Everything before the new scan.
            points: Packed index points; without them the scan is walked from its start.
            stride: Number of MCUs between two points of a row.

        Raises:
            NotWindowable: The scan is damaged in the part that was walked.
            ArtifactError: The points do not fit the file.
        """
        cdef Cursor cursor
        cdef Points known
        cdef Writer out
        cdef Region r
        cdef DcCode codes[MAX_TABLES]
        cdef const uint8_t *packed = NULL
        cdef size_t packed_bytes = 0
        cdef int status, i
        cdef bytes result
        cdef size_t size
        cdef uint8_t *scan
        memset(&cursor, 0, sizeof(Cursor))
        memset(&known, 0, sizeof(Points))
        memset(&out, 0, sizeof(Writer))
        memset(&r, 0, sizeof(Region))
        if self.layout.start >= <size_t>data.shape[0]:
            raise NotWindowable(_REASONS[SHORT])
        r.x0, r.y0, r.x1, r.y1 = region
        if not (r.x0 < r.x1 <= self.layout.per_row and r.y0 < r.y1 <= self.layout.rows):
            raise ValueError(f"a region of {region} MCUs outside of the scan")
        if len(kept) != self.layout.components:
            raise ValueError(f"kept blocks of {len(kept)} components; expected {self.layout.components}")
        for i in range(self.layout.components):
            r.bx0[i], r.by0[i], r.bx1[i], r.by1[i] = kept[i]
            build_code(&codes[self.layout.dc[i]], checked(dc_targets[self.layout.dc[i]]))
        if points is not None:
            packed = <const uint8_t *>PyBytes_AS_STRING(points)
            packed_bytes = len(points)
        cursor.raw = &data[0]
        cursor.raw_bytes = data.shape[0]
        try:
            with nogil:
                status = self._cut(&cursor, &known, packed, packed_bytes, stride, &r, codes, &out)
                size = stuffed_bytes(&out)
            if status:
                raise refusal(status)
            result = PyBytes_FromStringAndSize(NULL, len(head) + size + 2)
            memcpy(PyBytes_AS_STRING(result), PyBytes_AS_STRING(head), len(head))
            scan = <uint8_t *>PyBytes_AS_STRING(result) + len(head)
            with nogil:
                stuff(&out, scan)
            return result
        finally:
            free_cursor(&cursor)
            free(known.bit)
            free(known.dc)
            free(out.buf)

    cdef inline int skip(self, Cursor *c) noexcept nogil:
        """Pass one MCU."""
        cdef const Layout *layout = &self.layout
        cdef size_t end
        cdef int i, block, status
        if c.to_restart == 0:
            status = restart(c, layout.interval)
            if status:
                return status
        end = segment_end(c)
        for i in range(layout.components):
            for block in range(layout.h[i] * layout.v[i]):
                status = walk_dc(&self.dc_tables[layout.dc[i]], c.buf, &c.pos, &c.dc[i])
                if status:
                    return status
                status = walk_ac(&self.ac_tables[layout.ac[i]], c.buf, &c.pos)
                if status:
                    return status
                if c.pos > end:
                    return SHORT
        c.mcu += 1
        c.to_restart -= 1
        return OK

    cdef int walk_to(self, Cursor *c, uint32_t mcu) noexcept nogil:
        """Pass all MCUs before `mcu`, but not a restart marker directly before it."""
        cdef int status
        while c.mcu < mcu:
            status = self.skip(c)
            if status:
                return status
        return OK

    cdef int advance(self, Cursor *c, const Points *points, uint32_t mcu) noexcept nogil:
        """Do the same as `walk_to`, for an MCU in this row or the first of the next, by the index if there is one."""
        cdef uint32_t row, column
        cdef size_t point
        cdef int status
        if points.known:
            row = c.mcu // self.layout.per_row
            column = mcu - row * self.layout.per_row
            # A point at a restart is placed after the marker, but the end of the MCU before it is wanted here.
            if mcu % self.layout.interval == 0:
                column -= 1
            point = <size_t>row * points.per_row
            point += points.per_row if column == self.layout.per_row else column // points.stride
            if point > c.point:
                status = jump(c, &self.layout, points, point)
                if status:
                    return status
        return self.walk_to(c, mcu)

    cdef int _index(self, Cursor *c, Writer *out, uint32_t stride) noexcept nogil:
        cdef const Layout *layout = &self.layout
        cdef int32_t dc[MAX_COMPONENTS]
        cdef uint64_t before = <uint64_t>layout.start << 3
        cdef uint64_t bit
        cdef uint32_t row, column
        cdef size_t byte = 0  # index of the cleaned byte whose offset in the file is `raw`
        cdef size_t raw = layout.start
        cdef int status, i
        status = open_whole(c, layout)
        if status:
            return status
        memset(dc, 0, sizeof(dc))
        row = 0
        column = 0
        while True:
            # Every point except the last is at the start of an MCU.
            if row < layout.rows and c.to_restart == 0:
                status = restart(c, layout.interval)
                if status:
                    return status
            locate(c, &raw, &byte, c.pos >> 3)
            if reserve_output(out, 64):
                return NO_MEMORY
            bit = (<uint64_t>raw << 3) + (c.pos & 7)
            put_leb128(out, bit - before)
            before = bit
            for i in range(layout.components):
                put_leb128(out, zigzag(c.dc[i] - dc[i]))
                dc[i] = c.dc[i]
            if row == layout.rows:
                return OK
            column += stride
            if column >= layout.per_row:
                column = 0
                row += 1
            status = self.walk_to(c, row * layout.per_row + column)
            if status:
                return status

    cdef int careful(self, Cursor *c, const Region *r, const DcCode *codes, int32_t *predictor,
                     Writer *out) noexcept nogil:
        """Copy one MCU block by block: rewrite all DC differences and drop blocks that are not kept."""
        cdef const Layout *layout = &self.layout
        cdef const AcTable *ac
        cdef uint32_t column = c.mcu % layout.per_row
        cdef uint32_t row = c.mcu // layout.per_row
        cdef uint32_t bx, by
        cdef size_t ac_start
        cdef size_t end = segment_end(c)
        cdef int i, x, y, status
        for i in range(layout.components):
            ac = &self.ac_tables[layout.ac[i]]
            for y in range(layout.v[i]):
                by = row * layout.v[i] + y
                for x in range(layout.h[i]):
                    bx = column * layout.h[i] + x
                    status = walk_dc(&self.dc_tables[layout.dc[i]], c.buf, &c.pos, &c.dc[i])
                    if status:
                        return status
                    ac_start = c.pos
                    status = walk_ac(ac, c.buf, &c.pos)
                    if status:
                        return status
                    if c.pos > end:
                        return SHORT
                    if reserve_output(out, ((c.pos - ac_start) >> 3) + 32):
                        return NO_MEMORY
                    if (
                        (bx < r.bx0[i] or bx >= r.bx1[i] or by < r.by0[i] or by >= r.by1[i])
                        and ac.eob_bits and codes[layout.dc[i]].bits[0]
                    ):
                        put(out, codes[layout.dc[i]].code[0], codes[layout.dc[i]].bits[0])
                        put(out, ac.eob_code, ac.eob_bits)
                        continue
                    status = put_dc(out, &codes[layout.dc[i]], c.dc[i] - predictor[i])
                    if status:
                        return status
                    predictor[i] = c.dc[i]
                    copy(out, c.buf, ac_start, c.pos)
        c.mcu += 1
        c.to_restart -= 1
        return OK

    cdef int _cut(self, Cursor *c, Points *points, const uint8_t *packed, size_t packed_bytes, uint32_t stride,
                  Region *r, const DcCode *codes, Writer *out) noexcept nogil:
        cdef const Layout *layout = &self.layout
        cdef int32_t predictor[MAX_COMPONENTS]
        cdef uint32_t row, first, last, until
        cdef size_t start
        cdef bint whole_row, same
        cdef int status, i
        memset(predictor, 0, sizeof(predictor))
        if packed != NULL:
            status = unpack(points, packed, packed_bytes, layout, c.raw_bytes, stride, r.y1)
        else:
            status = open_whole(c, layout)
        if status:
            return status
        # Columns of MCUs whose blocks are all kept, for all components.
        r.whole_x0 = r.x0
        r.whole_x1 = r.x1
        for i in range(layout.components):
            r.whole_x0 = max(r.whole_x0, (r.bx0[i] + layout.h[i] - 1) // layout.h[i])
            r.whole_x1 = min(r.whole_x1, r.bx1[i] // layout.h[i])
        for row in range(r.y0, r.y1):
            first = row * layout.per_row
            last = first + r.x1
            whole_row = True
            for i in range(layout.components):
                if row * layout.v[i] < r.by0[i] or (row + 1) * layout.v[i] > r.by1[i]:
                    whole_row = False
            if points.known:
                c.filled = 0
                c.breaks_known = 0
                c.raw_next = <size_t>(points.bit[<size_t>row * points.per_row + r.x0 // points.stride] >> 3)
                status = jump(c, layout, points, <size_t>row * points.per_row + r.x0 // points.stride)
                if status:
                    return status
            status = self.walk_to(c, first + r.x0)
            if status:
                return status
            while c.mcu < last:
                if points.known and c.mcu == mcu_of(layout, points, c.point + 1):
                    status = step(c, layout, points)
                    if status:
                        return status
                if c.to_restart == 0:
                    status = restart(c, layout.interval)
                    if status:
                        return status
                same = True
                for i in range(layout.components):
                    same = same and c.dc[i] == predictor[i]
                if not (same and whole_row and r.whole_x0 <= c.mcu - first < r.whole_x1):
                    status = self.careful(c, r, codes, predictor, out)
                    if status:
                        return status
                    continue
                until = first + r.whole_x1
                if until - c.mcu > c.to_restart:
                    until = c.mcu + c.to_restart
                start = c.pos
                status = self.advance(c, points, until)
                if status:
                    return status
                if c.pos < start:
                    return BAD_INDEX  # the points go backwards around a restart marker
                if reserve_output(out, ((c.pos - start) >> 3) + 32):
                    return NO_MEMORY
                copy(out, c.buf, start, c.pos)
                for i in range(layout.components):
                    predictor[i] = c.dc[i]
        if reserve_output(out, 64):
            return NO_MEMORY
        i = -out.held_bits & 7
        put(out, (1 << i) - 1, i)
        put_whole_bytes(out)
        return OK


# Identity of a file


cdef inline uint64_t word(const uint8_t *p) noexcept nogil:
    return (
        <uint64_t>p[7] << 56 | <uint64_t>p[6] << 48 | <uint64_t>p[5] << 40 | <uint64_t>p[4] << 32
        | <uint64_t>p[3] << 24 | <uint64_t>p[2] << 16 | <uint64_t>p[1] << 8 | <uint64_t>p[0]
    )


cdef inline uint64_t rotate(uint64_t value, int bits) noexcept nogil:
    return value << bits | value >> (64 - bits)


cdef inline uint64_t mix(uint64_t lane, uint64_t value) noexcept nogil:
    return rotate(lane + value * <uint64_t>0xC2B2AE3D27D4EB4F, 31) * <uint64_t>0x9E3779B185EBCA87


cdef uint64_t xxh64(const uint8_t *p, size_t size) noexcept nogil:
    cdef uint64_t p1 = <uint64_t>0x9E3779B185EBCA87
    cdef uint64_t p2 = <uint64_t>0xC2B2AE3D27D4EB4F
    cdef uint64_t p3 = <uint64_t>0x165667B19E3779F9
    cdef uint64_t p4 = <uint64_t>0x85EBCA77C2B2AE63
    cdef uint64_t p5 = <uint64_t>0x27D4EB2F165667C5
    cdef uint64_t a, b, c, d, h
    cdef size_t left = size
    if size >= 32:
        a = p1 + p2
        b = p2
        c = 0
        d = 0 - p1
        while left >= 32:
            a = mix(a, word(p))
            b = mix(b, word(p + 8))
            c = mix(c, word(p + 16))
            d = mix(d, word(p + 24))
            p += 32
            left -= 32
        h = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18)
        h = (h ^ mix(0, a)) * p1 + p4
        h = (h ^ mix(0, b)) * p1 + p4
        h = (h ^ mix(0, c)) * p1 + p4
        h = (h ^ mix(0, d)) * p1 + p4
    else:
        h = p5
    h += size
    while left >= 8:
        h = rotate(h ^ mix(0, word(p)), 27) * p1 + p4
        p += 8
        left -= 8
    if left >= 4:
        h ^= (<uint64_t>p[0] | <uint64_t>p[1] << 8 | <uint64_t>p[2] << 16 | <uint64_t>p[3] << 24) * p1
        h = rotate(h, 23) * p2 + p3
        p += 4
        left -= 4
    while left:
        h = rotate(h ^ p[0] * p5, 11) * p1
        p += 1
        left -= 1
    h = (h ^ h >> 33) * p2
    h = (h ^ h >> 29) * p3
    return h ^ h >> 32


def fingerprint(const uint8_t[::1] data):
    """Return the XXH64 hash of all bytes, which shows that an index and a file were mixed up by mistake."""
    cdef size_t size = data.shape[0]
    cdef const uint8_t *p = NULL
    cdef uint64_t result
    if size:
        p = &data[0]
    with nogil:
        result = xxh64(p, size)
    return result


cdef inline sophon_wide nh(const uint8_t *p, const uint64_t *key, size_t pairs) noexcept nogil:
    """Return the sum of (word + key) × (next word + next key), modulo 2**128."""
    cdef sophon_wide total = 0
    cdef size_t i
    for i in range(pairs):
        total += <sophon_wide>(word(p + 16 * i) + key[2 * i]) * (word(p + 16 * i + 8) + key[2 * i + 1])
    return total


cdef void condense(const uint8_t *p, size_t size, const uint64_t *key, uint8_t *out) noexcept nogil:
    cdef uint8_t last[16]
    cdef sophon_wide total
    cdef size_t block, pairs
    while size:
        block = min(size, <size_t>(8 * BLOCK_WORDS))
        pairs = block >> 4
        total = nh(p, key, pairs)
        if block & 15:
            memset(last, 0, 16)
            memcpy(last, p + (pairs << 4), block & 15)
            total += nh(last, key + 2 * pairs, 1)
        store(out, <uint64_t>(total >> 64))
        store(out + 8, <uint64_t>total)
        p += block
        out += 16
        size -= block


def condensed(const uint8_t[::1] data, bytes key):
    """Return 16 bytes for every `8 * BLOCK_WORDS` bytes of data: the universal hash NH of UMAC, with words of 64 bits.

    Any two texts of the same length give the same result under at most one key in 2**64, so nobody who lacks the key
    can choose texts that do. The result reveals something about the key and must be hashed before others see it.

    Args:
        data: All bytes; the last 16 are filled up with zeros, so texts that differ in length may give the same result.
        key: `8 * BLOCK_WORDS` bytes, secret.
    """
    cdef size_t size = data.shape[0]
    cdef uint64_t words[BLOCK_WORDS]
    cdef size_t i
    cdef bytes result
    cdef uint8_t *out
    cdef const uint8_t *p
    if len(key) != 8 * BLOCK_WORDS:
        raise ValueError(f"a key of {len(key)} bytes; expected {8 * BLOCK_WORDS}")
    result = PyBytes_FromStringAndSize(NULL, 16 * ((size + 8 * BLOCK_WORDS - 1) // (8 * BLOCK_WORDS)))
    if size:
        for i in range(BLOCK_WORDS):
            words[i] = word(<const uint8_t *>PyBytes_AS_STRING(key) + 8 * i)
        p = &data[0]
        out = <uint8_t *>PyBytes_AS_STRING(result)
        with nogil:
            condense(p, size, words, out)
    return result
