# cython: language_level=3
"""The pixels of a Pillow picture in memory, from ``Image.__arrow_c_array__``; shared by the extensions."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint8_t


cdef struct ArrowArray:
    # The fields of the Arrow C data interface that are read here.
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    ArrowArray **children


cdef inline uint8_t *pixels_of(object capsule, int64_t pixels) except NULL:
    """Return the bytes of a picture with this many pixels, four bytes per pixel."""
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsule, "arrow_array")
    cdef ArrowArray *child
    if array.offset or array.length != pixels or array.n_children != 1:
        raise ValueError("expected an Arrow array with one list of four bytes per pixel")
    child = array.children[0]
    if child.offset or child.length != 4 * pixels or child.n_buffers != 2 or child.buffers[1] == NULL:
        raise ValueError("expected an Arrow array with four bytes per pixel")
    return <uint8_t *>child.buffers[1]
