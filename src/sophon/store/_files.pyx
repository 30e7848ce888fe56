# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""A file read in one go, without Python's lock from opening to closing it.

The same by `os` gives the lock away four times and has to wait for it each time that other threads compute: with two
threads that decode, a file of the page cache took as long as one of a disk.

Concurrency: no global state; the GIL is released.
"""

from libc.errno cimport EINTR, errno
from libc.string cimport strlen
from posix.fcntl cimport O_CLOEXEC, O_NONBLOCK, O_RDONLY, open
from posix.stat cimport S_ISREG, fstat, struct_stat
from posix.unistd cimport close, read


cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char* text, Py_ssize_t size)
    char* PyBytes_AS_STRING(bytes text)


def read_into(bytes path, unsigned char[::1] space):
    """Read a file into memory if it is a regular one of exactly that size; return whether it is, and was read."""
    cdef char* place = <char*> &space[0] if space.shape[0] else NULL
    cdef char* name = path
    cdef Py_ssize_t size = space.shape[0]
    cdef bint is_read = strlen(name) == <size_t> len(path)
    if is_read:
        with nogil:
            is_read = _read(name, place, size)
    return is_read


def read_bytes(bytes path, Py_ssize_t size):
    """Return the bytes of a regular file of exactly that size; None if it is not, or cannot be read."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef char* place = PyBytes_AS_STRING(data)
    cdef char* name = path
    cdef bint is_read = strlen(name) == <size_t> len(path)
    if is_read:
        with nogil:
            is_read = _read(name, place, size)
    return data if is_read else None


cdef bint _read(const char* path, char* place, Py_ssize_t size) noexcept nogil:
    cdef struct_stat found
    cdef Py_ssize_t done = 0, part
    # O_NONBLOCK, so as not to wait for ever if somebody has put a pipe in the place of a picture.
    cdef int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    if fd < 0:
        return False
    if fstat(fd, &found) == 0 and S_ISREG(found.st_mode) and found.st_size == size:
        while done < size:
            part = read(fd, place + done, size - done)
            if part > 0:
                done += part
            elif part == 0 or errno != EINTR:
                break
    else:
        done = -1
    close(fd)
    return done == size
