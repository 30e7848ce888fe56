# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=True
"""The pixel loops that take most of a sample's time after decoding, with the same bits as Pillow and NumPy.

`resize` is Pillow's bilinear resampling: the same coefficients in double precision, converted to 22-bit integers in the
same way, then integer sums, which do not depend on the order of summation or the vector width. `look_up` turns 8-bit
pixels into floats by a table that the caller has computed with the operations that it replaces; `separate` stores the
channels one after the other.

Memory: pictures are Pillow's own, handed over as Arrow arrays (``Image.__arrow_c_array__``) of four bytes per pixel. All
sizes are checked against the length of these arrays before anything is read or written.

Concurrency: no global state; the GIL is released.
"""

from libc.math cimport ceil
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc

from sophon.pipeline._arrow cimport pixels_of


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #define PRECISION 22 /* fractional bits: Pillow's 32 - 8 - 2 */

    static uint8_t sophon_clip(int32_t sum) {
        sum >>= PRECISION;
        return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }

    /* One row: pixel x of `out` is the sum of count[x] pixels of `in` from first[x] on, each with its weight. */
    static void sophon_across_plain(const uint8_t *in, uint8_t *out, int width, const int32_t *first,
                                    const int32_t *count, const int32_t *weights, int taps) {
        for (int x = 0; x < width; x++) {
            const uint8_t *p = in + 4 * (size_t)first[x];
            const int32_t *w = weights + (size_t)x * taps;
            int32_t sum[4] = {1 << (PRECISION - 1), 1 << (PRECISION - 1), 1 << (PRECISION - 1), 1 << (PRECISION - 1)};
            for (int i = 0; i < count[x]; i++)
                for (int c = 0; c < 4; c++) sum[c] += p[4 * i + c] * w[i];
            for (int c = 0; c < 4; c++) out[4 * x + c] = sophon_clip(sum[c]);
        }
    }

    /* One row, from byte `start` on: the sum of `count` rows of `in`, each with its weight. */
    static void sophon_down_plain(const uint8_t *in, size_t stride, uint8_t *out, size_t start, size_t bytes, int count,
                                  const int32_t *weights) {
        for (size_t x = start; x < bytes; x++) {
            int32_t sum = 1 << (PRECISION - 1);
            for (int i = 0; i < count; i++) sum += in[i * stride + x] * weights[i];
            out[x] = sophon_clip(sum);
        }
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <immintrin.h>
    #define SOPHON_AVX2 __attribute__((target("avx2")))

    static int sophon_wide(void) { return __builtin_cpu_supports("avx2"); }

    SOPHON_AVX2 static inline __m256i sophon_two(const uint8_t *a, const uint8_t *b) {
        int32_t u, v;
        memcpy(&u, a, 4);
        memcpy(&v, b, 4);
        return _mm256_cvtepu8_epi32(_mm_unpacklo_epi32(_mm_cvtsi32_si128(u), _mm_cvtsi32_si128(v)));
    }

    SOPHON_AVX2 static inline void sophon_put_two(uint8_t *a, uint8_t *b, __m256i sum) {
        int32_t u, v;
        sum = _mm256_srai_epi32(sum, PRECISION);
        sum = _mm256_packs_epi32(sum, sum);
        sum = _mm256_packus_epi16(sum, sum);
        u = _mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
        v = _mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
        memcpy(a, &u, 4);
        memcpy(b, &v, 4);
    }

    /* Four rows at once: their loads and multiplications overlap, and a weight is loaded once for all. */
    SOPHON_AVX2 static void sophon_across_wide(const uint8_t *in, size_t stride, uint8_t *out, size_t out_stride,
                                               int width, const int32_t *first, const int32_t *count,
                                               const int32_t *weights, int taps) {
        const __m256i half = _mm256_set1_epi32(1 << (PRECISION - 1));
        for (int x = 0; x < width; x++) {
            const uint8_t *p = in + 4 * (size_t)first[x];
            const int32_t *w = weights + (size_t)x * taps;
            uint8_t *o = out + 4 * (size_t)x;
            __m256i upper = half, lower = half;
            for (int i = 0; i < count[x]; i++, p += 4) {
                const __m256i weight = _mm256_set1_epi32(w[i]);
                upper = _mm256_add_epi32(upper, _mm256_mullo_epi32(sophon_two(p, p + stride), weight));
                lower = _mm256_add_epi32(
                    lower, _mm256_mullo_epi32(sophon_two(p + 2 * stride, p + 3 * stride), weight));
            }
            sophon_put_two(o, o + out_stride, upper);
            sophon_put_two(o + 2 * out_stride, o + 3 * out_stride, lower);
        }
    }

    /* Returns how many bytes of the row are done: all but the last few. */
    SOPHON_AVX2 static size_t sophon_down_wide(const uint8_t *in, size_t stride, uint8_t *out, size_t bytes, int count,
                                               const int32_t *weights) {
        const __m256i half = _mm256_set1_epi32(1 << (PRECISION - 1));
        size_t x = 0;
        for (; x + 16 <= bytes; x += 16) {
            __m256i left = half, right = half;
            for (int i = 0; i < count; i++) {
                const __m128i pixels = _mm_loadu_si128((const __m128i *)(in + i * stride + x));
                const __m256i weight = _mm256_set1_epi32(weights[i]);
                left = _mm256_add_epi32(left, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(pixels), weight));
                right = _mm256_add_epi32(
                    right, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(pixels, 8)), weight));
            }
            left = _mm256_packs_epi32(_mm256_srai_epi32(left, PRECISION), _mm256_srai_epi32(right, PRECISION));
            left = _mm256_permute4x64_epi64(left, 0xD8); /* packing works on halves: put them in order */
            _mm_storeu_si128((__m128i *)(out + x),
                             _mm_packus_epi16(_mm256_castsi256_si128(left), _mm256_extracti128_si256(left, 1)));
        }
        return x;
    }

    /* Returns how many pixels are done: all but the last few. Mirrored, the first pixel is written last. */
    SOPHON_AVX2 static size_t sophon_separate_wide(const uint8_t *in, uint8_t *red, uint8_t *green, uint8_t *blue,
                                                   size_t count, int mirrored) {
        const __m128i back = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        /* In each half: four pixels, their reds first, then greens and blues. */
        const __m256i gather = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9,
                                                13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        size_t i = 0;
        for (; i + 16 <= count; i += 16) {
            const __m256i *p = (const __m256i *)(in + 4 * i);
            const __m256i a = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_loadu_si256(p), gather), order);
            const __m256i b = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_loadu_si256(p + 1), gather), order);
            const __m256i low = _mm256_unpacklo_epi64(a, b), high = _mm256_unpackhi_epi64(a, b);
            __m128i r = _mm256_castsi256_si128(low), g = _mm256_castsi256_si128(high);
            __m128i u = _mm256_extracti128_si256(low, 1);
            const size_t at = mirrored ? count - 16 - i : i;
            if (mirrored) {
                r = _mm_shuffle_epi8(r, back);
                g = _mm_shuffle_epi8(g, back);
                u = _mm_shuffle_epi8(u, back);
            }
            _mm_storeu_si128((__m128i *)(red + at), r);
            _mm_storeu_si128((__m128i *)(green + at), g);
            _mm_storeu_si128((__m128i *)(blue + at), u);
        }
        return i;
    }
    #else
    static int sophon_wide(void) { return 0; }
    static size_t sophon_separate_wide(const uint8_t *in, uint8_t *red, uint8_t *green, uint8_t *blue, size_t count,
                                       int mirrored) { return 0; }
    static void sophon_across_wide(const uint8_t *in, size_t stride, uint8_t *out, size_t out_stride, int width,
                                   const int32_t *first, const int32_t *count, const int32_t *weights, int taps) {}
    static size_t sophon_down_wide(const uint8_t *in, size_t stride, uint8_t *out, size_t bytes, int count,
                                   const int32_t *weights) { return 0; }
    #endif
    """
    int sophon_wide() noexcept nogil
    void sophon_across_plain(const uint8_t *, uint8_t *, int, const int32_t *, const int32_t *, const int32_t *,
                             int) noexcept nogil
    void sophon_down_plain(const uint8_t *, size_t, uint8_t *, size_t, size_t, int, const int32_t *) noexcept nogil
    void sophon_across_wide(const uint8_t *, size_t, uint8_t *, size_t, int, const int32_t *, const int32_t *,
                            const int32_t *, int) noexcept nogil
    size_t sophon_down_wide(const uint8_t *, size_t, uint8_t *, size_t, int, const int32_t *) noexcept nogil
    size_t sophon_separate_wide(const uint8_t *, uint8_t *, uint8_t *, uint8_t *, size_t, int) noexcept nogil


cdef struct Weights:
    int taps  # number of products in the longest sum
    int32_t *first
    int32_t *count
    int32_t *weight  # size × taps


cdef int weigh(Weights *w, int size, int target) noexcept nogil:
    """Fill in which of `size` source pixels make up each target pixel, with weights; 0 if memory runs out."""
    cdef double scale = <double>size / target
    cdef double reach = scale if scale > 1.0 else 1.0  # half the width of the filter, in pixels of the source
    cdef double step = 1.0 / reach
    cdef double centre, total, weight
    cdef double *exact
    cdef int x, i, first, last
    w.taps = <int>ceil(reach) * 2 + 1
    w.first = <int32_t *>malloc(target * sizeof(int32_t))
    w.count = <int32_t *>malloc(target * sizeof(int32_t))
    w.weight = <int32_t *>malloc(<size_t>target * w.taps * sizeof(int32_t))
    exact = <double *>malloc(w.taps * sizeof(double))
    if w.first == NULL or w.count == NULL or w.weight == NULL or exact == NULL:
        free(exact)
        return 0
    for x in range(target):
        centre = (x + 0.5) * scale
        first = <int>(centre - reach + 0.5)
        if first < 0:
            first = 0
        last = <int>(centre + reach + 0.5)
        if last > size:
            last = size
        total = 0.0
        for i in range(last - first):
            weight = (i + first - centre + 0.5) * step
            if weight < 0.0:
                weight = -weight
            weight = 1.0 - weight if weight < 1.0 else 0.0
            exact[i] = weight
            total += weight
        for i in range(last - first):
            weight = exact[i]
            if total != 0.0:
                weight /= total
            w.weight[x * w.taps + i] = <int32_t>(0.5 + weight * (1 << 22))
        w.first[x] = first
        w.count[x] = last - first
    free(exact)
    return 1


cdef void free_weights(Weights *w) noexcept nogil:
    free(w.first)
    free(w.count)
    free(w.weight)


cdef void resize_across(const uint8_t *source, size_t stride, int rows, uint8_t *target, int width,
                        const Weights *w) noexcept nogil:
    """Resize rows to a new width."""
    cdef size_t row_bytes = 4 * <size_t>width
    cdef int y = 0
    if sophon_wide():
        while y + 4 <= rows:
            sophon_across_wide(source + y * stride, stride, target + y * row_bytes, row_bytes, width, w.first, w.count,
                               w.weight, w.taps)
            y += 4
    while y < rows:
        sophon_across_plain(source + y * stride, target + y * row_bytes, width, w.first, w.count, w.weight, w.taps)
        y += 1


cdef void resize_down(const uint8_t *source, size_t stride, int rows, uint8_t *target, int width,
                      const Weights *w) noexcept nogil:
    """Resize columns to a height of `rows`."""
    cdef size_t row_bytes = 4 * <size_t>width
    cdef const uint8_t *first
    cdef size_t done = 0
    cdef int wide = sophon_wide()
    cdef int y
    for y in range(rows):
        first = source + w.first[y] * stride
        if wide:
            done = sophon_down_wide(first, stride, target + y * row_bytes, row_bytes, w.count[y],
                                    w.weight + <size_t>y * w.taps)
        sophon_down_plain(first, stride, target + y * row_bytes, done, row_bytes, w.count[y],
                          w.weight + <size_t>y * w.taps)


cdef int _resize(const uint8_t *source, size_t stride, int width, int height, uint8_t *target, int to_width,
                 int to_height, bint down_first) noexcept nogil:
    """Resize in two steps, with an intermediate picture of 8-bit pixels; return 0 if memory runs out."""
    cdef Weights across, down
    cdef int middle_width = width if down_first else to_width
    cdef int middle_height = to_height if down_first else height
    cdef size_t middle_stride = 4 * <size_t>middle_width
    cdef uint8_t *middle = <uint8_t *>malloc(middle_stride * middle_height)
    cdef int ok = weigh(&across, width, to_width)
    ok = weigh(&down, height, to_height) and ok and middle != NULL
    if ok and down_first:
        resize_down(source, stride, to_height, middle, width, &down)
        resize_across(middle, middle_stride, to_height, target, to_width, &across)
    elif ok:
        resize_across(source, stride, height, middle, to_width, &across)
        resize_down(middle, middle_stride, to_height, target, to_width, &down)
    free_weights(&across)
    free_weights(&down)
    free(middle)
    return ok


def resize(source, tuple size, tuple box, target, tuple to_size, bint down_first):
    """Resize a box of a picture as Pillow's ``crop(box).resize(to_size, BILINEAR)`` does, into another picture.

    Args:
        source: Arrow array of the picture.
        size: (width, height) of the picture.
        box: (left, top, right, bottom), not empty and inside the picture.
        target: Arrow array of a picture that nothing else refers to.
        to_size: (width, height) of the target.
        down_first: Whether heights are resized before widths; the order matters, since values are rounded between the
            steps.
    """
    cdef int width, height, left, top, right, bottom, to_width, to_height, ok
    width, height = size
    left, top, right, bottom = box
    to_width, to_height = to_size
    if not (0 <= left < right <= width and 0 <= top < bottom <= height and to_width > 0 and to_height > 0):
        raise ValueError(f"box {box} is empty or not inside of {size}, or {to_size} is empty")
    cdef const uint8_t *pixels = pixels_of(source, <int64_t>width * height)
    cdef uint8_t *to_pixels = pixels_of(target, <int64_t>to_width * to_height)
    cdef size_t stride = 4 * <size_t>width
    with nogil:
        ok = _resize(pixels + top * stride + 4 * <size_t>left, stride, right - left, bottom - top, to_pixels, to_width,
                     to_height, down_first)
    if not ok:
        raise MemoryError


cdef void plane_rows(const uint8_t *source, size_t stride, uint8_t *out, Py_ssize_t rows, Py_ssize_t width, bint flip_x,
                     bint flip_y) noexcept nogil:
    """Write the first three bytes of each pixel in a box, channel by channel, mirrored if requested."""
    cdef uint8_t *red = out
    cdef uint8_t *green = out + rows * width
    cdef uint8_t *blue = out + 2 * rows * width
    cdef const uint8_t *p
    cdef Py_ssize_t x, y, to
    cdef int wide = sophon_wide()
    for y in range(rows):
        p = source + (rows - 1 - y if flip_y else y) * stride
        x = <Py_ssize_t>sophon_separate_wide(p, red, green, blue, width, flip_x) if wide else 0
        while x < width:
            to = width - 1 - x if flip_x else x
            red[to] = p[4 * x]
            green[to] = p[4 * x + 1]
            blue[to] = p[4 * x + 2]
            x += 1
        red += width
        green += width
        blue += width


cdef void table_rows(const uint8_t *source, size_t stride, const float *table, float *out, Py_ssize_t rows,
                     Py_ssize_t width, bint flip_x, bint flip_y) noexcept nogil:
    """Write the table's entries for each pixel in a box, channel by channel, mirrored if requested."""
    cdef const float *red = table
    cdef const float *green = table + 256
    cdef const float *blue = table + 512
    cdef float *to_red = out
    cdef float *to_green = out + rows * width
    cdef float *to_blue = out + 2 * rows * width
    cdef const uint8_t *p
    cdef Py_ssize_t x, y
    for y in range(rows):
        p = source + (rows - 1 - y if flip_y else y) * stride
        if flip_x:
            p += 4 * (width - 1)
            for x in range(width):
                to_red[x] = red[p[0]]
                to_green[x] = green[p[1]]
                to_blue[x] = blue[p[2]]
                p -= 4
        else:
            for x in range(width):
                to_red[x] = red[p[4 * x]]
                to_green[x] = green[p[4 * x + 1]]
                to_blue[x] = blue[p[4 * x + 2]]
        to_red += width
        to_green += width
        to_blue += width


cdef class Box:
    """A box of a picture, possibly resized: the source for the two functions below."""

    cdef const uint8_t *pixels
    cdef size_t stride
    cdef uint8_t *resized

    def __dealloc__(self):
        free(self.resized)


cdef Box box_of(source, tuple size, tuple box, bint down_first, Py_ssize_t to_height, Py_ssize_t to_width):
    """Return a box of a picture, resized unless it already has the given size."""
    cdef int width, height, left, top, right, bottom
    cdef int ok = 1
    cdef Box found = Box.__new__(Box)
    width, height = size
    left, top, right, bottom = box
    if not (0 <= left < right <= width and 0 <= top < bottom <= height and to_width > 0 and to_height > 0):
        raise ValueError(f"box {box} is empty or not inside of {size}, or there is no room")
    found.stride = 4 * <size_t>width
    found.pixels = pixels_of(source, <int64_t>width * height) + top * found.stride + 4 * <size_t>left
    if right - left == to_width and bottom - top == to_height:
        return found
    found.resized = <uint8_t *>malloc(4 * <size_t>to_width * <size_t>to_height)
    if found.resized == NULL:
        raise MemoryError
    with nogil:
        ok = _resize(found.pixels, found.stride, right - left, bottom - top, found.resized, <int>to_width,
                     <int>to_height, down_first)
    if not ok:
        raise MemoryError
    found.pixels, found.stride = found.resized, 4 * <size_t>to_width
    return found


def separate(source, tuple size, tuple box, bint down_first, bint flip_x, bint flip_y, uint8_t[:, :, ::1] out):
    """Write the first three bytes of every pixel of a box, channel by channel.

    Args:
        source: Arrow array of a picture.
        size: (width, height) of the picture.
        box: (left, top, right, bottom), not empty and inside the picture; resized to the size of `out` as in `resize`.
        down_first: Whether heights are resized before widths.
        flip_x: Whether left and right are exchanged after resizing.
        flip_y: Whether top and bottom are exchanged after resizing.
        out: 3 × height × width.
    """
    if out.shape[0] != 3:
        raise ValueError("expected room for 3 channels")
    cdef Box found = box_of(source, size, box, down_first, out.shape[1], out.shape[2])
    with nogil:
        plane_rows(found.pixels, found.stride, &out[0, 0, 0], out.shape[1], out.shape[2], flip_x, flip_y)


def look_up(source, tuple size, tuple box, bint down_first, bint flip_x, bint flip_y, float[:, :, ::1] out,
            const float[:, ::1] table):
    """Write the table's entries for the first three bytes of every pixel of a box, channel by channel.

    Args:
        source: Arrow array of a picture.
        size: (width, height) of the picture.
        box: (left, top, right, bottom), not empty and inside the picture; resized to the size of `out` as in `resize`.
        down_first: Whether heights are resized before widths.
        flip_x: Whether left and right are exchanged after resizing.
        flip_y: Whether top and bottom are exchanged after resizing.
        out: 3 × height × width.
        table: 3 × 256: what each value of each channel becomes.
    """
    if table.shape[0] != 3 or table.shape[1] != 256 or out.shape[0] != 3:
        raise ValueError("expected a table of 3 × 256 and room for 3 channels")
    cdef Box found = box_of(source, size, box, down_first, out.shape[1], out.shape[2])
    with nogil:
        table_rows(found.pixels, found.stride, &table[0, 0], &out[0, 0, 0], out.shape[1], out.shape[2], flip_x, flip_y)
