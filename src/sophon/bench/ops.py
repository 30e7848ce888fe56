"""`sophon bench ops`: the cost of each op and codec on one core, compared with torchvision for the same work.

Both sides get the same pictures and the same parameters: sophon draws them; torchvision draws its own, discards them
and applies sophon's. Otherwise one side might be lucky with smaller crops.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from PIL import Image

from sophon.bench.harness import OnStep, nothing, one_torch_thread, race_ms
from sophon.bench.pictures.samples import Samples
from sophon.bench.torchvision_import import import_torchvision
from sophon.codec import codec_named
from sophon.codec.codec import AheadCodec, Codec
from sophon.codec.table import offered
from sophon.pipeline import Key, Op, Pipeline, Rng, Value, ops, spec_of

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = Pipeline(
    [ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor(), ops.Normalize(MEAN, STD)]
)
# Further ops of other recipes, each timed on a typical input.
_ON_FILE_SIZE = (ops.Resize(256), ops.CenterCrop(224), ops.RandomCrop(224, 4, pad_if_needed=True))
_ON_CROP = (
    ops.RandomVerticalFlip(),
    ops.Pad(4),
    ops.ColorJitter(0.4, 0.4, 0.4, 0.1),
    ops.Grayscale(3),
    ops.RandomGrayscale(0.2),
    ops.GaussianBlur(9),
    ops.RandomRotation(30),
    ops.RandAugment(),
    ops.TrivialAugmentWide(),
    ops.PILToTensor(),
)
_ON_TENSOR = (ops.RandomErasing(1.0),)
_SEED = 0


@dataclass(frozen=True)
class _Item:
    """One sample with its input and parameters for the op that is timed."""

    sample: int
    value: Value

    @cached_property
    def key(self) -> Key:
        """The key for the pipeline, prepared once per sample."""
        return Key(_SEED, 0, self.sample)


Reference = Callable[[Value, Any], Value]


def bench_ops(samples: Samples, seconds: float, on_step: OnStep | None = None) -> dict[str, Any]:
    """Time every op, the whole ImageNet recipe and every codec.

    Args:
        samples: Files to run on.
        seconds: Time for the whole measurement.
        on_step: Called with the name of the next item, its number and the number of items.

    Returns:
        ``{"ops": {name: {"ours_ms", "torchvision_ms"}}, "recipe": …, "codecs": {name: {"encode_ms", …}}, …}``
    """
    torchvision = import_torchvision()
    references = {} if torchvision is None else _references(torchvision)
    stages = _stages(samples)
    steps: list[tuple[str, Op, list[_Item]]] = [
        *((op.name(), op, stages[k]) for k, op in enumerate(RECIPE.ops)),
        *((op.name(), op, stages[1]) for op in _ON_FILE_SIZE),
        *((op.name(), op, stages[3]) for op in _ON_CROP),
        *((op.name(), op, stages[5]) for op in _ON_TENSOR),
    ]
    # Codecs for cropped pictures; `window` works on files.
    codecs = [name for name in offered() if _takes_pictures(codec_named(name))]
    names = [*(name for name, _, _ in steps), "recipe", *codecs]
    report = on_step or nothing
    slice_s = seconds / (len(names) + 3)
    result: dict[str, Any] = {"data": samples.name, "mean_file_bytes": samples.mean_bytes, "ops": {}, "codecs": {}}
    with one_torch_thread(_torch(torchvision)):
        for number, (name, op, items) in enumerate(steps):
            report(name, number, len(names))
            result["ops"][name] = _race_op(op, items, references.get(name), slice_s)
        report("recipe", len(steps), len(names))
        # The most important figure gets four slices of the time.
        result["recipe"] = _race_recipe(stages[0], references, 4 * slice_s)
        for number, name in enumerate(codecs, len(steps) + 1):
            report(name, number, len(names))
            result["codecs"][name] = _time_codec(name, stages[3], slice_s)
    return result


def _torch(torchvision: Any) -> Any:
    if torchvision is None:
        return None
    import torch

    return torch


def _stages(samples: Samples) -> list[list[_Item]]:
    """Return the inputs of every op of the recipe, followed by its results."""
    stages: list[list[_Item]] = [[_Item(i, data) for i, data in enumerate(samples.files)]]
    for k in range(len(RECIPE)):
        stages.append([_Item(i.sample, RECIPE.run(i.value, i.key, k, k + 1)) for i in stages[-1]])
    return stages


def _draw(op: Op, item: _Item, position: int = 1) -> Any:
    return op.draw(Rng(item.key, position), spec_of(item.value)) if op.random else None


def _race_op(op: Op, items: list[_Item], reference: Reference | None, seconds: float) -> dict[str, float | None]:
    contestants: dict[str, Callable[[_Item], object]] = {"ours": lambda i: op.apply(i.value, _draw(op, i))}
    if reference is not None:
        params = {item.sample: _draw(op, item) for item in items}
        contestants["torchvision"] = lambda i: reference(i.value, params[i.sample])
    times = race_ms(contestants, items, seconds)
    return {"ours_ms": times["ours"], "torchvision_ms": times.get("torchvision")}


def _race_recipe(items: list[_Item], references: dict[str, Reference], seconds: float) -> dict[str, float | None]:
    contestants: dict[str, Callable[[_Item], object]] = {
        "ours": lambda i: RECIPE.run(i.value, i.key),
    }
    if references:
        chain = [references[op.name()] for op in RECIPE.ops]
        drawn = {item.sample: _drawn_along(item) for item in items}

        def theirs(item: _Item) -> Value:
            value = item.value
            for step, params in zip(chain, drawn[item.sample], strict=True):
                value = step(value, params)
            return value

        for item in items[:4]:  # a reference that does different work would measure nothing
            expected = RECIPE.run(item.value, item.key)
            assert expected.tobytes() == theirs(item).numpy().tobytes()
        contestants["torchvision"] = theirs
    times = race_ms(contestants, items, seconds)
    return {"ours_ms": times["ours"], "torchvision_ms": times.get("torchvision")}


def _drawn_along(item: _Item) -> list[Any]:
    key, value, drawn = item.key, item.value, []
    for k, op in enumerate(RECIPE.ops):
        drawn.append(op.draw(Rng(key, k), spec_of(value)) if op.random else None)
        value = RECIPE.run(value, key, k, k + 1)
    return drawn


def _takes_pictures(codec: Codec) -> bool:
    return not isinstance(codec, AheadCodec) and codec.fits(RECIPE.specs[3])


def _time_codec(name: str, items: list[_Item], seconds: float) -> dict[str, float | str | bool]:
    codec = codec_named(name)
    spec = RECIPE.specs[3]
    payloads = {item.sample: codec.encode(item.value) for item in items}
    contestants: dict[str, Callable[[_Item], object]] = {
        "encode": lambda i: codec.encode(i.value),
        "decode": lambda i: codec.decode(payloads[i.sample], spec),
    }
    times = race_ms(contestants, items, seconds)
    return {
        "exact": codec.exact,
        "encode_ms": times["encode"],
        "decode_ms": times["decode"],
        "payload_bytes": sum(map(len, payloads.values())) / len(payloads),
    }


def _references(torchvision: Any) -> dict[str, Reference]:
    """Return torchvision's equivalent of each op, with its own draw if it is random, but our parameters."""
    import torch

    transforms, f = torchvision.transforms, torchvision.transforms.functional
    rrc, jitter = transforms.RandomResizedCrop(224), transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
    ranges = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue]
    adjust = (f.adjust_brightness, f.adjust_contrast, f.adjust_saturation, f.adjust_hue)

    def random_resized_crop(picture: Image.Image, box: Any) -> Any:
        rrc.get_params(picture, rrc.scale, rrc.ratio)
        return f.resized_crop(picture, *box, rrc.size, rrc.interpolation, antialias=rrc.antialias)

    def by_chance(apply: Callable[[Any], Any]) -> Reference:
        def run(picture: Image.Image, chosen: bool) -> Any:
            _ = bool(torch.rand(1) < 0.5)  # torchvision's draw and comparison, for their cost; our choice is used
            return apply(picture) if chosen else picture

        return run

    def color_jitter(picture: Image.Image, chosen: Any) -> Any:
        jitter.get_params(*ranges)
        for which, factor in chosen:
            picture = adjust[which](picture, factor)
        return picture

    def augment(picture: Image.Image, chosen: Any) -> Any:
        for name, magnitude in chosen:
            picture = torchvision.transforms.autoaugment._apply_op(
                picture, name, magnitude, interpolation=transforms.InterpolationMode.NEAREST, fill=None
            )
        return picture

    def erase(tensor: Any, patch: Any) -> Any:
        return f.erase(torch.from_numpy(tensor), *patch[:4], torch.zeros(1, 1, 1)) if patch else tensor

    def normalize(tensor: Any, _: Any) -> Any:
        return f.normalize(tensor if isinstance(tensor, torch.Tensor) else torch.from_numpy(tensor), MEAN, STD)

    return {
        "Decode": lambda data, _: Image.open(io.BytesIO(data)).convert("RGB"),
        "RandomResizedCrop": random_resized_crop,
        "RandomHorizontalFlip": by_chance(f.hflip),
        "RandomVerticalFlip": by_chance(f.vflip),
        "ToTensor": lambda picture, _: f.to_tensor(picture),
        "Normalize": normalize,
        "Resize": lambda picture, _: f.resize(picture, [256]),
        "CenterCrop": lambda picture, _: f.center_crop(picture, [224, 224]),
        "Pad": lambda picture, _: f.pad(picture, 4),
        "ColorJitter": color_jitter,
        "Grayscale": lambda picture, _: f.rgb_to_grayscale(picture, 3),
        "RandomGrayscale": by_chance(lambda picture: f.rgb_to_grayscale(picture, 3)),
        "GaussianBlur": lambda picture, sigma: f.gaussian_blur(picture, [9, 9], [sigma, sigma]),
        "RandomRotation": f.rotate,
        "RandAugment": augment,
        "TrivialAugmentWide": augment,
        "PILToTensor": lambda picture, _: f.pil_to_tensor(picture),
        "RandomErasing": erase,
    }
