"""Kinds of data: the features that predict a sample's costs, and the assumptions made before anything is measured.

The table has one row for each kind of field that a pipeline can process. A sample's costs depend on the size of its
file; the costs of a picture also depend on its number of pixels, and on how many of them the next crop needs. Sound and
volumes have other elements and axes, but the same features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sophon.pipeline import Pipeline
from sophon.pipeline.op import Decoder
from sophon.store.fields import AUDIO, BYTES, PICTURE, VOLUME

Slopes = tuple[float, ...]


@dataclass(frozen=True)
class Kind:
    """How the costs of samples of one kind are predicted.

    Args:
        name: Name of the kind of field.
        features: Sizes whose logarithms predict the costs.
        axes: Number of axes of the decoded value.
        priors: Slopes of each predicted cost in the features, used until there are measurements.
    """

    name: str
    features: tuple[str, ...]
    axes: int = 2
    priors: Mapping[str, Slopes] = field(default_factory=dict)

    @property
    def has_pixels(self) -> bool:
        """Whether samples are pictures, of which an epoch may need only a part."""
        return len(self.features) > 1


KINDS = {
    PICTURE: Kind(
        PICTURE,
        ("file bytes", "pixels", "pixels needed"),
        2,
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
    VOLUME: Kind(
        VOLUME,
        ("file bytes", "voxels", "voxels needed"),
        3,
        # A window has the bits per voxel of its file; a compressed file is read from its beginning for every box.
        {
            "ahead bytes": (1.0, -1.0, 1.0),
            "ahead encode": (0.5, 0.0, 0.5),
            "ahead decode": (0.0, 0.0, 1.0),
            "file bytes": (1.0, 0.0, 0.0),
            "picture bytes": (0.0, 1.0, 0.0),
            "decode op": (0.5, 0.0, 0.5),
        },
    ),
    AUDIO: Kind(
        AUDIO,
        ("file bytes", "samples", "samples needed"),
        1,
        {
            "ahead bytes": (1.0, -1.0, 1.0),
            "ahead encode": (0.5, -0.2, 0.2),
            "ahead decode": (0.3, -0.3, 0.7),
            "file bytes": (1.0, 0.0, 0.0),
            "codec bytes": (0.8, -0.8, 0.2),
            "picture bytes": (0.0, 1.0, 0.0),
            "decode op": (0.4, -0.2, 0.4),
        },
    ),
    BYTES: Kind(BYTES, ("file bytes",), 2, {"file bytes": (1.0,)}),
}
"""One row per kind."""


def kind_of(pipeline: Pipeline) -> Kind:
    """Return the kind of samples that a pipeline processes."""
    first = pipeline.ops[0]
    return KINDS.get(first.data, KINDS[BYTES]) if isinstance(first, Decoder) else KINDS[BYTES]
