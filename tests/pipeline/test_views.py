"""Views: several results of one picture. What torchvision makes of each is compared in tests/loader/test_recipes.py."""

import numpy as np
import pytest
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Kind, Pipeline, Rng, needed_box, ops
from sophon.pipeline.call import Call
from sophon.pipeline.probe import bits_of
from sophon.pipeline.spec import ViewSet, spec_of
from tests.support.pictures import encode, scene

FILE = encode(scene(90, 70, seed=3), "jpeg 4:2:0")
END = [ops.ToTensor(), ops.Normalize((0.5,), (0.5,))]
GLOBAL = [ops.RandomResizedCrop(24, scale=(0.4, 1.0)), ops.RandomHorizontalFlip(), ops.ColorJitter(0.4), *END]
LOCAL = [ops.RandomResizedCrop(12, scale=(0.05, 0.4)), ops.GaussianBlur(3), *END]


def _own(value):
    return value


def _views(*views, **told):
    return Pipeline([ops.Decode(), ops.Views(views, **told)])


def test_views_are_divided_where_a_cut_may_be_worth_it():
    pipeline = _views(GLOBAL, LOCAL)
    crops, colours, tensors = pipeline.ops[1:]
    assert crops.views == ((GLOBAL[0],), (LOCAL[0],))
    assert colours.views == (tuple(GLOBAL[1:3]), (LOCAL[1],))
    assert tensors.views == (tuple(END), tuple(END))
    assert [spec.kind for spec in pipeline.specs] == [Kind.ENCODED, Kind.IMAGE, Kind.VIEWS, Kind.VIEWS, Kind.VIEWS]
    assert str(pipeline.specs[2]) == "1 × image[24×24×3] uint8, 1 × image[12×12×3] uint8"
    assert pipeline.specs[2].size_bytes == 3 * (24 * 24 + 12 * 12)


def test_a_step_of_ones_own_ends_what_can_be_done_near_storage_in_its_view_and_in_the_others():
    pipeline = _views([*GLOBAL[:3], _own, *END], LOCAL)
    assert pipeline.max_cut == 4
    assert pipeline.first_call == 4
    assert pipeline.ops[3].views == ((), tuple(END))  # the other view has its tensor before
    assert [op.name() for op in pipeline.ops[4].views[0]] == ["Call", "ToTensor", "Normalize"]
    assert pipeline.ops[4].views[1] == ()
    made = pipeline.run(FILE, Key(1, 2, 3))
    assert [value.shape for value in made.values] == [(3, 24, 24), (3, 12, 12)]
    assert bits_of(made) == bits_of(_views(GLOBAL, LOCAL).run(FILE, Key(1, 2, 3)))  # which draws nothing


def test_dividing_once_more_changes_nothing_and_both_ends_agree_on_the_name():
    for pipeline in (_views(GLOBAL, LOCAL), _views(GLOBAL, [ops.CenterCrop(8)], []), _views([], container="tuple")):
        assert Pipeline(pipeline.ops) == pipeline
        assert Pipeline.from_json(pipeline.to_json()) == pipeline
        assert Pipeline.from_json(pipeline.to_json()).fingerprint == pipeline.fingerprint
        for stop in range(1, len(pipeline) + 1):
            assert pipeline.prefix(stop).ops == pipeline.ops[:stop]


def test_a_view_is_what_its_steps_alone_would_give_with_its_chances():
    pipeline = _views(GLOBAL, LOCAL, GLOBAL)
    key = Key(5, 1, 9)
    made = pipeline.run(FILE, key)
    for view, steps in enumerate((GLOBAL, LOCAL, GLOBAL)):
        value = ops.Decode().apply(FILE)
        for at, stage in enumerate(pipeline.ops[1:], 1):
            for step, op in enumerate(stage.views[view]):
                assert op in steps
                params = op.draw(Rng(key, at).inside(view, step), spec_of(value)) if op.random else None
                value = op.apply(value, params)
        assert bits_of(value) == bits_of(made.values[view])


def test_every_view_draws_for_itself_and_not_by_how_many_there_are():
    two, five = _views(*[GLOBAL] * 2), _views(*[GLOBAL] * 5)
    some = [two.run(FILE, Key(0, epoch, 0)) for epoch in range(4)]
    more = [five.run(FILE, Key(0, epoch, 0)) for epoch in range(4)]
    assert len({bits_of(value) for made in more for value in made.values}) == 4 * 5
    for made, other in zip(some, more, strict=True):
        assert bits_of(made) == bits_of(ViewSet(other.values[:2]))


def test_no_step_of_any_view_shares_its_random_words_with_another():
    words = {Rng(Key(3, 0, 0), at).word() for at in [*range(64), 1 << 32, (1 << 32) + 1]}
    count = len(words)
    for at in (0, 1, 63):
        for view in (0, 1, 63):
            for step in (0, 1, 63):
                words.add(Rng(Key(3, 0, 0), at).inside(view, step).word())
                count += 1
    assert len(words) == count


def test_one_box_holds_those_of_all_views():
    pipeline = _views(GLOBAL, LOCAL, [ops.RandomVerticalFlip(1.0), ops.RandomCrop(9), *END])
    whole = 0
    for sample in range(40):
        key = Key(1, 0, sample)
        top, left, height, width = needed_box(pipeline, key, 70, 90)
        whole += (height, width) == (70, 90)
        picture = ops.Decode().apply(FILE)
        dark = Image.new("RGB", picture.size)  # nothing outside of the box has a part in any view
        box = (left, top, left + width, top + height)
        dark.paste(picture.crop(box), box)
        assert bits_of(pipeline.run(dark, key, 1)) == bits_of(pipeline.run(picture, key, 1))
    assert whole < 40


def test_a_view_that_needs_all_of_the_picture_makes_the_others_need_it_too():
    pipeline = _views(LOCAL, [ops.Resize((8, 8)), *END])
    assert needed_box(pipeline, Key(0, 0, 0), 70, 90) is None


def test_views_come_in_a_list_or_a_tuple_to_whatever_follows():
    for container, kind in (("list", list), ("tuple", tuple)):
        seen = []
        steps = [ops.Decode(), ops.Views([[ops.CenterCrop(4)], [ops.CenterCrop(5)]], container)]
        Pipeline([*steps, lambda views, seen=seen: seen.append(views)]).run(FILE, Key(0, 0, 0))
        assert type(seen[0]) is kind
        assert [view.size for view in seen[0]] == [(4, 4), (5, 5)]


def test_views_of_a_tensor():
    pipeline = Pipeline([ops.Decode(), ops.Resize((8, 8)), ops.ToTensor(), ops.Views([END[1:], []])])
    normal, plain = pipeline.run(FILE, Key(0, 0, 0)).values
    np.testing.assert_array_equal(normal, (plain - np.float32(0.5)) / np.float32(0.5))


def test_an_error_names_the_view_and_its_step():
    def fail(picture):
        raise ValueError("no such colour")

    with pytest.raises(OpError, match=r"op 4 \(Views\): view 1, Call\(.*fail\): ValueError: no such colour"):
        _views(GLOBAL, [ops.CenterCrop(8), fail]).run(FILE, Key(0, 0, 0))
    with pytest.raises(OpError, match=r"op 1 \(Views\): view 0, RandomCrop: a crop of 400×400 does not fit"):
        _views([ops.RandomCrop(400)]).run(FILE, Key(0, 0, 0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.Views([]), "expected a list of views"),
        (lambda: ops.Views("ab"), "expected a list of views"),
        (lambda: ops.Views([ops.CenterCrop(3)] * 65), "expected at most 64 views, got 65"),
        (lambda: ops.Views([ops.CenterCrop]), "did you forget the parentheses"),
        (lambda: ops.Views([[ops.CenterCrop(3), None]]), "leave it out"),
        (lambda: ops.Views([[ops.Views([ops.CenterCrop(3)])]]), "expected no Views inside Views"),
        (lambda: ops.Views([ops.CenterCrop(3)], "set"), "expected .list., .tuple., or an arrangement"),
        (lambda: Pipeline([ops.Views([ops.CenterCrop(3)])]), r"begin the pipeline with Decode\(\)"),
        (lambda: _views([ops.CenterCrop(3), ops.Normalize((0.5,), (0.5,))]), "op 1: view 0: Normalize takes a tensor"),
        (lambda: Pipeline([ops.Decode(), ops.Views([[]]), ops.ToTensor()]), "takes an image, but the op before it"),
        (lambda: Pipeline([ops.Decode(), ops.Views([[]]), ops.Views([[], []])]), "a picture, or 2 views"),
        (lambda: ops.RandomApply((ops.Views([[]]),)).output(ops.Decode().output(spec_of(FILE))), "the same kind"),
    ],
)
def test_what_cannot_be_views_is_refused_when_it_is_built(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_callables_in_views_stay_on_the_trainer():
    assert isinstance(ops.Views([_own]).views[0][0], Call)
    assert not ops.Views([_own]).portable
    assert ops.Views([_own]).is_own
    assert ops.Views([GLOBAL]).portable
    assert not ops.Views([[ops.CenterCrop(3)]]).random
