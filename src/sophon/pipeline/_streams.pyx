# cython: language_level=3, boundscheck=True, wraparound=False, freethreading_compatible=True
"""Philox4x64-10 for many streams at once; `streams` does the same with NumPy, which takes ten times as long.

Concurrency: no global state; the GIL is released.
"""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    typedef unsigned __int128 sophon_wide;
    """
    ctypedef unsigned long long sophon_wide


def philox(uint64_t count, uint64_t position, const uint64_t[::1] samples, uint64_t seed, const uint64_t[::1] epochs,
           uint64_t[:, ::1] out):
    """Write four words for each sample.

    Args:
        count: First word of every counter; the others are 0, the position and the sample.
        position: See `count`.
        samples: See `count`.
        seed: First word of every key; the other is the epoch.
        epochs: One for all samples, or one for each.
        out: [4, samples].
    """
    cdef Py_ssize_t n = samples.shape[0], i
    cdef bint is_one = epochs.shape[0] == 1
    cdef uint64_t a, b, c, d, first, second, high_a, low_a, high_c, low_c
    cdef sophon_wide product
    cdef int turn
    if out.shape[0] != 4 or out.shape[1] != n or not (is_one or epochs.shape[0] == n):
        raise ValueError(f"expected room for 4 × {n} words and as many epochs, got {out.shape[0]} × {out.shape[1]}")
    with nogil:
        for i in range(n):
            a, b, c, d = count, 0, position, samples[i]
            first, second = seed, epochs[0] if is_one else epochs[i]
            for turn in range(10):
                product = <sophon_wide> a * <sophon_wide> 0xD2E7470EE14C6C93ULL
                high_a, low_a = <uint64_t> (product >> 64), <uint64_t> product
                product = <sophon_wide> c * <sophon_wide> 0xCA5A826395121157ULL
                high_c, low_c = <uint64_t> (product >> 64), <uint64_t> product
                a, b, c, d = high_c ^ b ^ first, low_c, high_a ^ d ^ second, low_a
                first += 0x9E3779B97F4A7C15ULL
                second += 0xBB67AE8584CAA73BULL
            out[0, i] = a
            out[1, i] = b
            out[2, i] = c
            out[3, i] = d
