# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=True
"""The bit-level work for windows of progressive JPEGs: reads coefficients from all scans and writes some as a baseline
scan.

Every scan adds to what is known about the coefficients: a component's DC or a band of its AC coefficients, either their
highest bits (first scan) or one more bit of each (refinement). A refinement has one bit for every coefficient that is
already nonzero, so the walk must know which ones are, in all blocks up to the last one of the window: a `mask` of 64
bits per block. The coefficients themselves are kept, in zigzag order, only for the blocks of the window. A scan is
walked down to the last row of blocks that the window needs.

Memory safety: input bytes are read only in `clean` and `scan_end`, and every read is checked against the length of the
buffer. Everything else reads the private buffer, which has `GUARD` bytes beyond its end, more than one block can
consume; the end is checked after every block. Planes are as large as the frame says, and no walk depends on anything
else. If another thread changes the buffer in the meantime, the result is a wrong picture, but never an out-of-bounds
read.

Concurrency: no global state; `cut` and `scan_end` release the GIL.

Limits: `MAX_BYTES` of coefficients and masks. Time is bounded by the bytes of the file and by blocks × scans; the
caller bounds the number of scans.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memset

from sophon.codec.window._bits cimport (
    BAD_CODE, BAD_DC, BAD_MARKER, BAD_RESTART, BAD_RUN, GUARD, MAX_COMPONENTS, NO_MEMORY, OK, SHORT, Cursor, Huffman,
    Writer, build_huffman, checked, clean, free_cursor, peek, put, put_whole_bytes, reserve_output, restart, segment_end,
    stuff, stuffed_bytes, symbol,
)

from sophon.codec.window.refusal import NotWindowable


cdef enum:
    LOOK_BITS = 10  # width of look-up tables; longer codes take the slow path
    DC_LIMIT = 2047  # no coefficient of an 8-bit picture exceeds this
    CATEGORIES = 12  # 0 to 11: magnitudes of up to 2047
    MAX_AL = 10  # a coefficient of 2^11 or more is out of range
    TABLES = 2  # DC tables, and as many AC tables, that a window is written with
    SYMBOLS = 256
    LONGEST = 16  # bits of a code
    ZRL = 0xF0
    BLOCK_BYTES = 256  # more than a block needs: 64 codes with their magnitudes, 27 bits each

MAX_BYTES = 128 << 20  # of coefficients and masks: a window of 30 megapixels


_REASONS = {
    BAD_CODE: "a Huffman code or symbol that has no meaning",
    BAD_RUN: "a run of zeros beyond the end of its band",
    BAD_DC: "a coefficient out of the range of 8-bit pictures",
    SHORT: "entropy-coded data that end too early",
    BAD_MARKER: "entropy-coded data with a marker among them",
    BAD_RESTART: "restart markers that are missing, surplus or out of order",
}


cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__GNUC__) || defined(__clang__)
    #define sophon_lowest(bits) __builtin_ctzll(bits)
    #define sophon_width(value) (32 - __builtin_clz(value))
    #else
    static int sophon_lowest(uint64_t bits) { int n = 0; while (!(bits & 1)) { bits >>= 1; n++; } return n; }
    static int sophon_width(uint32_t value) { int n = 0; while (value) { value >>= 1; n++; } return n; }
    #endif
    """
    int sophon_lowest(uint64_t bits) noexcept nogil  # position of the lowest set bit; undefined for 0
    int sophon_width(uint32_t value) noexcept nogil  # number of bits in a number; undefined for 0


cdef struct Look:
    Huffman huffman
    uint16_t entry[1 << LOOK_BITS]  # code bits << 8 | symbol, or 0


cdef struct Plane:
    int h
    int v
    int table
    uint32_t across  # blocks of the component
    uint32_t down
    uint32_t x0, y0, x1, y1  # those kept
    uint64_t *mask  # across × y1: which AC coefficients are not zero
    int16_t *kept  # 64 of each block kept


cdef struct Picture:
    int components
    uint32_t per_row  # MCUs of the frame
    uint32_t rows
    uint32_t x0, y0, x1, y1  # MCUs of the window
    Plane planes[MAX_COMPONENTS]


cdef struct Scan:
    size_t start
    size_t end
    uint32_t interval
    int count
    int planes[MAX_COMPONENTS]
    int first  # Ss
    int last  # Se
    int before  # Ah
    int after  # Al


cdef struct Code:
    uint32_t code[SYMBOLS]
    uint8_t bits[SYMBOLS]
    uint8_t spec[16 + SYMBOLS]  # 16 counts, then the values
    int values


cdef struct Coding:
    uint32_t dc_uses[TABLES][SYMBOLS]
    uint32_t ac_uses[TABLES][SYMBOLS]
    Code dc[TABLES]
    Code ac[TABLES]


# Reading


cdef int build_look(Look *table, const uint8_t *spec) noexcept nogil:
    cdef uint32_t code = 0
    cdef uint32_t at
    cdef int p = 0
    cdef int n, i
    if not build_huffman(&table.huffman, spec):
        return 0
    memset(table.entry, 0, sizeof(table.entry))
    for n in range(1, LOOK_BITS + 1):
        for i in range(spec[n - 1]):
            for at in range(code << (LOOK_BITS - n), (code + 1) << (LOOK_BITS - n)):
                table.entry[at] = <uint16_t>(n << 8 | spec[16 + p])
            code += 1
            p += 1
        code <<= 1
    return 1


cdef inline int next_symbol(const Look *table, uint64_t bits, int *code_bits) noexcept nogil:
    cdef uint32_t entry = table.entry[bits >> (64 - LOOK_BITS)]
    if entry:
        code_bits[0] = entry >> 8
        return entry & 0xFF
    return symbol(&table.huffman, bits, code_bits)


cdef inline int32_t extend(uint64_t bits, int size) noexcept nogil:
    """Return the number encoded by the first `size` bits; a leading zero means that it is negative."""
    return <int32_t>((bits >> 1) >> (63 - size)) + ((<int32_t>(bits >> 63) - 1) & (1 - (1 << size)))


cdef inline int ones(uint64_t bits) noexcept nogil:
    bits = bits - (bits >> 1 & <uint64_t>0x5555555555555555)
    bits = (bits & <uint64_t>0x3333333333333333) + (bits >> 2 & <uint64_t>0x3333333333333333)
    bits = bits + (bits >> 4) & <uint64_t>0x0F0F0F0F0F0F0F0F
    return <int>(bits * <uint64_t>0x0101010101010101 >> 56)


cdef inline int dc_first(const Look *table, const uint8_t *buf, size_t *pos, int limit, int32_t *dc) noexcept nogil:
    """Read a DC difference and add it to the predictor."""
    cdef uint64_t bits = peek(buf, pos[0])
    cdef int n = 0
    cdef int category = next_symbol(table, bits, &n)
    if category < 0:
        return BAD_CODE
    if category >= CATEGORIES:
        return BAD_DC
    dc[0] += extend(bits << n, category)
    if dc[0] > limit or dc[0] < -limit:
        return BAD_DC
    pos[0] += n + category
    return OK


cdef inline int ac_first(const Look *table, const uint8_t *buf, size_t *at, const Scan *scan, uint32_t *run,
                         uint64_t *mask, int16_t *block) noexcept nogil:
    """Read the band of a block for the first time; if `block` is NULL, only update its mask."""
    cdef size_t pos = at[0]
    cdef int k = scan.first
    cdef int last = scan.last
    cdef int n = 0
    cdef int value, size
    cdef uint64_t bits
    cdef uint64_t found = mask[0]
    while k <= last:
        bits = peek(buf, pos)
        value = next_symbol(table, bits, &n)
        if value < 0:
            return BAD_CODE
        size = value & 15
        pos += n + size
        if size:
            k += value >> 4
            if k > last:
                return BAD_RUN
            found |= <uint64_t>1 << k
            if block != NULL:
                if size + scan.after >= CATEGORIES:
                    return BAD_DC
                block[k] = <int16_t>(extend(bits << n, size) * (1 << scan.after))
            k += 1
        elif value == ZRL:
            k += 16
            if k > last + 1:
                return BAD_RUN
        else:
            size = value >> 4
            run[0] = (1 << size) - 1 + <uint32_t>(((bits << n) >> 1) >> (63 - size))
            pos += size
            break
    mask[0] = found
    at[0] = pos
    return OK


cdef inline void refine(const uint8_t *buf, size_t *at, uint64_t passed, int32_t step, int16_t *block) noexcept nogil:
    """Read one more bit of each coefficient in `passed`."""
    cdef uint64_t bits
    cdef int32_t value, sign
    cdef int k, left
    if block == NULL:
        at[0] += ones(passed)
        return
    while passed:
        bits = peek(buf, at[0])
        left = 57
        while passed and left:
            k = sophon_lowest(passed)
            passed &= passed - 1
            value = block[k]
            sign = value >> 31
            # Away from zero where the bit is set; without branches, which would be mispredicted half of the time.
            block[k] = <int16_t>(value + (((step ^ sign) - sign) & -<int32_t>(bits >> 63)))
            bits <<= 1
            left -= 1
        at[0] += 57 - left


cdef inline int ac_refine(const Look *table, const uint8_t *buf, size_t *at, const Scan *scan, uint32_t *run,
                          uint64_t *mask, int16_t *block) noexcept nogil:
    """Read one more bit of the band of a block, including coefficients that were zero until now."""
    cdef size_t pos = at[0]
    cdef int32_t step = 1 << scan.after
    cdef uint64_t rest = (~<uint64_t>0 >> (63 - scan.last)) & (~<uint64_t>0 << scan.first)
    cdef uint64_t known = mask[0]
    cdef uint64_t found = known
    cdef uint64_t bits, zeros, place, passed
    cdef int n = 0
    cdef int value, zero_run, size
    cdef bint positive
    if run[0] == 0:
        while rest:
            bits = peek(buf, pos)
            value = next_symbol(table, bits, &n)
            if value < 0:
                return BAD_CODE
            pos += n
            bits <<= n
            zero_run = value >> 4
            size = value & 15
            positive = False
            if size:
                if size != 1:
                    return BAD_CODE
                positive = bits >> 63
                pos += 1
            elif zero_run != 15:
                run[0] = (1 << zero_run) + <uint32_t>((bits >> 1) >> (63 - zero_run))
                pos += zero_run
                break
            zeros = rest & ~known
            while zero_run:
                zeros &= zeros - 1
                zero_run -= 1
            if zeros == 0:
                return BAD_RUN
            place = zeros & (0 - zeros)
            passed = rest & known & (place - 1)
            if passed:
                refine(buf, &pos, passed, step, block)
            if size:
                found |= place
                if block != NULL:
                    block[sophon_lowest(place)] = <int16_t>(step if positive else -step)
            rest &= 0 - (place << 1)
    if run[0]:
        if rest & known:
            refine(buf, &pos, rest & known, step, block)
        run[0] -= 1
    mask[0] = found
    at[0] = pos
    return OK


cdef inline int16_t *kept_block(const Plane *plane, uint32_t x, uint32_t y) noexcept nogil:
    """Return the coefficients of a block, or NULL if it is not kept."""
    if x < plane.x0 or x >= plane.x1 or y < plane.y0 or y >= plane.y1:
        return NULL
    return plane.kept + 64 * (<size_t>(y - plane.y0) * (plane.x1 - plane.x0) + (x - plane.x0))


cdef int open_scan(Cursor *c, const Scan *scan, uint64_t mcus) noexcept nogil:
    """Clean a scan and place the cursor before its first MCU."""
    cdef int status
    c.filled = 0
    c.breaks_known = 0
    c.breaks_passed = 0
    c.pos = 0
    c.raw_next = scan.start
    status = clean(c, scan.end, True, False)
    if status:
        return status
    if c.breaks_known != (mcus - 1) // scan.interval:
        return BAD_RESTART
    memset(c.buf + c.filled, 0, GUARD)
    c.end = c.filled << 3
    c.to_restart = scan.interval
    memset(c.dc, 0, sizeof(c.dc))
    return OK


cdef int read_ac(Cursor *c, const Scan *scan, const Look *table, const Plane *plane) noexcept nogil:
    cdef uint64_t *mask = plane.mask
    cdef int16_t *block
    cdef uint32_t run = 0
    cdef uint32_t x, y
    cdef size_t end
    cdef int status = open_scan(c, scan, <uint64_t>plane.across * plane.down)
    if status:
        return status
    end = segment_end(c)
    for y in range(plane.y1):
        for x in range(plane.across):
            if c.to_restart == 0:
                status = restart(c, scan.interval)
                if status:
                    return status
                run = 0
                end = segment_end(c)
            c.to_restart -= 1
            if scan.before == 0:
                if run:
                    run -= 1
                else:
                    block = kept_block(plane, x, y)
                    status = ac_first(table, c.buf, &c.pos, scan, &run, mask, block)
            else:
                block = kept_block(plane, x, y)
                status = ac_refine(table, c.buf, &c.pos, scan, &run, mask, block)
            if status:
                return status
            if c.pos > end:
                return SHORT
            mask += 1
    return OK


cdef inline int read_dc_block(Cursor *c, const Scan *scan, const Look *table, int32_t *dc,
                              int16_t *block) noexcept nogil:
    cdef int status
    if scan.before == 0:
        status = dc_first(table, c.buf, &c.pos, DC_LIMIT >> scan.after, dc)
        if status:
            return status
        if block != NULL:
            block[0] = <int16_t>(dc[0] * (1 << scan.after))
        return OK
    if block != NULL:
        block[0] |= <int16_t>((peek(c.buf, c.pos) >> 63) << scan.after)
    c.pos += 1
    return OK


cdef int read_dc(Cursor *c, const Scan *scan, const Look *tables, Picture *picture) noexcept nogil:
    """Read the DC values of one component block by block, or of several components MCU by MCU."""
    cdef const Plane *plane = &picture.planes[scan.planes[0]]
    cdef bint alone = scan.count == 1
    cdef uint32_t per_row = plane.across if alone else picture.per_row
    cdef uint32_t rows = plane.y1
    cdef uint32_t x, y
    cdef size_t end
    cdef int i, bx, by, across, down
    cdef int status = open_scan(c, scan, <uint64_t>per_row * (plane.down if alone else picture.rows))
    if status:
        return status
    if not alone:
        rows = 0
        for i in range(scan.count):
            plane = &picture.planes[scan.planes[i]]
            rows = max(rows, (plane.y1 + plane.v - 1) // plane.v)
    end = segment_end(c)
    for y in range(rows):
        for x in range(per_row):
            if c.to_restart == 0:
                status = restart(c, scan.interval)
                if status:
                    return status
                end = segment_end(c)
            c.to_restart -= 1
            for i in range(scan.count):
                plane = &picture.planes[scan.planes[i]]
                across = 1 if alone else plane.h
                down = 1 if alone else plane.v
                for by in range(down):
                    for bx in range(across):
                        status = read_dc_block(c, scan, &tables[i], &c.dc[i],
                                               kept_block(plane, x * across + bx, y * down + by))
                        if status:
                            return status
                        if c.pos > end:
                            return SHORT
    return OK


# Writing


cdef void build_code(Code *code, const uint32_t *uses) noexcept nogil:
    """Build the shortest code with at most 16 bits per symbol, none of them all ones (ITU-T T.81, annex K.2)."""
    cdef uint64_t weight[SYMBOLS + 1]
    cdef int16_t value[SYMBOLS + 1]
    cdef int16_t other[SYMBOLS + 1]
    cdef uint8_t size[SYMBOLS + 1]
    cdef int lengths[SYMBOLS + 2]
    cdef uint32_t next_code = 0
    cdef int count = 0
    cdef int i, j, a, b, n, longest
    memset(code.bits, 0, sizeof(code.bits))
    memset(code.spec, 0, sizeof(code.spec))
    memset(lengths, 0, sizeof(lengths))
    code.values = 0
    for i in range(SYMBOLS):
        if uses[i]:
            weight[count] = uses[i]
            value[count] = <int16_t>i
            count += 1
    if count == 0:
        return
    # One extra symbol, with the least weight, takes the code of all ones.
    weight[count] = 1
    value[count] = SYMBOLS
    count += 1
    for i in range(count):
        other[i] = -1
        size[i] = 0
    while True:
        a = -1
        b = -1
        for i in range(count):
            if weight[i]:
                if a < 0 or weight[i] <= weight[a]:
                    b = a
                    a = i
                elif b < 0 or weight[i] <= weight[b]:
                    b = i
        if b < 0:
            break
        weight[a] += weight[b]
        weight[b] = 0
        i = a
        while True:
            size[i] += 1
            if other[i] < 0:
                break
            i = other[i]
        other[i] = <int16_t>b
        i = b
        while i >= 0:
            size[i] += 1
            i = other[i]
    longest = 0
    for i in range(count):
        lengths[size[i]] += 1
        longest = max(longest, <int>size[i])
    # Codes that are too long are shortened in pairs, at the cost of one more bit for a shorter code.
    i = longest
    while i > LONGEST:
        while lengths[i] > 0:
            j = i - 2
            while lengths[j] == 0:
                j -= 1
            lengths[i] -= 2
            lengths[i - 1] += 1
            lengths[j + 1] += 2
            lengths[j] -= 1
        i -= 1
    while lengths[i] == 0:
        i -= 1
    lengths[i] -= 1  # the code of all ones
    # Symbols in the order of their original lengths, and codes in that order.
    for n in range(1, longest + 1):
        for i in range(count):
            if size[i] == n and value[i] < SYMBOLS:
                code.spec[16 + code.values] = <uint8_t>value[i]
                code.values += 1
    j = 0
    for n in range(1, LONGEST + 1):
        code.spec[n - 1] = <uint8_t>lengths[n]
        for i in range(lengths[n]):
            code.code[code.spec[16 + j]] = next_code
            code.bits[code.spec[16 + j]] = <uint8_t>n
            next_code += 1
            j += 1
        next_code <<= 1


cdef inline void count_block(const int16_t *block, uint64_t mask, uint32_t *uses) noexcept nogil:
    cdef int before = 0
    cdef int k = 0
    cdef int run
    cdef int32_t value
    while mask:
        k = sophon_lowest(mask)
        mask &= mask - 1
        run = k - before - 1
        before = k
        while run > 15:
            uses[ZRL] += 1
            run -= 16
        value = block[k]
        uses[run << 4 | sophon_width(<uint32_t>(value if value >= 0 else -value))] += 1
    if k < 63:
        uses[0] += 1


cdef inline void put_number(Writer *out, const Code *code, int name, int32_t value, int size) noexcept nogil:
    """Write a symbol and the `size` bits of the number that follows it."""
    if value < 0:
        value += (1 << size) - 1
    put(out, <uint64_t>code.code[name] << size | <uint32_t>value, code.bits[name] + size)


cdef inline void put_block(Writer *out, const Code *code, const int16_t *block, uint64_t mask) noexcept nogil:
    cdef int before = 0
    cdef int k = 0
    cdef int run, size
    cdef int32_t value
    while mask:
        k = sophon_lowest(mask)
        mask &= mask - 1
        run = k - before - 1
        before = k
        while run > 15:
            put(out, code.code[ZRL], code.bits[ZRL])
            run -= 16
        value = block[k]
        size = sophon_width(<uint32_t>(value if value >= 0 else -value))
        put_number(out, code, run << 4 | size, value, size)
    if k < 63:
        put(out, code.code[0], code.bits[0])


cdef int walk_window(const Picture *picture, Coding *coding, Writer *out) noexcept nogil:
    """Count the symbols of the window or, given a writer, write them."""
    cdef const Plane *plane
    cdef const int16_t *block
    cdef int32_t dc[MAX_COMPONENTS]
    cdef int32_t difference
    cdef uint64_t mask
    cdef uint32_t x, y, bx, by
    cdef int i, h, v, size
    memset(dc, 0, sizeof(dc))
    for y in range(picture.y0, picture.y1):
        for x in range(picture.x0, picture.x1):
            for i in range(picture.components):
                plane = &picture.planes[i]
                for v in range(plane.v):
                    for h in range(plane.h):
                        bx = x * plane.h + h
                        by = y * plane.v + v
                        block = kept_block(plane, bx, by)
                        difference = 0
                        size = 0
                        mask = 0
                        if block != NULL:
                            difference = block[0] - dc[i]
                            dc[i] = block[0]
                            mask = plane.mask[<size_t>by * plane.across + bx]
                            if difference:
                                size = sophon_width(<uint32_t>(difference if difference >= 0 else -difference))
                            if size >= CATEGORIES:
                                return BAD_DC
                        if out == NULL:
                            coding.dc_uses[plane.table][size] += 1
                            count_block(block, mask, coding.ac_uses[plane.table])
                            continue
                        if reserve_output(out, BLOCK_BYTES):
                            return NO_MEMORY
                        put_number(out, &coding.dc[plane.table], size, difference, size)
                        put_block(out, &coding.ac[plane.table], block, mask)
    return OK


cdef int write_window(const Picture *picture, Coding *coding, Writer *out) noexcept nogil:
    cdef int i
    cdef int status = walk_window(picture, coding, NULL)
    if status:
        return status
    for i in range(TABLES):
        build_code(&coding.dc[i], coding.dc_uses[i])
        build_code(&coding.ac[i], coding.ac_uses[i])
    status = walk_window(picture, coding, out)
    if status:
        return status
    if reserve_output(out, 64):
        return NO_MEMORY
    i = -out.held_bits & 7
    put(out, (1 << i) - 1, i)
    put_whole_bytes(out)
    return OK


# From Python


cdef int set_plane(Plane *plane, tuple size, tuple kept, int table) except -1:
    """Fill in everything about one component except its memory."""
    cdef uint32_t across, down, x0, y0, x1, y1
    cdef int h, v
    h, v, across, down = size
    x0, y0, x1, y1 = kept
    if not (0 < h <= 4 and 0 < v <= 4 and 0 < across < 1 << 14 and 0 < down < 1 << 14):
        raise ValueError(f"a component of {size} blocks; expected 1 to 4 in an MCU, 1 to 16383 in the picture")
    if not (x0 < x1 <= across and y0 < y1 <= down):
        raise ValueError(f"blocks {kept} of a component of {across} × {down}")
    plane.h, plane.v, plane.across, plane.down, plane.table = h, v, across, down, table
    plane.x0, plane.y0, plane.x1, plane.y1 = x0, y0, x1, y1
    return 0


cdef int set_scan(Scan *scan, Look *looks, object found, const Picture *picture) except -1:
    """Fill in one scan and the tables for reading it."""
    cdef int i
    cdef tuple planes, tables
    scan.start, scan.end, scan.interval, planes, tables, scan.first, scan.last, scan.before, scan.after = found
    if scan.interval == 0:
        scan.interval = 0xFFFFFFFF
    scan.count = len(planes)
    if not 0 < scan.count <= picture.components or len(tables) != scan.count:
        raise ValueError(f"a scan of {scan.count} components")
    if not (0 <= scan.first <= scan.last < 64 and 0 <= scan.after <= MAX_AL and scan.before >= 0):
        raise ValueError(f"a scan of coefficients {scan.first} to {scan.last}")
    if scan.first and scan.count > 1 or not scan.first and scan.last:
        raise ValueError("a scan of AC has one component, a scan of DC has no AC")
    for i in range(scan.count):
        scan.planes[i] = planes[i]
        if not 0 <= scan.planes[i] < picture.components:
            raise ValueError(f"a scan of component {scan.planes[i]}")
        if scan.first == 0 and scan.before:
            continue  # a refinement of DC is not Huffman-coded
        if not build_look(&looks[i], checked(tables[i])):
            raise NotWindowable("a Huffman table that is not a prefix code")
    return 0


cdef int read_scan(Cursor *c, const Scan *scan, const Look *looks, Picture *picture) noexcept nogil:
    if scan.first == 0:
        return read_dc(c, scan, looks, picture)
    return read_ac(c, scan, looks, &picture.planes[scan.planes[0]])


cdef object refusal(int status):
    return MemoryError() if status == NO_MEMORY else NotWindowable(_REASONS[status])


cdef int allocate(Picture *picture) except -1:
    cdef uint64_t needed = 0
    cdef Plane *plane
    cdef int i
    for i in range(picture.components):
        plane = &picture.planes[i]
        needed += <uint64_t>plane.across * plane.y1 * sizeof(uint64_t)
        needed += <uint64_t>(plane.x1 - plane.x0) * (plane.y1 - plane.y0) * 64 * sizeof(int16_t)
    if needed > <uint64_t>MAX_BYTES:
        raise NotWindowable(f"a progressive picture whose coefficients take more than {MAX_BYTES >> 20} MiB")
    for i in range(picture.components):
        plane = &picture.planes[i]
        plane.mask = <uint64_t *>calloc(<size_t>plane.across * plane.y1, sizeof(uint64_t))
        plane.kept = <int16_t *>calloc(<size_t>(plane.x1 - plane.x0) * (plane.y1 - plane.y0), 64 * sizeof(int16_t))
        if plane.mask == NULL or plane.kept == NULL:
            raise MemoryError
    return 0


cdef dict specs(const Code *codes):
    """Return the tables that are used, by number."""
    cdef int i
    return {
        i: PyBytes_FromStringAndSize(<const char *>codes[i].spec, 16 + codes[i].values)
        for i in range(TABLES)
        if codes[i].values
    }


def cut(const uint8_t[::1] data, tuple mcus, tuple components, tuple scans, tuple region, tuple kept):
    """Return the DC tables, the AC tables and the entropy-coded data of a window, with an EOI marker.

    Args:
        data: The whole file.
        mcus: Number of MCUs per row of the frame, and number of rows.
        components: For each component, its blocks across and down in an MCU and in the picture, and the number of its
            table.
        scans: (start, end, MCUs between restart markers or 0, components, Huffman tables, Ss, Se, Ah, Al) of each, in an
            order in which no scan needs a later one; a table is 16 counts, then the values.
        region: MCUs (left, top, right, bottom).
        kept: For each component, the blocks (left, top, right, bottom) whose samples matter; all others become empty.

    Raises:
        NotWindowable: A scan is damaged in the part that was walked, or the coefficients take too much memory.
    """
    cdef Picture picture
    cdef Cursor cursor
    cdef Writer out
    cdef Coding coding
    cdef Scan scan
    cdef Look looks[MAX_COMPONENTS]
    cdef int status, i, table
    cdef bytes result
    memset(&picture, 0, sizeof(Picture))
    memset(&cursor, 0, sizeof(Cursor))
    memset(&out, 0, sizeof(Writer))
    memset(&coding, 0, sizeof(Coding))
    picture.per_row, picture.rows = mcus
    picture.x0, picture.y0, picture.x1, picture.y1 = region
    picture.components = len(components)
    if not 0 < picture.components <= MAX_COMPONENTS or len(kept) != picture.components:
        raise ValueError(f"{len(components)} components with the blocks of {len(kept)}; expected 1 to 4")
    if not (picture.x0 < picture.x1 <= picture.per_row < 1 << 14 and picture.y0 < picture.y1 <= picture.rows < 1 << 14):
        raise ValueError(f"a region of {region} MCUs outside of the picture")
    for i, (*size, table) in enumerate(components):
        if not 0 <= table < TABLES:
            raise ValueError(f"table {table} of component {i}; expected 0 or 1")
        set_plane(&picture.planes[i], tuple(size), kept[i], table)
    cursor.raw = &data[0] if data.shape[0] else NULL
    cursor.raw_bytes = data.shape[0]
    try:
        allocate(&picture)
        for found in scans:
            set_scan(&scan, looks, found, &picture)
            if not scan.start < scan.end <= cursor.raw_bytes:
                raise NotWindowable(_REASONS[SHORT])
            with nogil:
                status = read_scan(&cursor, &scan, looks, &picture)
            if status:
                raise refusal(status)
        with nogil:
            status = write_window(&picture, &coding, &out)
        if status:
            raise refusal(status)
        result = PyBytes_FromStringAndSize(NULL, stuffed_bytes(&out) + 2)
        stuff(&out, <uint8_t *>PyBytes_AS_STRING(result))
        return specs(coding.dc), specs(coding.ac), result
    finally:
        for i in range(picture.components):
            free(picture.planes[i].mask)
            free(picture.planes[i].kept)
        free_cursor(&cursor)
        free(out.buf)


def scan_end(const uint8_t[::1] data, size_t start):
    """Return the end of the entropy-coded data from `start`: a marker other than a restart, or the end of the file."""
    cdef size_t size = data.shape[0]
    cdef size_t at = start
    cdef const uint8_t *p
    cdef const uint8_t *q
    if start >= size:
        return size
    p = &data[0]
    with nogil:
        while True:
            q = <const uint8_t *>memchr(p + at, 0xFF, size - at)
            if q == NULL:
                at = size
                break
            at = q - p
            if at + 1 >= size or not (p[at + 1] == 0 or 0xD0 <= p[at + 1] <= 0xD7):
                break
            at += 2
            if at >= size:
                at = size
                break
    return at
