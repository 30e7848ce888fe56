"""jpeg: lossy, and therefore never used unless the user allows it."""

from __future__ import annotations

import io
from typing import ClassVar

from PIL import Image

from sophon.codec import layout
from sophon.codec.codec import Codec, Payload
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Kind, Spec, Value, spec_of
from sophon.pipeline.checks import MAX_SIDE, integer
from sophon.pipeline.ops.decode import open_picture

DEFAULT_QUALITY = 95  # about a seventh of the bytes, with an error far below that of augmentation


class Jpeg(Codec):
    """A picture as baseline JPEG with 4:2:0 chroma: the decoded pixels differ from the encoded ones.

    Byte layout: a JFIF file.

    Args:
        quality: 1 … 100, libjpeg's scale.
    """

    exact: ClassVar[bool] = False

    def __init__(self, quality: int = DEFAULT_QUALITY) -> None:
        self.quality = integer("jpeg quality", quality, 1, 100)

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return f"jpeg:{self.quality}"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded."""
        return (
            spec.kind is Kind.IMAGE
            and not spec.mode
            and all(side is None or side <= MAX_SIDE for side in spec.shape[:2])
        )

    def encode(self, value: Image.Image) -> bytes:
        """Return the payload of a picture."""
        out = io.BytesIO()
        try:
            # Empty comment and no profile: save() would copy those of a decoded file into the payload.
            value.save(
                out,
                "JPEG",
                quality=self.quality,
                subsampling="4:2:0",
                icc_profile=None,
                comment=b"",
                exif=b"",
            )
        except (OSError, ValueError) as error:
            raise OpError(
                f"JPEG cannot hold this picture: {error}.", remedy="Use another codec at this cut."
            ) from error
        return out.getvalue()

    def decode(self, payload: Payload, spec: Spec) -> Value:
        """Return the picture in a payload."""
        try:
            picture = open_picture(payload, formats=("JPEG",))
            layout.check(spec_of(picture), spec)
            picture.load()
        except (OpError, OSError, ValueError, SyntaxError) as error:
            raise PayloadError(f"the JPEG payload is damaged: {error}") from error
        return layout.bare(picture)
