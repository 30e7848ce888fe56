"""Transforms of torchvision put together at random, with settings that leave nothing to chance: torchvision's bits.

`test_every_transform.py` looks at each transform at each place; this one at what a transform leaves to the next.
Whatever torchvision accepts has its bits, whole and at every cut, and what it refuses is refused.
"""

import io
import random
import warnings

import numpy as np
import PIL
import pytest
from PIL import Image

from sophon.codec import finish_payload, legal_cuts, make_payload
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline
from sophon.pipeline.probe import picture
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision
from tests.support.transform_table import ROWS

import_torchvision()
import torch  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

LIBRARIES = {"v1": v1, "v2": v2}
NAMES = {"torch": torch, "tv_tensors": tv_tensors, "PIL": PIL, **{mode.name: mode for mode in v1.InterpolationMode}}
# Own code, several results, sizes of one picture only, and a box whose place is drawn on most pictures.
LEFT_OUT = ("Lambda", "Compose", "FiveCrop", "TenCrop", "LinearTransformation", "JPEG", "RandomResizedCrop")
SETTINGS = [
    (library, row.name, text)
    for library, module in LIBRARIES.items()
    for row in ROWS
    if hasattr(module, row.name) and row.name not in LEFT_OUT
    for text, sort in row.settings(library)
    if sort == "fixed"
]
CONVERSIONS = [("v1", "PILToTensor", ""), ("v1", "ToTensor", ""), ("v2", "PILToTensor", ""), ("v2", "ToImage", "")]
FILES = [
    picture(),
    encode(scene(90, 70), "jpeg 4:2:0"),
    encode(scene(61, 97, 4), "jpeg 4:4:4"),
    encode(scene(64, 64), "png"),
]


def _recipe(rng):
    steps = [rng.choice(SETTINGS) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.7:
        steps.insert(rng.randint(0, len(steps)), rng.choice(CONVERSIONS))
    made = [eval(f"t.{name}({text})", {**NAMES, "t": LIBRARIES[library]}) for library, name, text in steps]
    return steps, rng.choice([v1, v2]).Compose(made)


def _facts(value):
    """Return all that makes a value what it is."""
    if isinstance(value, Image.Image):
        return "picture", value.mode, value.size, value.tobytes()
    array = value.contiguous().numpy() if isinstance(value, torch.Tensor) else np.ascontiguousarray(value)
    return "tensor", array.dtype, array.shape, array.tobytes()


def _outcome(run):
    try:
        return _facts(run())
    except Exception as error:  # noqa: BLE001 - whatever torchvision raises
        return type(error)


def _theirs(recipe, data):
    """Return what torchvision gives, or the class of its error; None if that depends on chance after all."""
    found = set()
    for seed in range(4):
        torch.manual_seed(seed)
        random.seed(seed)
        found.add(_outcome(lambda: recipe(Image.open(io.BytesIO(data)).convert("RGB"))))
    return found.pop() if len(found) == 1 else None


def _check(seed):
    rng = random.Random(seed)
    (steps, recipe), data, key = _recipe(rng), rng.choice(FILES), Key(seed, 0, seed)
    theirs = _theirs(recipe, data)
    if theirs is None:
        return
    try:
        pipeline = Pipeline.from_torchvision(recipe)
        ours = _facts(pipeline.run(data, key))
    except (ConfigError, OpError):
        assert isinstance(theirs, type), f"{seed}: torchvision accepts {steps}"
        return
    assert ours == theirs, f"{seed}: {steps}\n{pipeline.describe()}"
    node = Pipeline.from_spec(pipeline.prefix(pipeline.reach).to_spec())
    for cut in legal_cuts(pipeline):
        try:
            payload = make_payload(node, data, key, cut)
        except OpError:
            continue
        assert _facts(finish_payload(pipeline, payload, key, cut)) == theirs, f"{seed}: {cut} of {steps}"


def _check_all(seeds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision warns of what it deprecates
        for seed in seeds:
            _check(seed)


def test_random_recipes_have_torchvisions_bits():
    _check_all(range(7, 67))  # 6 is a blur so wide that it takes as long as a hundred others


@pytest.mark.slow
@pytest.mark.parametrize("thousand", [1, 2, 3, 4])
def test_thousands_of_random_recipes_have_torchvisions_bits(thousand):
    _check_all(range(1000 * thousand, 1000 * (thousand + 1)))
