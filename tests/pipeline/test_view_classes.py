"""Classes that make views: those that do nothing else are taken apart, all others are run as they are."""

import random

import pytest

import sophon
from sophon.pipeline import Call, Key, Pipeline, ops
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms  # noqa: E402 - as people import it, beside attributes of that name
from torchvision.transforms import v2  # noqa: E402

FILE = encode(scene(90, 70, seed=3), "jpeg 4:2:0")
LARGE = transforms.Compose([transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor()])
SMALL = v2.Compose([v2.RandomResizedCrop(12), transforms.ToTensor()])


class TwoCropsTransform:
    """MoCo's."""

    def __init__(self, base_transform):
        self.base_transform = base_transform

    def __call__(self, x):
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class ContrastiveLearningViewGenerator:
    """SimCLR's in PyTorch."""

    def __init__(self, base_transform, n_views=2):
        self.base_transform = base_transform
        self.n_views = n_views

    def __call__(self, x):
        return [self.base_transform(x) for i in range(self.n_views)]


class TrainTransform:
    """VICReg's."""

    def __init__(self):
        self.transform = LARGE
        self.transform_prime = SMALL

    def __call__(self, sample):
        x1 = self.transform(sample)
        x2 = self.transform_prime(sample)
        return x1, x2


class DataAugmentationDINO:
    """DINO's, also iBOT's."""

    def __init__(self, local_crops_number):
        self.global_transfo1 = LARGE
        self.global_transfo2 = LARGE
        self.local_crops_number = local_crops_number
        self.local_transfo = SMALL

    def __call__(self, image):
        crops = []
        crops.append(self.global_transfo1(image))
        crops.append(self.global_transfo2(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local_transfo(image))
        return crops


class MultiCrop:
    """SwAV's."""

    def __init__(self, trans):
        self.trans = trans

    def __call__(self, image):
        multi_crops = list(map(lambda trans: trans(image), self.trans))  # noqa: C417 - SwAV's own lines
        return multi_crops  # noqa: RET504


class MultiViewTransform:
    """lightly's."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        return [transform(image) for transform in self.transforms]


KNOWN = {
    "MoCo": (lambda: TwoCropsTransform(LARGE), [24, 24], list),
    "SimCLR": (lambda: ContrastiveLearningViewGenerator(LARGE, 3), [24, 24, 24], list),
    "VICReg": (TrainTransform, [24, 12], tuple),
    "DINO": (lambda: DataAugmentationDINO(4), [24, 24, 12, 12, 12, 12], list),
    "SwAV": (lambda: MultiCrop([LARGE, SMALL, SMALL]), [24, 12, 12], list),
    "lightly": (lambda: MultiViewTransform((LARGE, SMALL)), [24, 12], list),
    "in a Compose": (lambda: transforms.Compose([TwoCropsTransform(SMALL)]), [12, 12], list),
    "after a crop": (lambda: transforms.Compose([v2.CenterCrop(60), TwoCropsTransform(SMALL)]), [12, 12], list),
    "op": (lambda: ops.Views([LARGE] * 2 + [SMALL] * 2), [24, 24, 12, 12], list),
    "op with lists": (lambda: ops.Views([[v2.RandomCrop(9), transforms.ToTensor()], SMALL], "tuple"), [9, 12], tuple),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_class_that_makes_views_and_does_nothing_else_becomes_views(name, tmp_path):
    build, sizes, container = KNOWN[name]
    pipeline = Pipeline.from_torchvision(build())
    assert not any(op.is_own for op in pipeline.ops), pipeline.describe()
    assert [view.shape[-1] for view in pipeline.run(FILE, Key(0, 0, 0)).values] == sizes
    assert "0:window" in map(str, sophon.legal_cuts(pipeline))
    (tmp_path / "a.jpg").write_bytes(FILE)
    sample = sophon.RemoteDataset(tmp_path, build())[0]
    assert type(sample) is container
    assert [type(view).__name__ for view in sample] == ["Tensor"] * len(sizes)


class _Holder:
    def __init__(self, **held):
        self.__dict__.update(t=LARGE, n=2, **held)


class ByChance(_Holder):
    def __call__(self, x):
        return [self.t(x)] * (1 if random.random() < 0.5 else 2)


class Counting(_Holder):
    def __call__(self, x):
        self.n += 1
        return [self.t(x), self.t(x)]


class Looking(_Holder):
    def __call__(self, x):
        return [self.t(x)] * (1 if x.width > 50 else 2)


class Named(_Holder):
    def __call__(self, x):
        return {"one": self.t(x), "two": self.t(x)}


class Changing(_Holder):
    def __call__(self, x):
        return [self.t(x) * 2, self.t(x)]


class OneTwice(_Holder):
    def __call__(self, x):
        view = self.t(x)
        return [view, view]


class Backwards(_Holder):
    def __call__(self, x):
        one, two = self.t(x), self.t(x)
        return [two, one]


class WithThePicture(_Holder):
    def __call__(self, x):
        return [x, self.t(x)]


class OfAView(_Holder):
    def __call__(self, x):
        return [self.t(self.t(x))]


class ByAMethod(_Holder):
    def views(self, x):
        return [self.t(x)] * random.randint(1, 2)

    def __call__(self, x):
        return self.views(x)


class ByAProperty(_Holder):
    @property
    def number(self):
        return random.randint(1, 3)

    def __call__(self, x):
        return [self.t(x) for _ in range(self.number)]


class Caring(_Holder):
    def __call__(self, x):
        try:
            return [self.t(x.rotate(90))]
        except Exception:  # noqa: BLE001 - as people write it
            return [self.t(x)]


class FromADict(_Holder):
    def __call__(self, x):
        return [self.table["t"](x)]


class Anything(_Holder):
    def __getattr__(self, name):
        return LARGE

    def __call__(self, x):
        return [self.t(x)]


class WithAnIterator(_Holder):
    def __call__(self, x):
        return [t(x) for t in self.turns]


def _closed(by):
    class Closed(_Holder):
        def __call__(self, x):
            return [self.t(x)] * by[0]

    return Closed()


class Empty(_Holder):
    def __call__(self, x):  # noqa: ARG002 - that is what is wrong with it
        return []


OTHERS = {
    **{cls.__name__: cls for cls in (ByChance, Counting, Looking, Named, Changing, OneTwice, Backwards)},
    **{cls.__name__: cls for cls in (WithThePicture, OfAView, ByAMethod, ByAProperty, Caring, Anything, Empty)},
    "dict": lambda: FromADict(table={"t": LARGE}),
    "iterator": lambda: WithAnIterator(turns=iter([LARGE] * 2)),
    "closure": lambda: _closed([2]),
    "function": lambda: lambda x: [LARGE(x), LARGE(x)],
    "before another step": lambda: transforms.Compose([TwoCropsTransform(LARGE), transforms.Lambda(len)]),
    "of views": lambda: TwoCropsTransform(TwoCropsTransform(LARGE)),
    "of own code": lambda: TwoCropsTransform(lambda x: x),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_may_do_anything_else_stays_the_users_own_step(name):
    recipe = OTHERS[name]()
    first = Pipeline.from_torchvision(recipe).ops[1]
    assert isinstance(first, Call)
    assert first.function is (recipe.transforms[0] if isinstance(recipe, transforms.Compose) else recipe)


def test_a_class_that_is_changed_after_the_loader_was_made_is_noticed(tmp_path):
    (tmp_path / "a.jpg").write_bytes(FILE)
    recipe = DataAugmentationDINO(2)
    loader = sophon.DataLoader(tmp_path, recipe)
    assert len(next(iter(loader))) == 4
    recipe.local_crops_number = 3
    with pytest.raises(sophon.ConfigError, match="was changed after the loader was made"):
        next(iter(loader))
