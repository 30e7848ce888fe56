# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=True
"""Finds the frames of a FLAC file, and makes a separate stream from some of them.

A frame does not say how long it is. It ends where its CRC-16 is correct and a header follows that has the expected
frame number and a correct CRC-8, or at the end of the file. So the walk reads every byte once, and if all frames of a
file are found, no byte is damaged.

In a new stream, frames have different numbers. The number is part of a frame's header, so the header and both checksums
are rewritten. What follows the header starts on a byte boundary, and is copied.

Memory safety: all reads go through bounds-checked typed memoryviews, or are checked against the length of the view. If
another thread changes the buffer in the meantime, the result is an error or wrong sound, but never an out-of-bounds
read.

Concurrency: no global state except tables that are written once, when the module is loaded. `walk` releases the GIL.
"""

from libc.stdint cimport uint8_t, uint16_t, uint64_t

from sophon.codec.window.refusal import NotWindowable


cdef enum:
    MOST_HEADER = 16
    VARIABLE = 1


cdef struct Frame:
    int strategy
    int block  # samples
    int channels
    int rate_code
    int bits_code
    int header  # bytes, with the CRC-8
    int number_at  # where the number begins, from the start of the frame
    int number_bytes
    uint64_t number


cdef uint8_t CRC8[256]
cdef uint16_t CRC16[256]


cdef void make_tables() noexcept:
    cdef int byte, bit
    cdef unsigned int low, high
    for byte in range(256):
        low = <unsigned int> byte
        high = <unsigned int> byte << 8
        for bit in range(8):
            low = (low << 1) ^ (0x07 if low & 0x80 else 0)
            high = (high << 1) ^ (0x8005 if high & 0x8000 else 0)
        CRC8[byte] = <uint8_t> (low & 0xFF)
        CRC16[byte] = <uint16_t> (high & 0xFFFF)


make_tables()


cdef bint read_number(const uint8_t[::1] data, Py_ssize_t at, Frame* frame) noexcept nogil:
    """Read a number of up to 36 bits, encoded like a character in UTF-8."""
    cdef int first = data[at], more = 0, place
    cdef uint64_t number
    if first < 0x80:
        frame.number, frame.number_bytes = <uint64_t> first, 1
        return True
    while more < 7 and first & (0x40 >> more):
        more += 1
    if more == 0 or more > 6 or at + more >= data.shape[0]:
        return False
    number = <uint64_t> (first & (0x3F >> more))
    for place in range(1, more + 1):
        if data[at + place] & 0xC0 != 0x80:
            return False
        number = number << 6 | (data[at + place] & 0x3F)
    frame.number, frame.number_bytes = number, more + 1
    return True


cdef bint read_header(const uint8_t[::1] data, Py_ssize_t at, Frame* frame) noexcept nogil:
    """Read the header of a frame; return whether there is one."""
    cdef Py_ssize_t end = data.shape[0], place
    cdef int block_code, rate_code, assigned, more, rate_more
    cdef uint8_t crc = 0
    if at < 0 or at + 6 > end or data[at] != 0xFF or data[at + 1] & 0xFE != 0xF8:
        return False
    block_code, rate_code = data[at + 2] >> 4, data[at + 2] & 15
    assigned = data[at + 3] >> 4
    frame.strategy = data[at + 1] & 1
    frame.bits_code = data[at + 3] >> 1 & 7
    if block_code == 0 or rate_code == 15 or assigned > 10 or frame.bits_code == 3 or data[at + 3] & 1:
        return False
    frame.channels = assigned + 1 if assigned < 8 else 2
    frame.rate_code = rate_code
    frame.number_at = 4
    if not read_number(data, at + 4, frame):
        return False
    place = at + 4 + frame.number_bytes
    more = 1 if block_code == 6 else 2 if block_code == 7 else 0
    rate_more = 1 if rate_code == 12 else 2 if rate_code in (13, 14) else 0
    if place + more + rate_more >= end:
        return False
    if block_code == 1:
        frame.block = 192
    elif block_code < 6:
        frame.block = 576 << (block_code - 2)
    elif block_code == 6:
        frame.block = data[place] + 1
    elif block_code == 7:
        frame.block = (data[place] << 8 | data[place + 1]) + 1
    else:
        frame.block = 256 << (block_code - 8)
    place += more + rate_more
    frame.header = <int> (place - at) + 1
    for place in range(at, at + frame.header - 1):
        crc = CRC8[crc ^ data[place]]
    return crc == data[at + frame.header - 1]


cdef Py_ssize_t frame_end(const uint8_t[::1] data, Py_ssize_t at, Frame* frame, Frame* after) noexcept nogil:
    """Return the end of a frame, or -1; `after` gets the next frame's header, with block 0 at the end of the file."""
    cdef Py_ssize_t place, end = data.shape[0]
    cdef uint16_t crc = 0
    cdef uint64_t due = frame.number + (<uint64_t> frame.block if frame.strategy == VARIABLE else 1)
    for place in range(at, end):
        if crc == 0 and data[place] == 0xFF and place > at + frame.header + 1:
            if read_header(data, place, after) and after.number == due and after.strategy == frame.strategy:
                return place
        crc = <uint16_t> ((crc << 8) ^ CRC16[(crc >> 8) ^ data[place]])
    after.block = 0
    return end if crc == 0 and end > at + frame.header + 1 else -1


def walk(const uint8_t[::1] data, Py_ssize_t start, int channels):
    """Return where each frame begins and the last one ends, and how many samples each frame has.

    Args:
        data: The file.
        start: Where the frames begin.
        channels: Number of channels that all frames must have.

    Raises:
        NotWindowable: The file is not made up of undamaged, uniform frames in order.
    """
    cdef Frame frame, after, first
    cdef Py_ssize_t at = start
    cdef bint is_fine
    starts, blocks = [], []
    if not read_header(data, at, &frame) or frame.number != 0:
        raise NotWindowable("its first frame is not where it should be")
    first = frame
    while True:
        starts.append(at)
        blocks.append(frame.block)
        is_fine = frame.channels == channels and frame.rate_code == first.rate_code
        is_fine = is_fine and frame.bits_code == first.bits_code
        if not is_fine:
            raise NotWindowable("its frames are not alike")
        with nogil:
            at = frame_end(data, at, &frame, &after)
        if at < 0:
            raise NotWindowable("a frame is damaged")
        if after.block == 0:
            break
        if frame.strategy != VARIABLE and frame.block != first.block:
            raise NotWindowable("its frames are of different lengths")
        frame = after
    starts.append(at)
    return starts, blocks


def cut(const uint8_t[::1] data, list starts, int first, int stop):
    """Return frames[first:stop] as the frames of a separate stream.

    Args:
        data: The file.
        starts: Where each frame begins, and where the last one ends.
        first: Number of the first frame to keep.
        stop: Number of the frame after the last one to keep.

    Raises:
        NotWindowable: The frames are not where `starts` says.
    """
    cdef Frame frame
    cdef Py_ssize_t at, end, place, begun, body
    cdef uint64_t number = 0
    cdef uint8_t crc8
    cdef uint16_t crc, was
    cdef int which, byte
    cdef bytearray made = bytearray(<Py_ssize_t> starts[stop] - <Py_ssize_t> starts[first])
    cdef uint8_t[::1] out = made
    place = 0
    for which in range(first, stop):
        at, end = starts[which], starts[which + 1]
        if end > data.shape[0] or not read_header(data, at, &frame) or at + frame.header + 2 > end:
            raise NotWindowable("a frame is not where it should be")
        begun = place
        for body in range(at, at + 4):
            out[place] = data[body]
            place += 1
        for byte in written_number(number):
            out[place] = <uint8_t> byte
            place += 1
        for body in range(at + 4 + frame.number_bytes, at + frame.header - 1):
            out[place] = data[body]
            place += 1
        crc8 = 0
        for body in range(begun, place):
            crc8 = CRC8[crc8 ^ out[body]]
        out[place] = crc8
        place += 1
        crc = was = 0
        for body in range(begun, place):
            crc = <uint16_t> ((crc << 8) ^ CRC16[(crc >> 8) ^ out[body]])
        for body in range(at, at + frame.header):
            was = <uint16_t> ((was << 8) ^ CRC16[(was >> 8) ^ data[body]])
        for body in range(at + frame.header, end - 2):
            crc = <uint16_t> ((crc << 8) ^ CRC16[(crc >> 8) ^ data[body]])
            was = <uint16_t> ((was << 8) ^ CRC16[(was >> 8) ^ data[body]])
            out[place] = data[body]
            place += 1
        if was != (data[end - 2] << 8 | data[end - 1]):
            raise NotWindowable("a frame is damaged")
        out[place] = <uint8_t> (crc >> 8)
        out[place + 1] = <uint8_t> (crc & 0xFF)
        place += 2
        number += <uint64_t> frame.block if frame.strategy == VARIABLE else 1
    return bytes(made[:place])


cdef bytes written_number(uint64_t number):
    """Return a number encoded like a character in UTF-8."""
    cdef int more = 1
    if number < 0x80:
        return bytes([number])
    while more < 6 and number >> (5 * more + 6):
        more += 1
    lead = (0xFF00 >> (more + 1)) & 0xFF
    return bytes([lead | <int> (number >> (6 * more)), *(0x80 | <int> (number >> (6 * k) & 0x3F) for k in range(more - 1, -1, -1))])
