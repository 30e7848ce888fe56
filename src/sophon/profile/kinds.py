"""Kinds of data: what a sample's costs are predicted from, and the assumptions made before anything is measured.

One row for each kind of field that a pipeline may be for. A sample's costs depend on the size of its file; those of a
picture also on how many pixels it has, and how many of them the next crop needs. Sound and volumes have other elements,
and other axes, and the same features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sophon.pipeline import Pipeline
from sophon.pipeline.op import Decoder
from sophon.store.fields import AUDIO, BYTES, PICTURE

Slopes = tuple[float, ...]


@dataclass(frozen=True)
class Kind:
    """How the costs of samples of one kind are predicted.

    Args:
        name: Name of the kind of field.
        features: What costs are predicted from: logarithms of these.
        axes: How many axes the decoded value has.
        priors: Slopes of a cost in the features until measurements say better, by what is predicted.
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
    """Return the kind of samples that a pipeline is for."""
    first = pipeline.ops[0]
    return KINDS.get(first.data, KINDS[BYTES]) if isinstance(first, Decoder) else KINDS[BYTES]
