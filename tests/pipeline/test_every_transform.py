"""Every transform that torchvision has, at every place where it may stand: translated or not, same bits."""

import enum
import inspect
import io
import itertools
import warnings
from dataclasses import dataclass, field
from functools import cache

import PIL.Image
import pytest

from sophon.errors import ConfigError, OpError
from sophon.pipeline import Call, Key, Pipeline, probe
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision
from tests.support.transform_table import PLACES, ROWS

tv = import_torchvision()
import torch  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from tests.support import transform_oracle as oracle  # noqa: E402

LIBRARIES = {"v1": v1, "v2": v2}
TABLE = {row.name: row for row in ROWS}
USUAL_SIZE = (33, 26)
INTERPOLATIONS = {mode.name: mode for mode in v1.InterpolationMode}


def same(value):
    return value


def negative(value):
    """Return something else for a picture and for a tensor of any dtype."""
    if isinstance(value, PIL.Image.Image):
        return PIL.Image.eval(value, lambda x: 255 - x)
    return value.flip(-1) + 1


def _classes(library):
    """Return the names of all classes of transforms; what is no class of transforms are names of settings."""
    for name, value in vars(LIBRARIES[library]).items():
        is_class = inspect.isclass(value) and not name.startswith("_")
        if is_class and not issubclass(value, enum.Enum) and value is not v2.Transform:  # the base of all
            yield name


def _transform(library, name, setting, size):
    names = {"t": LIBRARIES[library], "torch": torch, "PIL": PIL, "tv_tensors": tv_tensors, **INTERPOLATIONS}
    names |= {"same": same, "negative": negative, "values": 3 * size[0] * size[1]}
    return eval(f"t.{name}({setting})", names)


def _before(library, place):
    """Return what stands before a transform at a place."""
    to_float = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return {
        "picture": [],
        "uint8": [v1.PILToTensor()] if library == "v1" else [v2.ToImage()],
        "float": [v1.ToTensor()] if library == "v1" else to_float,
        "unknown": [LIBRARIES[library].Lambda(same)],
        "unknown uint8": [v1.PILToTensor(), same] if library == "v1" else [v2.ToImage(), same],
        # The slow ones: the same kinds of value, but made in other ways.
        "uint8 of the other": [v2.ToImage()] if library == "v1" else [v1.PILToTensor()],
        "float of the other": to_float if library == "v1" else [v1.ToTensor()],
        "unknown float": [v1.ToTensor(), same],
        "gray": [v1.Grayscale(1)],
        "gray uint8": [v1.Grayscale(1), v2.ToImage()],
        "gray float": [v1.Grayscale(1), v1.ToTensor()],
        "flipped": [v1.RandomHorizontalFlip(1.0)],
        "pure": [v2.ToImage(), v2.ToPureTensor()],
        "cropped": [v1.CenterCrop((19, 14))],
    }[place]


def _after(library, facts):
    """Return the conversion to floats that may follow a result; none where it has floats already, or is a list."""
    if isinstance(facts, list):
        return []
    if facts[0] == "picture":
        return [v1.ToTensor()] if library == "v1" else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    if facts[:2] == ("tensor", "uint8"):
        return [v1.ConvertImageDtype(torch.float32)] if library == "v1" else [v2.ToDtype(torch.float32, scale=True)]
    return []


@dataclass(frozen=True)
class _Case:
    """Some transforms in a row, torchvision's and ours.

    Args:
        parts: The transforms.
        pipeline: What they are translated into, unless that is refused.
        refusal: By which exception.
        steps: What each transform became.
        known: What torchvision gave already.
    """

    parts: list
    pipeline: Pipeline | None
    refusal: Exception | None
    steps: list
    known: dict = field(default_factory=dict)

    @classmethod
    def of(cls, parts):
        leaves = [leaf for part in parts for leaf in oracle.flat(part)]
        try:
            return cls(parts, Pipeline.from_torchvision(v1.Compose(parts)), None, oracle.steps_of(leaves))
        except Exception as error:  # noqa: BLE001 - judged below
            return cls(parts, None, error, [])

    def theirs(self, data, key, chance):
        """Return what torchvision gives: facts, or the exception."""
        if (data, key) not in self.known:
            self.known[data, key] = self._theirs(data, key, chance)
        return self.known[data, key]

    def _theirs(self, data, key, chance):
        picture = PIL.Image.open(io.BytesIO(data)).convert("RGB")
        try:
            if self.pipeline is not None:
                return oracle.facts(oracle.run(picture, self.steps, key, chance))
        except (ConfigError, OpError):
            pass  # our step cannot even draw: does torchvision refuse it too?
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever torchvision raises
            return error
        try:
            # One that is applied by chance refuses some samples only, and we may refuse it at once.
            found = [oracle.facts(oracle.seeded(v1.Compose(self.parts), picture, seed)) for seed in range(16)]
        except Exception as error:  # noqa: BLE001 - whatever torchvision raises
            return error
        return found[0]

    def ours(self, data, key):
        """Return what the pipeline gives: facts, or the exception by which it refuses."""
        if self.pipeline is None:
            return self.refusal
        try:
            return oracle.facts(self.pipeline.run(data, key))
        except (ConfigError, OpError) as error:
            return error

    def difference(self, data, key, chance):
        """Return torchvision's facts or exception, and in words how ours differ from them."""
        theirs, ours = self.theirs(data, key, chance), self.ours(data, key)
        if self.refusal is not None and not isinstance(self.refusal, ConfigError):
            return theirs, f"ours raises, and not ConfigError: {self.refusal!r}"
        refused = [isinstance(side, Exception) for side in (ours, theirs)]
        if all(refused):
            return theirs, ""
        if refused[0]:
            return theirs, f"ours raises and torchvision does not: {ours}"
        if refused[1]:
            return theirs, f"torchvision raises and ours does not: {theirs!r}"
        return theirs, oracle.difference(ours, theirs)

    def word(self, count):
        """Return the table's word for what the transforms after the first few became."""
        steps = [step for _, _, steps in self.steps[count:] for step in steps]
        words = {"own" if isinstance(step, Call) else "region" if step.name() == "OnTensor" else "op" for step in steps}
        return "+".join(sorted(words)) or "nothing"


def _case(library, name, place, setting, size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's, about its transforms: the user gets them without us too
        return _Case.of([*_before(library, place), _transform(library, name, setting, size)])


_usual_case = cache(_case)  # two tests look at each


def _compare(library, name, place, files, keys, settings):
    """Fail with a list of every setting, file and key on which the two differ."""
    report = []
    for (setting, sort), (title, (size, data)) in itertools.product(settings, files.items()):
        make = _usual_case if files == _usual(name) else _case
        case = make(library, name, place, setting, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problems = _problems(library, case, data, keys if sort == "drawn" else keys[:1], sort == "drawn")
        if problems:
            report += [f"{name}({setting}) on {title}:", *(f"    {problem}" for problem in problems)]
    if report:
        pytest.fail("\n".join([f"{library}, {place}:", *report]), pytrace=False)


def _problems(library, case, data, keys, chance):
    """Return in words what is wrong with some transforms, followed by nothing and by a conversion to floats."""
    problems = []
    for key in keys:
        found, problem = case.difference(data, key, chance)
        if problem:
            problems.append(f"{key}: {problem}")
        elif key is keys[0] and not isinstance(found, Exception) and (after := _after(library, found)):
            _, problem = _Case.of(case.parts + after).difference(data, key, chance)
            if problem:
                problems.append(f"{key}, then {after}: {problem}")
    if problems and case.pipeline is not None:
        problems += case.pipeline.describe().splitlines()
    return problems


@cache
def _usual(name):
    size = TABLE[name].size or USUAL_SIZE
    return {f"{size[0]}×{size[1]}": (size, encode(scene(*size), "jpeg 4:4:4"))}


KEYS = [Key(5, epoch, 3) for epoch in range(3)]
EVERY = [(library, name) for library in LIBRARIES for name in _classes(library) if name in TABLE]


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_class_of_torchvision_has_a_row(library):
    missing = set(_classes(library)) - {row.name for row in ROWS if (row.v1 if library == "v1" else row.v2) is not None}
    assert not missing, f"say in tests/support/transform_table.py how {library} is tried with {sorted(missing)}"


def test_every_row_has_a_class_and_a_setting_for_it():
    for row in ROWS:
        for library, words in (("v1", row.v1), ("v2", row.v2)):
            assert (words is not None) == (row.name in _classes(library)), (row.name, library)
            assert words is None or (row.settings(library) and len(words.split()) == len(PLACES)), row


@pytest.mark.parametrize("place", [*PLACES, "unknown uint8"])
@pytest.mark.parametrize(("library", "name"), EVERY)
@pytest.mark.matrix(every=3)
def test_same_bits_as_torchvision(library, name, place):
    _compare(library, name, place, _usual(name), KEYS, TABLE[name].settings(library))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("library", "name"), EVERY)
def test_a_translation_gives_what_the_table_says(library, name, place):
    row = TABLE[name]
    ((size, data),) = _usual(name).values()
    wrong, refused = [], []
    for setting, sort in row.settings(library):
        case = _usual_case(library, name, place, setting, size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(case.theirs(data, KEYS[0], sort == "drawn"), Exception):
                refused.append(setting)
                continue
        expected = row.gives(library, place)
        if sort == "own":
            expected = "own/nothing" if "nothing" in expected else "own"
        word = "refused" if case.pipeline is None else case.word(len(_before(library, place)))
        if word not in expected.split("/"):
            wrong.append(f"{name}({setting}) gives {word}, expected {expected}")
    if len(refused) == len(row.settings(library)):
        expected = row.gives(library, place)
        assert "-" in expected.split("/"), (
            f"{library}, {place}: torchvision refuses every setting of {name}, expected {expected}"
        )
    if wrong:
        pytest.fail("\n".join([f"{library}, {place}:", *wrong]), pytrace=False)


FILES = {
    "the built-in picture": ((320, 240), probe.picture()),
    "1×1": ((1, 1), encode(scene(1, 1), "png")),
    "3×2": ((3, 2), encode(scene(3, 2), "png")),
    "17×40": ((17, 40), encode(scene(17, 40), "jpeg 4:2:0")),
    "gray 50×50": ((50, 50), encode(scene(50, 50), "jpeg gray")),
    "90×31": ((90, 31), encode(scene(90, 31), "png alpha")),
}
OTHER_PLACES = (
    "uint8 of the other",
    "float of the other",
    "unknown float",
    "gray",
    "gray uint8",
    "gray float",
    "flipped",
    "pure",
    "cropped",
)


@pytest.mark.slow
@pytest.mark.parametrize("place", [*PLACES, "unknown uint8", *OTHER_PLACES])
@pytest.mark.parametrize(("library", "name"), EVERY)
def test_same_bits_as_torchvision_on_pictures_of_many_sizes(library, name, place):
    files = FILES | _usual(name)
    if name == "LinearTransformation":  # its matrix has the square of the number of values
        files = {title: file for title, file in files.items() if file[0][0] < 10}
    # What leaves nothing to chance on the usual picture may well do so on a larger one.
    settings = [(text, "own" if sort == "own" else "drawn") for text, sort in TABLE[name].settings(library)]
    _compare(library, name, place, files, KEYS[:2], settings)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("library", "name"), EVERY)
def test_same_bits_as_torchvision_for_many_seeds(library, name, place):
    keys = [Key(seed, seed % 7, 2**40 + seed) for seed in range(40)]
    settings = [(text, "drawn") for text, sort in TABLE[name].settings(library) if sort != "fixed"]
    _compare(library, name, place, _usual(name), keys, settings)


INTERPOLATED = [
    (library, name)
    for library, name in EVERY
    if "interpolation" in inspect.signature(getattr(LIBRARIES[library], name)).parameters
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", INTERPOLATIONS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("library", "name"), INTERPOLATED)
def test_same_bits_as_torchvision_for_every_interpolation(library, name, place, mode):
    settings = [
        (", ".join(filter(None, (text, f"interpolation={mode}"))), "own" if sort == "own" else "drawn")
        for text, sort in TABLE[name].settings(library)
        if "interpolation" not in text
    ]
    files = _usual(name) | {"the built-in picture": FILES["the built-in picture"]}
    _compare(library, name, place, files, KEYS[:2], settings)
