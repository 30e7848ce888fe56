"""Every transform of torchvision's v2 over picture, mask, boxes, keypoints and labels: torchvision's own samples."""

import enum
import inspect

import PIL.Image
import pytest

from sophon.codec.cut import RAW, legal_cuts
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key
from tests.support.joint_table import NOT_CHECKED, REFUSES_TARGETS, SETTINGS
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.torchvision_import import import_torchvision
from tests.support.transform_table import ROWS

import_torchvision()
import torch  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from tests.support.joint_oracle import SAMPLE, Ours, differences, raw_sample, seeded, theirs  # noqa: E402

TABLE = {row.name: row for row in ROWS}
FORMATS = ("xyxy", "xywh", "cxcywh")
LABELLED = ("image", {"labels": "labels", "n": "number"})
SHAPES = {
    "usual": SAMPLE,
    "flat": {"image": "image", **SAMPLE[1]},
    "picture last": {**SAMPLE[1], "image": "image"},
    "labelled": LABELLED,
    "labelled, picture last": (LABELLED[1], "image"),
}
CODECS = ("raw", "window", "webp")  # others that give the same bits are compared in test_joint_transforms
TO_FLOAT = v2.ToDtype(torch.float32, scale=True)


def same(value):
    return value


def turned(value):
    """Return something else for a picture and for a tensor."""
    return PIL.Image.eval(value, lambda x: 255 - x) if isinstance(value, PIL.Image.Image) else value.flip(-1) + 1


def labels_of(sample):
    """Find the labels in any of SHAPES."""
    for part in sample if isinstance(sample, tuple) else [sample]:
        if isinstance(part, dict):
            return part["labels"]
    raise AssertionError


PLACES = {
    "picture": [],
    "image": [v2.ToImage()],
    "float": [v2.ToImage(), TO_FLOAT],
    "pure": [v2.PILToTensor()],
    "unknown": [v2.Lambda(same)],
    "resized": [v2.Resize((31, 41))],
    "pure float": [v2.ToImage(), TO_FLOAT, v2.ToPureTensor()],
}
FOLLOWED = {
    "nothing": [],
    "crop": [v2.RandomCrop((9, 8))],
    "ending": [v2.ToImage(), TO_FLOAT, v2.ToPureTensor()],
}


def _classes():
    for name, value in vars(v2).items():
        is_class = inspect.isclass(value) and not name.startswith("_")
        if is_class and not issubclass(value, enum.Enum) and value is not v2.Transform:  # the base of all
            yield name


def _settings(name):
    """Return settings of a class: those about targets first, then such as leave something to chance."""
    of_pictures = sorted(TABLE[name].settings("v2"), key=lambda setting: ("drawn", "own", "fixed").index(setting[1]))
    return list(dict.fromkeys([*SETTINGS.get(name, ()), *(text for text, _ in of_pictures)]))


def _transform(name, setting, size):
    modes = {mode.name: mode for mode in v2.InterpolationMode}
    own = {"same": same, "negative": turned, "turned": turned, "labels_of": labels_of}
    names = {"t": v2, "torch": torch, "PIL": PIL, "tv_tensors": tv_tensors, "values": 3 * size[0] * size[1]}
    return eval(f"t.{name}({setting})", names | own | modes)


def _raw(name, objects=4, form="xyxy", seed=1):
    return raw_sample(*(TABLE[name].size or (33, 26)), objects, form, seed)


def _expected(recipe, raw, key, shape):
    """Return torchvision's sample, or the exception by which it refuses it."""
    try:
        return theirs(recipe, raw, key, shape)
    except (ConfigError, OpError):
        pass  # our step is refused, or cannot even draw: does torchvision refuse it too?
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever torchvision raises
        return error
    try:
        # One that is applied by chance refuses some samples only, and we may refuse it at once.
        found = [seeded(recipe, raw.theirs(shape), seed) for seed in range(16)]
    except Exception as error:  # noqa: BLE001 - whatever torchvision raises
        return error
    return found[0]


def _compare(parts, raw, shape, epochs=(0,)):
    """Return how often torchvision gave a sample, and in words where ours differ at any cut."""
    recipe, given, report = v2.Compose(parts), 0, []
    for epoch in epochs:
        key = Key(3, epoch, 11)
        expected = _expected(recipe, raw, key, shape)
        try:
            ours = Ours(recipe, raw, shape)
            found = {cut: _finished(ours, raw, key, cut) for cut in legal_cuts(ours.pipeline, CODECS)}
        except ConfigError as error:
            found = {"translation": error}
        if isinstance(expected, Exception):
            report += [f"{cut}: torchvision raises {expected!r}" for cut, one in found.items() if not _refused(one)]
            continue
        given += 1
        for cut, one in found.items():
            told = [f"ours raises {one}"] if _refused(one) else differences(one, expected)
            report += [f"{cut}, epoch {epoch}: {text}" for text in told]
    return given, [f"{parts}, {shape}: {text}" for text in report]


def _finished(ours, raw, key, cut):
    try:
        return ours.finished(raw, key, cut)
    except OpError as error:
        if cut == RAW or "needs the whole picture" not in str(error):
            return error
        return _finished(ours, raw, key, RAW)  # a node then sends the file


def _refused(found):
    return isinstance(found, ConfigError | OpError)


def _check(cases):
    """Fail with all differences; return how often torchvision gave a sample."""
    found = [_compare(*case) for case in cases]
    report = [text for _, texts in found for text in texts[:2]]
    if report:
        pytest.fail("\n".join(report[:25]), pytrace=False)
    return sum(given for given, _ in found)


EVERY = [name for name in _classes() if name in TABLE and name not in NOT_CHECKED]


def test_every_class_of_torchvision_is_checked_or_has_a_reason():
    missing = set(_classes()) - set(TABLE)
    assert not missing, f"say in tests/support how {sorted(missing)} is tried: transform_table, joint_table"
    gone = (SETTINGS.keys() | REFUSES_TARGETS | NOT_CHECKED.keys()) - set(_classes())
    assert not gone, f"torchvision has no {sorted(gone)}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.matrix(every=2)
def test_samples_are_torchvisions(name):
    raw = _raw(name, form=FORMATS[len(name) % 3])
    transform = _transform(name, _settings(name)[0], (raw.width, raw.height))
    shape = LABELLED if name in REFUSES_TARGETS else SAMPLE
    given = _check([([*PLACES[place], transform], raw, shape) for place in ("picture", "float")])
    assert given, f"torchvision refuses {name} everywhere: say why in NOT_CHECKED"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ToDtype", "RandomHorizontalFlip", "Normalize"])
def test_a_picture_that_is_a_plain_tensor_after_others_is_what_torchvision_takes_it_for(name):
    """Of several plain tensors torchvision takes the first for the picture."""
    raw = _raw(name)
    transform = _transform(name, TABLE[name].settings("v2")[0][0], (raw.width, raw.height))
    recipes = [[*PLACES[place], transform, *FOLLOWED["crop"]] for place in ("pure", "pure float")]
    _check([(recipe, raw, SHAPES[shape]) for recipe in recipes for shape in SHAPES if "last" in shape])


@pytest.mark.parametrize("before", [[v2.ToPureTensor()], [*PLACES["pure float"]]], ids=["picture", "tensor"])
def test_masks_that_are_plain_tensors_are_not_cut(before):
    """torchvision does not know them any more; a node must not cut them down with the picture either."""
    _check([([*before, v2.RandomCrop((9, 8))], _raw("RandomCrop"), SAMPLE)])


def test_sizes_that_differ_after_a_rotation_are_refused_as_torchvision_does():
    recipe = [v2.RandomRotation((30, 30), expand=True), v2.RandomCrop((9, 8))]
    assert not _check([(recipe, _raw("RandomCrop", objects=0), SAMPLE)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*NOT_CHECKED, *sorted(REFUSES_TARGETS)])
def test_what_torchvision_refuses_is_refused(name):
    raw = _raw(name)
    transform = _transform(name, _settings(name)[0], (raw.width, raw.height))
    shapes = [SAMPLE] if name in REFUSES_TARGETS else SHAPES.values()
    assert not _check([([*PLACES[place], transform], raw, shape) for place in ("picture", "float") for shape in shapes])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", EVERY)
def test_samples_are_torchvisions_for_every_setting_place_and_shape(name, place):
    raws = [_raw(name, 4, form, seed) for seed, form in enumerate(FORMATS)] + [_raw(name, 0)]
    size = raws[0].width, raws[0].height
    cases, shapes = [], list(SHAPES.values())
    for at, setting in enumerate(_settings(name)):
        for turn, after in enumerate(FOLLOWED.values(), at):
            parts = [*PLACES[place], _transform(name, setting, size), *after]
            cases.append((parts, raws[turn % 4], LABELLED if name in REFUSES_TARGETS else SAMPLE, (turn,)))
            cases.append((parts, raws[(turn + 1) % 4], shapes[turn % len(shapes)]))
    _check(cases)
