"""Classes that make views: those that do nothing else are taken apart, all others are run as they are."""

import random

import pytest

import sophon
from sophon.errors import ConfigError
from sophon.pipeline import Call, Key, Pipeline, ops
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import torch  # noqa: E402
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


class DataAugmentationDINOv2:
    """DINOv2's: geometry and colours are transforms of their own, and the result is a dict."""

    def __init__(self, local_crops_number):
        self.local_crops_number = local_crops_number
        self.geometric_augmentation_global = transforms.RandomResizedCrop(24)
        self.geometric_augmentation_local = transforms.RandomResizedCrop(12)
        self.global_transfo1 = self.global_transfo2 = self.local_transfo = v2.Compose(
            [v2.ColorJitter(0.4), transforms.ToTensor()]
        )

    def __call__(self, image):
        output = {}
        im1_base = self.geometric_augmentation_global(image)
        global_crop_1 = self.global_transfo1(im1_base)
        im2_base = self.geometric_augmentation_global(image)
        global_crop_2 = self.global_transfo2(im2_base)
        output["global_crops"] = [global_crop_1, global_crop_2]
        output["global_crops_teacher"] = [global_crop_1, global_crop_2]
        local_crops = [
            self.local_transfo(self.geometric_augmentation_local(image)) for _ in range(self.local_crops_number)
        ]
        output["local_crops"] = local_crops
        output["offsets"] = ()
        return output


class Named:
    """A dict of views, as several libraries have it."""

    def __init__(self):
        self.weak, self.strong = LARGE, SMALL

    def __call__(self, x):
        return {"weak": self.weak(x), "strong": (self.strong(x),)}


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


class Numbered(_Holder):
    def __call__(self, x):
        return {1: self.t(x), 2: self.t(x)}


class Sharing(_Holder):
    def __call__(self, x):
        base = self.t(x)
        return [self.t(base), self.t(base)]


class WithItsBase(_Holder):
    def __call__(self, x):
        base = self.t(x)
        return [base, self.t(base)]


class Dropping(_Holder):
    def __call__(self, x):
        self.t(x)
        return [self.t(x)]


class Remembering(_Holder):
    def __call__(self, x):
        view = self.t(x)
        self.seen.append(1)
        return [view, self.t(x)]


class Exchanging(_Holder):
    def __call__(self, x):
        view = self.seen[0](x)
        self.seen[0] = self.t
        return [view]


class WithAName(_Holder):
    def __call__(self, x):
        return {"view": self.t(x), "name": "one"}


class Changing(_Holder):
    def __call__(self, x):
        return [self.t(x) * 2, self.t(x)]


class WithThePicture(_Holder):
    def __call__(self, x):
        return [x, self.t(x)]


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
    **{cls.__name__: cls for cls in (ByChance, Counting, Looking, Numbered, Changing, Sharing, Dropping)},
    **{
        cls.__name__: cls
        for cls in (WithThePicture, WithItsBase, WithAName, ByAMethod, ByAProperty, Caring, Anything, Empty)
    },
    "remembering": lambda: Remembering(seen=[]),
    "exchanging": lambda: Exchanging(seen=[LARGE]),
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
    with pytest.raises(sophon.ConfigError, match="was changed after the loader was created"):
        next(iter(loader))


class OneTwice(_Holder):
    def __call__(self, x):
        view = self.t(x)
        return [view, view]


class Backwards(_Holder):
    def __call__(self, x):
        one, two = self.small(x), self.t(x)
        return [two, one]


class OfAView(_Holder):
    def __call__(self, x):
        return [self.t(self.crop(x))]


def shapes(sample):
    """Return the sizes of views in the places where users see them."""
    if isinstance(sample, dict):
        return {name: shapes(part) for name, part in sample.items()}
    return type(sample)(map(shapes, sample)) if type(sample) in (list, tuple) else sample.shape[-1]


ARRANGED = {
    "DINOv2": (
        lambda: DataAugmentationDINOv2(3),
        {"global_crops": [24, 24], "global_crops_teacher": [24, 24], "local_crops": [12] * 3, "offsets": ()},
    ),
    "named": (Named, {"weak": 24, "strong": (12,)}),
    "one twice": (OneTwice, [24, 24]),
    "backwards": (lambda: Backwards(small=SMALL), [24, 12]),
    "of a view": (lambda: OfAView(crop=transforms.CenterCrop(40)), [24]),
}


@pytest.mark.parametrize("name", ARRANGED)
def test_views_are_seen_in_the_places_where_a_class_puts_them(name, tmp_path):
    build, expected = ARRANGED[name]
    pipeline = Pipeline.from_torchvision(build())
    assert not any(op.is_own for op in pipeline.ops), pipeline.describe()
    assert "0:window" in map(str, sophon.legal_cuts(pipeline))
    assert Pipeline.from_json(pipeline.to_json()) == pipeline
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(FILE)
    own = build()(transforms.ToPILImage()(transforms.ToTensor()(scene(90, 70, seed=3))))
    assert shapes(own) == expected  # what the class itself gives
    assert shapes(sophon.RemoteDataset(tmp_path, build())[0]) == expected
    with sophon.DataLoader(tmp_path, build(), batch_size=3, seed=4) as loader:
        (batch,) = loader
    assert shapes(batch) == shapes(torch.utils.data.default_collate([own] * 3))


def test_a_dict_of_views_is_the_same_from_a_node_and_from_a_folder(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(FILE)
    found, more = [], {"batch_size": 3, "seed": 4}
    with sophon.LocalServer(tmp_path, 1, options=("--cache-dir", str(tmp_path / "cache"))) as server:
        for source, policy in ((tmp_path, None), (server.url, "0:window"), (server.url, "2:webp")):
            with sophon.DataLoader(source, DataAugmentationDINOv2(2), policy=policy, **more) as loader:
                found += loader
    for other in found[1:]:
        same = torch.utils._pytree.tree_map(torch.equal, found[0], other)
        assert all(torch.utils._pytree.tree_flatten(same)[0])


def test_the_second_place_of_a_view_holds_that_view(tmp_path):
    (tmp_path / "a.jpg").write_bytes(FILE)
    sample = sophon.RemoteDataset(tmp_path, DataAugmentationDINOv2(1))[0]
    for crop, again in zip(sample["global_crops"], sample["global_crops_teacher"], strict=True):
        assert torch.equal(crop, again)
    assert not torch.equal(*sample["global_crops"])


@pytest.mark.parametrize(
    "container",
    ["set", "", "[0]", "[0, 2]", "[0, 1", '{"dict": [[1, 0], ["a", 1]]}', '{"tuple": 3}', "[[[[[[[0, 1]]]]]]]", 7],
)
def test_an_arrangement_that_is_none_of_these_views_is_refused(container):
    with pytest.raises(ConfigError, match=r"Views.container: expected"):
        ops.Views([[ops.CenterCrop(4)], [ops.CenterCrop(5)]], container)
