"""Decode: turns the bytes of a file into a picture, as torchvision's ImageFolder does."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from sophon.errors import OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Decoder, Json, Params
from sophon.pipeline.ops.picture import MAX_PIXELS
from sophon.pipeline.spec import MODES, Spec, image

_ORIENTATION = 0x0112  # EXIF tag of the orientation
AS_THEY_ARE = ("P", "I;16")
_OTHER_ORDER = ("I;16B", "I;16L", "I;16N")  # 16-bit modes with other byte orders
_KEPT = ("icc_profile", "transparency")
_WITH_ORIENTATION = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
_JPEG_START = b"\xff\xd8\xff"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG = re.compile(re.escape(_PNG_START))
_ICON_STARTS = (b"\0\0\1\0", b"icns")  # ICO and ICNS, which may contain PNG files
_PNG_PIXELS = (b"IDAT", b"fdAT", b"fcTL")  # chunks of which a good file may have any number
# What Pillow's plugins raise on malformed files; collected from damaged files of every format.
_DAMAGE = (OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, RuntimeError, struct.error)
# Limits on the cost of decoding relative to the file's size, so that a crafted file cannot keep a decoder busy. Each
# bound is far beyond what any encoder writes: a dozen scans, a few hundred segments, 700 pixels to a byte of a blank
# page.
_MOST_SEGMENTS = 4096  # before the pixels
_MOST_ICONS = 64  # pictures of an icon; systems ask for a dozen
_MOST_PADDING = 1024  # bytes between two segments, which Pillow reads one by one
_MOST_SCANNED = 1 << 32  # pixels times scans: half a second
_LARGE_PIXELS = 1 << 24
# Formats in which a few bytes may stand for a picture of any size. In PNG it takes a byte for 8,000 white pixels, and
# scanned pages as TIFF may be empty.
_CONDENSED = ("WEBP", "AVIF", "JPEG2000")
_MOST_PIXELS_PER_BYTE = 4096  # pixels of a large picture
_PADDING = re.compile(rb"[\x00\xff]*")
_SCAN = re.compile(rb"\xff\xda")
_SOF = frozenset((*range(0xC0, 0xD0),)) - {0xC4, 0xC8, 0xCC}
_SOS, _EOI = 0xDA, 0xD9
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
# The formats that Pillow decodes itself. Not among them: EPS, a program that Pillow has Ghostscript run; IPTC, which
# may contain one; and formats that Pillow only recognises or leaves to the system.
_FORMATS = frozenset(
    {
        *("AVIF", "BLP", "BMP", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FTEX", "GBR", "GIF", "ICNS", "ICO", "IM"),
        *("IMT", "JPEG", "JPEG2000", "MCIDAS", "MSP", "PCD", "PCX", "PIXAR", "PNG", "PPM", "PSD", "QOI", "SGI"),
        *("SPIDER", "SUN", "TGA", "TIFF", "WEBP", "XBM", "XPM", "XVTHUMB"),
    }
)
_PROGRAM_STARTS = (b"%!PS", b"\xc5\xd0\xd3\xc6")  # EPS, and EPS with a preview
_REMEDY = "Check that the file is complete and opens in other programs, replace it, or leave it out."


@dataclass(frozen=True)
class Decode(Decoder):
    """Decode an image file: ``Image.open(file).convert(mode)``; EXIF orientation and colour profiles are not applied.

    Args:
        mode: "RGB" (torchvision's ImageFolder), "L" (gray), "RGBA", "LA", "CMYK", "I" (int32) or "F" (float32). "P" and
            "I;16" keep the numbers in the file, such as the class ids of a mask or 16-bit depths: they take files in
            the same mode and 8-bit gray files, and reject all others, since conversion would change the numbers. Modes
            other than RGB and L have fewer ops and codecs, and no windows; an op that does not support a mode raises an
            error.
        max_pixels: A file that declares more pixels is rejected before any pixel is decoded. Formats other than JPEG
            are also bound by ``PIL.Image.MAX_IMAGE_PIXELS``, which is process-wide and up to you to set.
        metadata: Whether a later step, such as user code, may look at EXIF data or a colour profile (`Pipeline` sets
            this). A picture then keeps this metadata through all ops, and is never sent without it.
        upright: Rotate the picture according to its EXIF orientation, as Hugging Face's `datasets` does and ImageFolder
            does not.
    """

    mode: str = "RGB"
    max_pixels: int = MAX_PIXELS
    metadata: bool = False
    upright: bool = False
    data: ClassVar[str] = "picture"

    def __post_init__(self) -> None:
        self._set(
            mode=checks.choice(self._where("mode"), self.mode, tuple(MODES)),
            max_pixels=checks.integer(self._where("max_pixels"), self.max_pixels, 1, checks.MAX_SIDE**2),
            metadata=checks.flag(self._where("metadata"), self.metadata),
            upright=checks.flag(self._where("upright"), self.upright),
        )

    def to_spec(self) -> dict[str, Json]:
        """Return the op as JSON values; flags appear only if they are set, so that older fingerprints stay valid."""
        spec = super().to_spec()
        for flag in ("metadata", "upright"):
            if not spec[flag]:
                del spec[flag]
        return spec

    @property
    def gives_parts(self) -> bool:
        """Whether a part of a file can be decoded on its own: only pictures in RGB and L have windows."""
        return self.mode in ("RGB", "L")

    def sized(self, sizes: Sequence[int]) -> Spec:
        """Return the spec of a picture of this height and width."""
        height, width = sizes
        return image(height, width, MODES[self.mode][0], self.mode)

    def specimen(self) -> bytes:
        """Return the built-in picture, or a generated one if the op takes only files in mode P or I;16."""
        return _numbers(self.mode) if self.mode in AS_THEY_ARE else built_in()

    def within(self, most: int) -> Decode:
        """Return this op with its limit on the number of pixels lowered."""
        return self if self.max_pixels <= most else replace(self, max_pixels=most)

    def output(self, spec: Spec) -> Spec:
        """Return an image of unknown size."""
        self._check_kind(spec)
        return image(None, None, MODES[self.mode][0], self.mode)

    def apply(self, value: bytes, params: Params = None) -> Image.Image:  # noqa: ARG002 - part of the contract
        """Return the decoded picture."""
        picture = self.open(value)
        try:
            picture.load()
            if self.upright and picture.getexif().get(_ORIENTATION) is not None:
                picture = ImageOps.exif_transpose(picture)
            if picture.mode != self.mode:
                return self._converted(picture)
            # convert() would copy the pixels. It returns a plain Image rather than the file's own class, and some
            # transforms check the class.
            return picture._new(picture.im)
        except _DAMAGE as error:
            raise OpError(f"{_name(picture)} is damaged: {error}.", remedy=_REMEDY) from error

    def _converted(self, picture: Image.Image) -> Image.Image:
        """Return a picture in a mode other than its file's."""
        if self.mode == "I;16" and picture.mode in _OTHER_ORDER:
            return Image.fromarray(np.asarray(picture).astype("<u2"))
        if self.mode in AS_THEY_ARE and picture.mode != "L":
            raise OpError(
                f"{_name(picture)} is in mode {picture.mode}; converting it to mode {self.mode} would change its "
                "pixels.",
                remedy=f'Use Decode(mode="{picture.mode}"), or save the file in mode {self.mode}.',
            )
        return picture.convert(self.mode)

    def open(self, value: bytes) -> Image.Image:
        """Return the opened picture: its size is known, but its pixels are not decoded yet."""
        return open_picture(value, self.max_pixels)


def open_picture(
    value: bytes | bytearray | memoryview, max_pixels: int = MAX_PIXELS, formats: tuple[str, ...] = ()
) -> Image.Image:
    """Return somebody else's picture, opened: its size is known and bounded, but its pixels are not decoded yet.

    Nothing else in this package opens files with Pillow, which knows formats that are programs.

    Args:
        value: The file.
        max_pixels: A picture that declares more pixels is refused.
        formats: Pillow's names of the formats that the file may have. By default, all formats that Pillow decodes
            itself, and those for which this process has registered a plug-in of its own.

    Raises:
        OpError: The file is in no such format or is damaged, or decoding it would take far longer than its size
            suggests.
    """
    check_jpeg(value, max_pixels)
    _check_png(value)
    try:
        picture = _open(value, formats)
    except UnidentifiedImageError as error:
        if bytes(value[:4]) in _PROGRAM_STARTS:
            raise OpError(
                "an EPS image is a program that only an interpreter can render.",
                remedy="Save it as PNG, or leave it out.",
            ) from error
        start = bytes(value[:12]).hex(" ")
        wanted = " or ".join(formats) or "image"
        raise OpError(
            f"the file is not {'an' if wanted == 'image' else 'a'} {wanted}: {len(value):,} bytes that start with "
            f"{start or 'nothing'}.",
            remedy=_REMEDY,
        ) from error
    except Image.DecompressionBombError as error:
        raise OpError(
            f"{error}", remedy="Raise PIL.Image.MAX_IMAGE_PIXELS and max_pixels if you trust the file."
        ) from error
    except _DAMAGE as error:
        raise OpError(f"the image has a damaged header: {error}.", remedy=_REMEDY) from error
    if picture.width * picture.height > max_pixels:
        raise OpError(
            f"{_name(picture)} declares {picture.width}×{picture.height} pixels, "
            f"more than the limit of {max_pixels:,}.",
            remedy="Raise Decode(max_pixels=…) if you trust the file.",
        )
    pixels = picture.width * picture.height
    if picture.format in _CONDENSED and pixels > _LARGE_PIXELS and pixels > _MOST_PIXELS_PER_BYTE * len(value):
        raise OpError(f"{_name(picture)} declares {pixels:,} pixels in only {len(value):,} bytes.", remedy=_REMEDY)
    return picture


def check_jpeg(value: bytes | bytearray | memoryview, max_pixels: int | None = None) -> None:
    """Look at the markers of a JPEG file; raise `OpError` if decoding would take far longer than its size suggests.

    Other defects are left to the decoder. Files of other formats are not examined.

    Args:
        value: The file.
        max_pixels: A picture with more pixels is not examined here; it is rejected elsewhere.
    """
    if bytes(value[:3]) != _JPEG_START:
        return
    at, end = 2, len(value)
    pixels = components = 0
    is_progressive = False
    for _ in range(_MOST_SEGMENTS):
        found = _PADDING.match(value, at, at + _MOST_PADDING + 1)  # not through all of a bomb
        after = at if found is None else found.end()
        if after - at > _MOST_PADDING:
            raise OpError(
                f"the JPEG file has more than {_MOST_PADDING:,} meaningless bytes in its header.", remedy=_REMEDY
            )
        if after >= end or after == at:
            return
        marker = value[after]
        if marker == _EOI or after + 9 > end:
            return
        if marker in _SOF:
            pixels = int.from_bytes(value[after + 4 : after + 6], "big") * int.from_bytes(
                value[after + 6 : after + 8], "big"
            )
            components, is_progressive = value[after + 8], marker in _PROGRESSIVE
        if marker == _SOS:
            if max_pixels is not None and pixels > max_pixels:
                return
            _check_work(value, pixels, is_progressive or value[after + 3] < components)
            return
        at = after + 1 + int.from_bytes(value[after + 1 : after + 3], "big")
    raise OpError(f"the JPEG file has more than {_MOST_SEGMENTS:,} segments in its header.", remedy=_REMEDY)


def _check_png(value: bytes | bytearray | memoryview) -> None:
    """Raise `OpError` if a PNG file has very many chunks: Pillow keeps each, however short, in a hundred bytes.

    The same holds for the PNG files in an icon.
    """
    start, others = bytes(value[:8]), 0
    if start == _PNG_START:
        _check_chunks(value, 0, others)
    elif start.startswith(_ICON_STARTS):
        for number, found in enumerate(_PNG.finditer(value)):
            if number == _MOST_ICONS:
                raise OpError(f"the icon has more than {_MOST_ICONS} pictures.", remedy=_REMEDY)
            others = _check_chunks(value, found.start(), others)


def _check_chunks(value: bytes | bytearray | memoryview, start: int, others: int) -> int:
    """Return the number of chunks besides those of pixels, given how many others there are."""
    at = start + len(_PNG_START)
    while at + 12 <= len(value):
        kind = bytes(value[at + 4 : at + 8])
        if kind == b"IEND":
            break
        others += kind not in _PNG_PIXELS
        if others > _MOST_SEGMENTS:
            raise OpError(f"the PNG file has more than {_MOST_SEGMENTS:,} chunks besides its pixels.", remedy=_REMEDY)
        at += 12 + int.from_bytes(value[at : at + 4], "big")
    return others


def _check_work(value: bytes | bytearray | memoryview, pixels: int, has_scans: bool) -> None:
    if pixels > _LARGE_PIXELS and pixels > _MOST_PIXELS_PER_BYTE * len(value):
        raise OpError(f"the JPEG file declares {pixels:,} pixels in only {len(value):,} bytes.", remedy=_REMEDY)
    scans = sum(1 for _ in _SCAN.finditer(value)) if has_scans else 1
    if pixels * scans > _MOST_SCANNED:
        raise OpError(
            f"the JPEG file has {pixels:,} pixels in {scans:,} scans, which take too long to decode.", remedy=_REMEDY
        )


def kept_metadata(picture: object) -> dict[str | tuple[int, int], Any] | None:
    """Return the metadata of a picture that may change what user code does with it, or None.

    Such metadata is a colour profile, a transparent colour, or an orientation other than upright.
    """
    info = picture.info if isinstance(picture, Image.Image) else {}
    if any(name in info for name in _KEPT):
        return info
    return None if is_upright(info) else info


def is_upright(info: dict[str | tuple[int, int], Any]) -> bool:
    """Return whether Pillow considers a picture with this metadata upright; it reads EXIF and XMP."""
    if not any(name in info for name in _WITH_ORIENTATION):
        return True
    asked = Image.new("L", (1, 1))
    asked.info = info
    try:
        return bool(asked.getexif().get(_ORIENTATION, 1) == 1)
    except _DAMAGE:
        return False  # the reader will report it


@cache
def built_in() -> bytes:
    """Return the built-in picture: edges, gradients, noise and pure colours; 320×240, baseline JPEG, 4:2:0 chroma."""
    return resources.files("sophon.pipeline").joinpath("probe.jpg").read_bytes()


@cache
def _numbers(mode: str) -> bytes:
    """Return a PNG file of 320×240 numbers: class ids with a palette, or 16-bit numbers."""
    y, x = np.mgrid[:240, :320]
    if mode == "P":
        made = Image.fromarray(((x // 9 * 7 + y // 5 * 3) % 256).astype(np.uint8)).convert("P")
        made.putpalette(bytes(number * 37 % 256 for number in range(768)))
    else:
        made = Image.fromarray(((x * 211 + y * 977) % 65536).astype(np.uint16))
    out = io.BytesIO()
    made.save(out, "PNG")
    return out.getvalue()


def _open(value: bytes | bytearray | memoryview, formats: tuple[str, ...]) -> Image.Image:
    """Open a file; JPEG files are opened without Pillow's process-wide pixel limit, which would override ours."""
    if bytes(value[:3]) == _JPEG_START and (not formats or "JPEG" in formats):
        try:
            return JpegImagePlugin.jpeg_factory(io.BytesIO(value))
        except (SyntaxError, IndexError, TypeError, struct.error):
            pass  # Image.open tries other formats in this case, and so do we
    Image.preinit()  # the most usual formats, whose plug-ins are loaded quickly
    try:
        return Image.open(io.BytesIO(value), formats=_known(formats))
    except UnidentifiedImageError:
        Image.init()
    return Image.open(io.BytesIO(value), formats=_known(formats))


def _known(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the allowed formats whose plug-ins are loaded, in the order in which Pillow tries them."""
    return tuple(one for one in Image.ID if (one in formats if formats else one in _FORMATS or _is_added(one)))


def _is_added(name: str) -> bool:
    """Return whether a format's plug-in was registered by this process, such as pillow-heif's, and is not Pillow's."""
    return not str(getattr(Image.OPEN[name][0], "__module__", "")).startswith("PIL.")


def _name(picture: Image.Image) -> str:
    return f"{picture.format or 'the'} image"
