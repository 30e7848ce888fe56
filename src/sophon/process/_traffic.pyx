# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""Waits until there may be something to look at on connections, without Python.

A thread of Python that wakes ten times a second to ask the kernel takes a tenth of a millisecond each time, most of it
for memory that other work has pushed out of the CPU's caches. This takes a tenth of that.

Concurrency: no global state; the GIL is released.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.string cimport memcpy
from libc.time cimport time_t
from posix.stat cimport fstat, stat, struct_stat


cdef extern from "poll.h" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    short POLLIN
    int poll(pollfd* found, unsigned long count, int timeout_ms)


cdef extern from "sys/socket.h" nogil:
    ctypedef unsigned int socklen_t
    int getsockopt(int number, int level, int name, void* value, socklen_t* size)


cdef extern from "netinet/in.h" nogil:
    int IPPROTO_TCP


cdef extern from "netinet/tcp.h" nogil:
    int TCP_INFO


cdef extern from "time.h" nogil:
    cdef struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec* found)


cdef enum:
    _RECEIVED_AT = 128  # where tcpi_bytes_received lies in struct tcp_info
    _INFO_BYTES = 136


def wait(int alarm, const int64_t[::1] numbers, const uint64_t[::1] inodes, int64_t enough_bytes, int64_t files,
         double each_s, double most_s):
    """Wait until an alarm can be read, or something has changed.

    Args:
        alarm: Descriptor of the alarm.
        numbers: Descriptors of connections.
        inodes: Their inodes; another one means that the connection was closed.
        enough_bytes: Bytes received on all connections together at which to come back.
        files: How many files this process had open; another number is a change.
        each_s: How often to look.
        most_s: How long to wait at most.
    """
    cdef double end_s, left_s
    cdef Py_ssize_t count = numbers.shape[0]
    if inodes.shape[0] != count:
        raise ValueError(f"expected {count} inodes, got {inodes.shape[0]}")
    with nogil:
        end_s = _now_s() + most_s
        while True:
            left_s = end_s - _now_s()
            if left_s <= 0 or _rang(alarm, min(left_s, each_s)) or _files() != files:
                break
            if _received(numbers, inodes, count) >= enough_bytes:
                break


cdef double _now_s() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + 1e-9 * now.tv_nsec


cdef bint _rang(int alarm, double seconds) noexcept nogil:
    """Wait for the alarm; an interrupted or failed wait counts, too."""
    cdef pollfd found
    found.fd, found.events, found.revents = alarm, POLLIN, 0
    return poll(&found, 1, <int> (1000 * seconds) + 1) != 0


cdef int64_t _files() noexcept nogil:
    """Return how many files this process has open; 0 if the kernel is too old to say."""
    cdef struct_stat found
    return <int64_t> found.st_size if stat("/proc/self/fd", &found) == 0 else -1


cdef int64_t _received(const int64_t[::1] numbers, const uint64_t[::1] inodes, Py_ssize_t count) noexcept nogil:
    """Return how many bytes have arrived on all connections; very many if one is no longer there."""
    cdef struct_stat found
    cdef unsigned char info[_INFO_BYTES]
    cdef socklen_t size
    cdef uint64_t received
    cdef int64_t total = 0
    cdef Py_ssize_t i
    for i in range(count):
        size = _INFO_BYTES
        if fstat(<int> numbers[i], &found) != 0 or <uint64_t> found.st_ino != inodes[i]:
            return INT64_MAX
        if getsockopt(<int> numbers[i], IPPROTO_TCP, TCP_INFO, info, &size) != 0:
            return INT64_MAX
        if size >= _INFO_BYTES:  # an old kernel counts no bytes
            memcpy(&received, info + _RECEIVED_AT, sizeof(received))
            total += <int64_t> received
    return total
