# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=True
"""Convolution of 8-bit pictures, with the same bits as `ops.blur.convolve_by_numpy`.

Every step of a sum is a product in float64, which is exact, plus the sum so far, rounded to float32: basic operations,
which a vector unit does four at a time with the same bits. A compiler may fuse product and sum; the result is rounded
the same way, since the product is exact.

If no weight is tiny, the sum in float64 is exact too, and the step is one fused multiply-add in float32, eight at a
time. With no weight below 2^-22, all products are multiples of 2^-45, and so are their sums, rounded or not. With
weights that add up to hardly more than one, no sum reaches 2^8. So 53 bits are enough for any sum.

Memory: rows of the source are converted one by one into a ring of as many rows as the kernel has. All sizes are checked
before anything is read or written.

Concurrency: no global state; the GIL is released.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc


cdef extern from *:
    """
    #include <math.h>
    #include <stddef.h>
    #include <stdint.h>

    /* Values `start` to `count` of one row: the sum of `taps` products, each rounded to float32 as it is added. */
    static void sophon_blur_plain(const double *const *taps, const double *weights, int tap_count, uint8_t *out,
                                  ptrdiff_t start, ptrdiff_t count) {
        for (ptrdiff_t i = start; i < count; i++) {
            float sum = 0.0f;
            for (int t = 0; t < tap_count; t++) sum = (float)(taps[t][i] * weights[t] + (double)sum);
            out[i] = (uint8_t)(int)rintf(sum);
        }
    }

    /* The same for rows in float32. */
    static void sophon_blur_tail(const float *const *taps, const float *weights, int tap_count, uint8_t *out,
                                 ptrdiff_t start, ptrdiff_t count) {
        for (ptrdiff_t i = start; i < count; i++) {
            float sum = 0.0f;
            for (int t = 0; t < tap_count; t++)
                sum = (float)((double)taps[t][i] * (double)weights[t] + (double)sum);
            out[i] = (uint8_t)(int)rintf(sum);
        }
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>
    #define SOPHON_AVX2 __attribute__((target("avx2")))
    #define SOPHON_CHAINS 6 /* sums of four values at once: their latencies overlap, and all stay in registers */

    static int sophon_blur_wide_works(void) { return __builtin_cpu_supports("avx2"); }
    static int sophon_blur_fused_works(void) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    }

    static inline void sophon_put_four(uint8_t *out, __m128i four) {
        for (int k = 0; k < 4; k++, four = _mm_srli_si128(four, 4)) out[k] = (uint8_t)_mm_cvtsi128_si32(four);
    }

    __attribute__((target("avx2,fma"))) static ptrdiff_t sophon_blur_fused(const float *const *taps,
                                                                           const float *weights, int tap_count,
                                                                           uint8_t *out, ptrdiff_t count) {
        ptrdiff_t i = 0;
        for (; i + 8 * SOPHON_CHAINS <= count; i += 8 * SOPHON_CHAINS) {
            __m256 sum[SOPHON_CHAINS];
            for (int c = 0; c < SOPHON_CHAINS; c++) sum[c] = _mm256_setzero_ps();
            for (int t = 0; t < tap_count; t++) {
                const float *in = taps[t] + i;
                const __m256 weight = _mm256_broadcast_ss(weights + t);
                for (int c = 0; c < SOPHON_CHAINS; c++)
                    sum[c] = _mm256_fmadd_ps(_mm256_loadu_ps(in + 8 * c), weight, sum[c]);
            }
            for (int c = 0; c < SOPHON_CHAINS; c++) {
                const __m256i eight = _mm256_cvtps_epi32(sum[c]);
                sophon_put_four(out + i + 8 * c, _mm256_castsi256_si128(eight));
                sophon_put_four(out + i + 8 * c + 4, _mm256_extracti128_si256(eight, 1));
            }
        }
        return i;
    }

    /* Returns how many values of the row are done: all but the last few. */
    SOPHON_AVX2 static ptrdiff_t sophon_blur_wide(const double *const *taps, const double *weights, int tap_count,
                                                  uint8_t *out, ptrdiff_t count) {
        ptrdiff_t i = 0;
        for (; i + 4 * SOPHON_CHAINS <= count; i += 4 * SOPHON_CHAINS) {
            __m256d sum[SOPHON_CHAINS];
            for (int c = 0; c < SOPHON_CHAINS; c++) sum[c] = _mm256_setzero_pd();
            for (int t = 0; t < tap_count; t++) {
                const double *in = taps[t] + i;
                const __m256d weight = _mm256_broadcast_sd(weights + t);
                for (int c = 0; c < SOPHON_CHAINS; c++) {
                    const __m256d product = _mm256_mul_pd(_mm256_loadu_pd(in + 4 * c), weight);
                    sum[c] = _mm256_cvtps_pd(_mm256_cvtpd_ps(_mm256_add_pd(product, sum[c])));
                }
            }
            for (int c = 0; c < SOPHON_CHAINS; c++) {
                sophon_put_four(out + i + 4 * c, _mm256_cvtpd_epi32(sum[c])); /* rounds half to even */
            }
        }
        return i;
    }
    #else
    static int sophon_blur_wide_works(void) { return 0; }
    static int sophon_blur_fused_works(void) { return 0; }
    static ptrdiff_t sophon_blur_fused(const float *const *taps, const float *weights, int tap_count, uint8_t *out,
                                       ptrdiff_t count) { return 0; }
    static ptrdiff_t sophon_blur_wide(const double *const *taps, const double *weights, int tap_count, uint8_t *out,
                                      ptrdiff_t count) { return 0; }
    #endif
    """
    void sophon_blur_plain(const double *const *, const double *, int, uint8_t *, Py_ssize_t, Py_ssize_t) noexcept nogil
    void sophon_blur_tail(const float *const *, const float *, int, uint8_t *, Py_ssize_t, Py_ssize_t) noexcept nogil
    int sophon_blur_wide_works() noexcept nogil
    int sophon_blur_fused_works() noexcept nogil
    Py_ssize_t sophon_blur_fused(const float *const *, const float *, int, uint8_t *, Py_ssize_t) noexcept nogil
    Py_ssize_t sophon_blur_wide(const double *const *, const double *, int, uint8_t *, Py_ssize_t) noexcept nogil


cdef double LEAST = 2.0 ** -22  # smaller weights may need two roundings
cdef double MOST = 1.001  # largest allowed sum of weights: 255 times this is less than 2^8


cdef inline Py_ssize_t reflected(Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Return the position inside the picture that mirrors a position up to `size` - 1 outside."""
    if at < 0:
        return -at
    return at if at < size else 2 * (size - 1) - at


ctypedef fused Number:
    float
    double


cdef void convert(const uint8_t *source, Py_ssize_t width, int channels, Py_ssize_t margin, Number *row) noexcept nogil:
    """Write one row as floats, with reflected pixels on either side."""
    cdef Py_ssize_t x, from_x
    cdef int c
    for x in range(-margin, 0):
        from_x = reflected(x, width)
        for c in range(channels):
            row[(x + margin) * channels + c] = source[from_x * channels + c]
    for x in range(width * channels):
        row[margin * channels + x] = source[x]
    for x in range(width, width + margin):
        from_x = reflected(x, width)
        for c in range(channels):
            row[(x + margin) * channels + c] = source[from_x * channels + c]


cdef void blur_rows(const uint8_t *source, uint8_t *target, Py_ssize_t height, Py_ssize_t width, int channels,
                    const Number *weights, Py_ssize_t down, Py_ssize_t across, Number *ring, const Number **taps,
                    Number *used) noexcept nogil:
    cdef Py_ssize_t row_bytes = width * channels
    cdef Py_ssize_t row_values = (width + across - 1) * channels
    cdef Py_ssize_t y, dy, dx
    cdef Py_ssize_t done = 0
    cdef const Number *row
    cdef bint wide = sophon_blur_wide_works()
    cdef int count
    cdef Py_ssize_t ready = -(down // 2)  # the next row of the padded picture to be converted
    for y in range(height):
        while ready <= y + down // 2:
            convert(source + reflected(ready, height) * row_bytes, width, channels, across // 2,
                    ring + (ready + down // 2) % down * row_values)
            ready += 1
        count = 0
        for dy in range(down):
            row = ring + (y + dy) % down * row_values
            for dx in range(across):
                # A product of zero adds nothing.
                if weights[dy * across + dx] != 0:
                    taps[count] = row + dx * channels
                    used[count] = weights[dy * across + dx]
                    count += 1
        if Number is float:
            done = sophon_blur_fused(taps, used, count, target, row_bytes)
            sophon_blur_tail(taps, used, count, target, done, row_bytes)
        else:
            if wide:
                done = sophon_blur_wide(taps, used, count, target, row_bytes)
            sophon_blur_plain(taps, used, count, target, done, row_bytes)
        target += row_bytes


cdef int blur(const uint8_t *source, uint8_t *target, Py_ssize_t height, Py_ssize_t width, int channels,
              const float *kernel, Py_ssize_t down, Py_ssize_t across, Number zero) noexcept nogil:
    """Convolve in the precision of `zero`; return 0 if memory runs out."""
    cdef Py_ssize_t ring_values = down * (width + across - 1) * channels
    cdef Number *ring = <Number *>malloc((ring_values + 2 * down * across) * sizeof(Number))
    cdef const Number **taps = <const Number **>malloc(down * across * sizeof(Number *))
    cdef Number *weights
    cdef Py_ssize_t i
    cdef int ok = ring != NULL and taps != NULL
    if ok:
        weights = ring + ring_values
        for i in range(down * across):
            weights[i] = kernel[i]
        blur_rows(source, target, height, width, channels, <const Number *>weights, down, across, ring, taps,
                  weights + down * across)
    free(ring)
    free(taps)
    return ok


cdef bint can_be_fused(const float *kernel, Py_ssize_t count) noexcept nogil:
    """Return whether each step is rounded only once: weights are zero or at least 2^-22, and add up to one."""
    cdef double total = 0.0
    cdef Py_ssize_t i
    for i in range(count):
        if kernel[i] != 0 and not kernel[i] >= LEAST:
            return False
        total += kernel[i]
    return total <= MOST


def convolve(const uint8_t[:, :, ::1] source, const float[:, ::1] kernel, uint8_t[:, :, ::1] target):
    """Convolve a picture (height × width × channels) with a kernel of odd sides, with reflected borders.

    Args:
        source: The picture; larger than half of the kernel.
        kernel: Rows × columns.
        target: The result; the same size as the picture.
    """
    cdef Py_ssize_t height = source.shape[0]
    cdef Py_ssize_t width = source.shape[1]
    cdef Py_ssize_t channels = source.shape[2]
    cdef Py_ssize_t down = kernel.shape[0]
    cdef Py_ssize_t across = kernel.shape[1]
    cdef int ok
    if not (0 < channels <= 4 and down % 2 and across % 2 and down // 2 < height and across // 2 < width):
        raise ValueError(f"a kernel of {down} × {across} on a picture of {height} × {width} × {channels}")
    if target.shape[0] != height or target.shape[1] != width or target.shape[2] != channels:
        raise ValueError("expected room for a picture of the same size")
    if down > 255 or across > 255 or width > 1 << 24:
        raise ValueError("a kernel or a picture beyond all bounds")
    cdef const uint8_t *pixels = &source[0, 0, 0]
    cdef const float *weights = &kernel[0, 0]
    cdef uint8_t *made = &target[0, 0, 0]
    with nogil:
        if sophon_blur_fused_works() and can_be_fused(weights, down * across):
            ok = blur(pixels, made, height, width, <int>channels, weights, down, across, <float>0)
        else:
            ok = blur(pixels, made, height, width, <int>channels, weights, down, across, <double>0)
    if not ok:
        raise MemoryError
