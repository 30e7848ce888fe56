"""OnTensor: a transform of torch tensors that runs on the trainer and needs only a region of the picture.

Recipes that make a tensor first (`ToImage`, `PILToTensor` or `ToTensor`, then crop) run with torchvision's own code,
since torch does not resize with Pillow's bits. But a crop of a tensor needs the same box of the picture as a crop of
the picture, so the storage node is told the steps from the conversion to the crop, from which it knows which part of
the file to send. A step's effect on positions is described by an op on pictures, its `geometry`, which also draws the
random parameters; its effect on values comes from the user's own object, which never leaves the trainer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.crop import CenterCrop, RandomCrop, RandomResizedCrop
from sophon.pipeline.ops.flip import RandomHorizontalFlip, RandomVerticalFlip
from sophon.pipeline.ops.resize import Resize
from sophon.pipeline.part import Box, Canvas, Part
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Kind, Spec, Value, image, spec_of
from sophon.pipeline.streams import Boxes, Sizes, Streams

GEOMETRIES = (Resize, CenterCrop, RandomCrop, RandomResizedCrop, RandomHorizontalFlip, RandomVerticalFlip)
_DTYPES = ("uint8", "float32")
_MAX_NAME = 200  # characters


@dataclass(frozen=True)
class OnTensor(Op):
    """Run a transform on the trainer; both ends know its geometry.

    Args:
        geometry: The op on pictures that moves pixels as this step does, and draws its parameters; None if every pixel
            stays where it is.
        dtype: Data type of the resulting tensor.
        name_of: Name of the transform, for display.
        code: A digest that distinguishes transforms with different settings.
        transform: The transform itself; None on a storage node.
    """

    geometry: Op | None = None
    dtype: str = "uint8"
    name_of: str = ""
    code: str = ""
    transform: Callable[[Any], Any] | None = field(default=None, compare=False)
    takes: ClassVar[Kind] = Kind.OBJECT  # a conversion takes a picture, later steps take a tensor

    def __post_init__(self) -> None:
        if self.geometry is not None and type(self.geometry) not in GEOMETRIES:
            known = " or ".join(kind.__name__ for kind in GEOMETRIES)
            raise checks.fail(self._where("geometry"), self.geometry, f"{known}, or none")
        checks.choice(self._where("dtype"), self.dtype, _DTYPES)
        for name in ("name_of", "code"):
            if not isinstance(getattr(self, name), str) or len(getattr(self, name)) > _MAX_NAME:
                raise checks.fail(self._where(name), getattr(self, name), f"a string of at most {_MAX_NAME} characters")

    @property
    def portable(self) -> bool:
        """Always false: torch's bits depend on the machine, so the step runs on the trainer."""
        return False

    @property
    def random(self) -> bool:
        """Whether the result depends on the epoch."""
        return self.geometry is not None and self.geometry.random

    @property
    def crops(self) -> bool:
        """Whether the step may need only a box of its input."""
        return self.geometry is not None and self.geometry.crops

    @property
    def passes(self) -> bool:
        """Whether a box of the output depends only on a box of the input."""
        return self.geometry is None or self.geometry.passes

    def output(self, spec: Spec) -> Spec:
        """Return a tensor."""
        if spec.kind not in (Kind.IMAGE, Kind.TENSOR):
            raise ConfigError(f"OnTensor takes an image or a tensor, but the op before it gives {spec}")
        picture = _as_image(spec)
        made = picture if self.geometry is None else self.geometry.output(picture)
        height, width, channels = made.shape
        return Spec(Kind.TENSOR, (channels, height, width), self.dtype)

    def draw(self, rng: Rng, spec: Spec) -> Params:
        """Return the parameters that the geometry draws."""
        return None if self.geometry is None else self.geometry.draw(rng, _as_image(spec))

    def box_needed(self, spec: Spec, params: Params) -> Box | None:
        """Return the box that the geometry needs."""
        return None if self.geometry is None else self.geometry.box_needed(_as_image(spec), params)

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:
        """Return the box of the input from which the geometry makes a box of the output."""
        return box if self.geometry is None else self.geometry.box_before(box, _as_image(spec), params)

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the boxes that the geometry needs."""
        return None if self.geometry is None else self.geometry.boxes_needed(streams, sizes)

    def boxes_before(self, boxes: Boxes, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the boxes of the inputs from which the geometry makes boxes of the outputs."""
        return boxes if self.geometry is None else self.geometry.boxes_before(boxes, streams, sizes)

    def sizes_made(self, sizes: Sizes) -> Sizes | None:
        """Return the sizes that the geometry gives."""
        return sizes if self.geometry is None else self.geometry.sizes_made(sizes)

    def apply(self, value: Value, params: Params) -> Value:
        """Return the transform's result for the drawn parameters."""
        if self.transform is None:
            raise OpError(f"{self.name_of or 'OnTensor'} runs on the trainer only.")
        if isinstance(value, Part):
            value = value.canvas()
        if not isinstance(value, Canvas):
            return _run(self.transform, value, params)
        spec = spec_of(value)
        if self.crops:
            value.require(self.box_needed(spec, params))
            return _run(self.transform, value.value, params)
        return Canvas(_run(self.transform, value.value, params), self._box_after(value.box, spec, params))

    def _box_after(self, box: Box, spec: Spec, params: Params) -> Box:
        """Return the box of the output that is valid if only a given box of the input is."""
        if isinstance(self.geometry, Resize):
            return self.geometry.box_after(box, _as_image(spec))
        # A flip is its own inverse.
        after = self.box_before(box, spec, params)
        assert after is not None
        return after


def _as_image(spec: Spec) -> Spec:
    if spec.kind is Kind.IMAGE:
        return spec
    if len(spec.shape) != 3:
        raise OpError(f"expected a tensor of (channels, height, width), got {spec}.")
    channels, height, width = spec.shape
    return image(height, width, channels)


def _run(transform: Callable[[Any], Any], value: Value, params: Params) -> Value:
    """Run torchvision's transform with our parameters instead of its own.

    v2 separates parameters from work (`make_params`, `transform`); in v1 the work is a function.
    """
    name = type(transform).__name__
    if name not in _WITH_PARAMS:
        return transform(value)
    in_v1, in_v2 = _WITH_PARAMS[name]
    if type(transform).__module__.startswith("torchvision.transforms.v2"):
        return in_v2(transform, value, params)
    return in_v1(sys.modules["torchvision.transforms.functional"], transform, value, params)


def _crop_v2(t: Any, value: Value, at: tuple[int, int]) -> Value:
    height, width = t.size
    box = {"top": at[0], "left": at[1], "height": height, "width": width}
    whole = tuple(value.shape[-2:]) == (height, width)  # torchvision then returns the tensor unchanged
    return t.transform(value, {"needs_crop": not whole, "needs_pad": False, "padding": [0, 0, 0, 0], **box})


def _resized_crop_v2(t: Any, value: Value, box: Box) -> Value:
    return t.transform(value, dict(zip(("top", "left", "height", "width"), box, strict=True)))


def _flip_v2(t: Any, value: Value, is_flipped: bool) -> Value:
    return t.transform(value, {}) if is_flipped else value


# By class name: how to run the transform in v1 and in v2.
_WITH_PARAMS: dict[str, tuple[Callable[[Any, Any, Value, Params], Value], Callable[[Any, Value, Params], Value]]] = {
    "RandomResizedCrop": (
        lambda f, t, value, box: f.resized_crop(value, *box, t.size, t.interpolation, antialias=t.antialias),
        _resized_crop_v2,
    ),
    "RandomCrop": (lambda f, t, value, at: f.crop(value, *at, *t.size), _crop_v2),
    "RandomHorizontalFlip": (lambda f, _, value, flipped: f.hflip(value) if flipped else value, _flip_v2),
    "RandomVerticalFlip": (lambda f, _, value, flipped: f.vflip(value) if flipped else value, _flip_v2),
}
