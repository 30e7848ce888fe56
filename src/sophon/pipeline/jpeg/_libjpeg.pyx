# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True, freethreading_compatible=True
"""Calls the libjpeg that Pillow has loaded, bypassing Pillow's buffers, copies and objects.

The functions are looked up by name in a library that the process has already loaded; it is neither linked nor loaded
here. The structs below are the beginnings of libjpeg's own structs in version 6.2 of its binary interface, which is
frozen: the library reports an error to callers that expect a different version or struct size. Only the fields named
here are accessed.

Concurrency: a table of functions that is filled once; a decoder lives on the stack of its call. The GIL is released.
Limits: Linux on x86-64. Elsewhere `open_library` returns False.
"""

from libc.stdint cimport uint8_t

from sophon.pipeline._arrow cimport pixels_of


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__linux__) && defined(__x86_64__)
    #include <dlfcn.h>
    #include <setjmp.h>
    #include <string.h>

    enum { SOPHON_VERSION = 62, SOPHON_STRUCT = 632, SOPHON_HEADER_OK = 1, SOPHON_RGBA = 12, SOPHON_ROWS = 16 };

    typedef struct {
        void (*error_exit)(void *);
        void (*emit_message)(void *, int);
        void (*output_message)(void *);
        void (*format_message)(void *, char *);
        void (*reset)(void *);
        int code;
        char parameters[80];
        int trace_level;
        long warnings;
        char rest[64];
        jmp_buf jump; /* ours, beyond what libjpeg knows of */
    } sophon_errors;

    typedef struct {
        sophon_errors *errors;
        void *memory, *progress, *client;
        int is_decompressor, state;
        void *source;
        unsigned width, height;
        int components, colours, out_colours;
        unsigned scale, scale_of;
        double gamma;
        int buffered, raw, dct, fancy, smoothing, quantize, dither, two_pass, wanted_colours, one_pass, external, second;
        unsigned out_width, out_height;
        int out_channels, out_components, row_group, colour_count;
        void *colour_map;
        unsigned row;
        char rest[SOPHON_STRUCT];
    } sophon_decoder;

    _Static_assert(offsetof(sophon_errors, warnings) == 128, "libjpeg's error manager");
    _Static_assert(offsetof(sophon_decoder, out_colours) == 64, "libjpeg's decoder");
    _Static_assert(offsetof(sophon_decoder, out_components) == 148, "libjpeg's decoder");
    _Static_assert(offsetof(sophon_decoder, row) == 168, "libjpeg's decoder");

    static struct {
        void *(*std_error)(void *);
        void (*create)(void *, int, size_t);
        void (*source)(void *, const unsigned char *, unsigned long);
        int (*read_header)(void *, int);
        int (*start)(void *);
        unsigned (*read)(void *, unsigned char **, unsigned);
        int (*finish)(void *);
        void (*destroy)(void *);
    } sophon_lib;

    static void sophon_exit(void *decoder) { longjmp(((sophon_decoder *)decoder)->errors->jump, 1); }
    static void sophon_message(void *decoder, int level) {
        if (level < 0) ((sophon_decoder *)decoder)->errors->warnings++;
    }
    static void sophon_silent(void *decoder) { (void)decoder; }

    static int sophon_open(const char *path) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
        if (library == NULL) return 0;
        *(void **)&sophon_lib.std_error = dlsym(library, "jpeg_std_error");
        *(void **)&sophon_lib.create = dlsym(library, "jpeg_CreateDecompress");
        *(void **)&sophon_lib.source = dlsym(library, "jpeg_mem_src");
        *(void **)&sophon_lib.read_header = dlsym(library, "jpeg_read_header");
        *(void **)&sophon_lib.start = dlsym(library, "jpeg_start_decompress");
        *(void **)&sophon_lib.read = dlsym(library, "jpeg_read_scanlines");
        *(void **)&sophon_lib.finish = dlsym(library, "jpeg_finish_decompress");
        *(void **)&sophon_lib.destroy = dlsym(library, "jpeg_destroy_decompress");
        return sophon_lib.std_error && sophon_lib.create && sophon_lib.source && sophon_lib.read_header &&
               sophon_lib.start && sophon_lib.read && sophon_lib.finish && sophon_lib.destroy;
    }

    /* Returns 1 if the file has this size and three components, and was decoded without a warning. */
    static int sophon_decode(const uint8_t *data, size_t bytes, uint8_t *out, unsigned width, unsigned height) {
        sophon_errors errors;
        sophon_decoder decoder;
        uint8_t *rows[SOPHON_ROWS];
        memset(&errors, 0, sizeof(errors));
        memset(&decoder, 0, sizeof(decoder));
        sophon_lib.std_error(&errors);
        errors.error_exit = sophon_exit;
        errors.emit_message = sophon_message;
        errors.output_message = sophon_silent;
        decoder.errors = &errors;
        if (setjmp(errors.jump)) {
            sophon_lib.destroy(&decoder);
            return 0;
        }
        sophon_lib.create(&decoder, SOPHON_VERSION, SOPHON_STRUCT);
        sophon_lib.source(&decoder, data, bytes);
        if (sophon_lib.read_header(&decoder, 1) != SOPHON_HEADER_OK || decoder.components != 3 ||
            decoder.width != width || decoder.height != height)
            sophon_exit(&decoder);
        decoder.out_colours = SOPHON_RGBA; /* the fourth byte is 255, as in Pillow's pictures */
        sophon_lib.start(&decoder);
        if (decoder.out_width != width || decoder.out_height != height || decoder.out_components != 4)
            sophon_exit(&decoder);
        while (decoder.row < height) {
            unsigned count = 0;
            for (; count < SOPHON_ROWS && decoder.row + count < height; count++)
                rows[count] = out + 4 * (size_t)width * (decoder.row + count);
            if (sophon_lib.read(&decoder, rows, count) == 0) sophon_exit(&decoder);
        }
        sophon_lib.finish(&decoder);
        sophon_lib.destroy(&decoder);
        return errors.warnings == 0;
    }
    #else
    static int sophon_open(const char *path) { return 0; }
    static int sophon_decode(const uint8_t *data, size_t bytes, uint8_t *out, unsigned width, unsigned height) {
        return 0;
    }
    #endif
    """
    int sophon_open(const char *)
    int sophon_decode(const uint8_t *, size_t, uint8_t *, unsigned, unsigned) noexcept nogil


cdef bint is_open = False


def open_library(bytes path):
    """Use the libjpeg at a path, if it is already loaded; return whether all functions were found."""
    global is_open
    is_open = sophon_open(path) != 0
    return is_open


def decode(const uint8_t[::1] data, tuple size, target):
    """Decode a JPEG file of three components into a picture.

    Args:
        data: The file.
        size: Its (width, height).
        target: Arrow array of a picture of this size that nothing else refers to.

    Returns:
        Whether the file has this size and was decoded without an error or a warning; if not, the picture's content is
        undefined.
    """
    cdef unsigned width, height
    cdef int ok
    width, height = size
    if not is_open:
        raise ValueError("no libjpeg has been opened")
    if len(data) == 0 or not (0 < width <= 65500 and 0 < height <= 65500):
        return False
    cdef uint8_t *pixels = pixels_of(target, <long long>width * height)
    with nogil:
        ok = sophon_decode(&data[0], data.shape[0], pixels, width, height)
    return ok != 0
