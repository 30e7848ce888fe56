"""Kinds of data: what a sample's costs are predicted from, and the assumptions made before anything is measured.

One row for each kind of field that a pipeline can work on. A sample's costs depend on the size of its file; for a
picture also on its number of pixels, and on how many of them the next crop needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sophon.pipeline import Pipeline
from sophon.pipeline.ops.decode import Decode
from sophon.store.fields import BYTES, PICTURE

Slopes = tuple[float, ...]


@dataclass(frozen=True)
class Kind:
    """How the costs of samples of one kind are predicted.

    Args:
        name: Name of the kind of field.
        features: Quantities whose logarithms costs are predicted from.
        priors: Assumed slopes in the features until there are measurements, by what is predicted.
    """

    name: str
    features: tuple[str, ...]
    priors: Mapping[str, Slopes] = field(default_factory=dict)

    @property
    def has_pixels(self) -> bool:
        """Whether samples are pictures, of which an epoch may need only a part."""
        return len(self.features) > 1


KINDS = {
    PICTURE: Kind(
        PICTURE,
        ("file bytes", "pixels", "pixels needed"),
        # From fits to photos of ImageNet and OpenImages.
        {
            "ahead bytes": (0.95, -0.9, 0.92),
            "ahead encode": (0.3, -0.2, 0.2),
            "ahead decode": (0.25, -0.3, 0.55),
            "file bytes": (1.0, 0.0, 0.0),
            "codec bytes": (0.2, -0.2, 0.08),
            "picture bytes": (0.0, 1.0, 0.0),
            "decode op": (0.3, -0.1, 0.4),
        },
    ),
    BYTES: Kind(BYTES, ("file bytes",), {"file bytes": (1.0,)}),
}
"""One row per kind."""


def kind_of(pipeline: Pipeline) -> Kind:
    """Return the kind of samples that a pipeline works on."""
    return KINDS[PICTURE if len(pipeline) and isinstance(pipeline.ops[0], Decode) else BYTES]
