# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""Reads files in one go, without the GIL from opening the first to closing the last.

Reading with `os` releases the GIL four times per file and waits for it each time while other threads compute: with two
decoding threads, a file in the page cache took as long as one on a disk.

How long a run of files took is measured here too, for the same reason: by the wall clock if the thread ever slept, and
otherwise by its CPU clock, since only other threads and processes on the same cores can have delayed it then.

Concurrency: no global state; the GIL is released.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from libc.string cimport memchr, memcpy, strlen
from libc.time cimport time_t
from posix.fcntl cimport O_CLOEXEC, O_NONBLOCK, O_RDONLY, open
from posix.stat cimport S_ISREG, fstat, struct_stat
from posix.unistd cimport close, read


cdef extern from *:
    """
    #include <sys/resource.h>
    #ifndef RUSAGE_THREAD  /* only Linux has it; elsewhere a sleep of any thread counts */
    #define RUSAGE_THREAD RUSAGE_SELF
    #endif
    """


cdef extern from "sys/resource.h" nogil:
    cdef struct rusage:
        long ru_nvcsw
    int RUSAGE_THREAD
    int getrusage(int who, rusage* found)


cdef extern from "time.h" nogil:
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int CLOCK_THREAD_CPUTIME_ID
    int clock_gettime(int clock, timespec* found)


cdef enum:
    _PATH_BYTES = 4096  # PATH_MAX: a longer one cannot be opened


cdef extern from "Python.h":
    bytes PyBytes_FromStringAndSize(const char* text, Py_ssize_t size)
    char* PyBytes_AS_STRING(bytes text)


def read_into(bytes path, unsigned char[::1] space):
    """Read a file into memory if it is a regular file of exactly that size; return whether it was read."""
    cdef char* place = <char*> &space[0] if space.shape[0] else NULL
    cdef char* name = path
    cdef Py_ssize_t size = space.shape[0]
    cdef bint is_read = strlen(name) == <size_t> len(path)
    if is_read:
        with nogil:
            is_read = _read(name, place, size)
    return is_read


def read_run(bytes root, const int64_t[::1] starts, const int64_t[::1] ends, const unsigned char[::1] names,
             const int64_t[::1] sizes, unsigned char[::1] space):
    """Read files side by side into memory, until one is not a regular file of the given size.

    Args:
        root: Common beginning of all paths.
        starts: Where the rest of each path begins in `names`.
        ends: Where it ends.
        names: Text that contains the rest of each path.
        sizes: Size of each file, in bytes.
        space: At least as many bytes as all files have.

    Returns:
        How many files were read, and how many seconds that took.
    """
    cdef Py_ssize_t count = sizes.shape[0], number, at = 0, length, prefix = len(root)
    cdef char* beginning = root
    cdef char path[_PATH_BYTES]
    cdef double start_s, cpu_s, took_s
    cdef long slept
    if starts.shape[0] != count or ends.shape[0] != count:
        raise ValueError(f"expected {count} starts and ends of names, got {starts.shape[0]} and {ends.shape[0]}")
    if not count:
        return 0, 0.0
    with nogil:
        start_s, cpu_s, slept = _seconds(CLOCK_MONOTONIC), _seconds(CLOCK_THREAD_CPUTIME_ID), _sleeps()
        number = 0
        while number < count:
            length = ends[number] - starts[number]
            if length <= 0 or starts[number] < 0 or ends[number] > names.shape[0] or sizes[number] <= 0:
                break
            if sizes[number] > space.shape[0] - at or prefix + length >= _PATH_BYTES:
                break
            memcpy(path, beginning, prefix)
            memcpy(path + prefix, &names[starts[number]], length)
            path[prefix + length] = 0
            if memchr(path, 0, prefix + length) != NULL or not _read(path, <char*> &space[at], sizes[number]):
                break
            at += sizes[number]
            number += 1
        if _sleeps() == slept:
            took_s = _seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_s
        else:
            took_s = _seconds(CLOCK_MONOTONIC) - start_s
    return number, took_s


def read_bytes(bytes path, Py_ssize_t size):
    """Return the bytes of a regular file of exactly that size; None if there is no such file or it cannot be read."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef char* place = PyBytes_AS_STRING(data)
    cdef char* name = path
    cdef bint is_read = strlen(name) == <size_t> len(path)
    if is_read:
        with nogil:
            is_read = _read(name, place, size)
    return data if is_read else None


cdef double _seconds(int clock) noexcept nogil:
    cdef timespec found
    clock_gettime(clock, &found)
    return found.tv_sec + 1e-9 * found.tv_nsec


cdef long _sleeps() noexcept nogil:
    """Return how often this thread has given up its core voluntarily, for example to wait for a disk."""
    cdef rusage found
    return found.ru_nvcsw if getrusage(RUSAGE_THREAD, &found) == 0 else -1


cdef bint _read(const char* path, char* place, Py_ssize_t size) noexcept nogil:
    cdef struct_stat found
    cdef Py_ssize_t done = 0, part
    # O_NONBLOCK, so as not to wait forever if a pipe has replaced a picture.
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
