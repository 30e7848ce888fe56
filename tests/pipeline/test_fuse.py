"""Fusions: one pass, the same bits as one op after the other."""

import random

import numpy as np
import pytest
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Part, Pipeline, Rng, Trace, needed_box, ops, spec_of
from sophon.pipeline.fuse import fuse
from tests.support.pictures import encode, scene

MOVES = [
    lambda r: ops.RandomHorizontalFlip(r.choice([0.5, 1.0])),
    lambda r: ops.RandomVerticalFlip(r.choice([0.5, 1.0])),
    lambda r: ops.CenterCrop((r.randint(20, 60), r.randint(20, 60))),
    lambda r: ops.RandomCrop(r.randint(10, 50), pad_if_needed=True),
    lambda r: ops.RandomCrop(
        r.randint(10, 50), padding=r.choice([None, 3]), pad_if_needed=True, padding_mode="reflect"
    ),
    lambda r: ops.RandomResizedCrop(r.randint(10, 40)),
]


def _one_by_one(pipeline, value, key, start=0, stop=None):
    for position in range(start, len(pipeline) if stop is None else stop):
        op = pipeline.ops[position]
        params = op.draw(Rng(key, position), spec_of(value)) if op.random else None
        value = op.apply(value, params)
    return value


def _same(one, two):
    if isinstance(one, Part):
        assert (one.top, one.left, one.height, one.width) == (two.top, two.left, two.height, two.width)
        one, two = one.picture, two.picture
    return one.size == two.size and one.mode == two.mode and np.array_equal(np.asarray(one), np.asarray(two))


@pytest.mark.parametrize("seed", range(150))
@pytest.mark.matrix(every=4)
def test_a_run_of_crops_and_flips_gives_the_same_bits_in_one_pass(seed):
    r = random.Random(seed)
    pipeline = Pipeline([ops.Decode(), *(r.choice(MOVES)(r) for _ in range(r.randint(2, 6)))])
    picture = scene(r.randint(40, 90), r.randint(40, 90), seed)
    for epoch in range(4):
        key = Key(seed, epoch, 7)
        before = picture.tobytes()
        for start in range(1, len(pipeline)):
            for stop in range(start, len(pipeline) + 1):
                middle = _one_by_one(pipeline, picture, key, 1, start)
                done = pipeline.run(middle, key, start, stop)
                assert _same(done, _one_by_one(pipeline, middle, key, start, stop))
        assert picture.tobytes() == before


ENDINGS = [
    [ops.ToTensor(), ops.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
    [ops.ToTensor(), ops.Normalize((0.5,), (0.3,))],
    [ops.PILToTensor()],
]


@pytest.mark.parametrize("is_part", [False, True], ids=["picture", "part"])
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.matrix(every=4)
def test_crops_and_flips_and_the_tensor_that_is_made_of_them_give_the_same_bits_in_one_pass(seed, is_part):
    r = random.Random(seed)
    moves = [r.choice(MOVES)(r) for _ in range(r.randint(1, 4))]
    pipeline = Pipeline([ops.Decode(), *moves, *ENDINGS[seed % 3]])
    whole = scene(r.randint(60, 90), r.randint(60, 90), seed)
    for epoch in range(4):
        key = Key(seed, epoch, 7)
        expected = _one_by_one(pipeline, whole, key, 1)
        picture: Image.Image | Part = whole
        if is_part:  # just what the ops need of it
            box = needed_box(pipeline, key, whole.height, whole.width)
            if box is None:
                continue
            top, left, height, width = box
            picture = Part(whole.crop((left, top, left + width, top + height)), top, left, whole.height, whole.width)
        room = np.full((2, *expected.shape), 9, expected.dtype)
        trace = Trace(len(pipeline))
        for out in (None, room[1]):
            assert pipeline.run(picture, key, 1, out=out).tobytes() == expected.tobytes()
            assert pipeline.run(picture, key, 1, out=out, trace=trace).tobytes() == expected.tobytes()
        assert (room[0] == 9).all()


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_room_of_another_size_is_refused_and_not_resized_to(ending):
    pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(20), ops.RandomHorizontalFlip(), *ending])
    with pytest.raises(ConfigError, match="expected an output array"):
        pipeline.run(scene(60, 50, 1), Key(0, 0, 0), 1, out=np.empty((3, 19, 20), pipeline.specs[-1].dtype))


@pytest.mark.parametrize("epoch", range(8))
def test_flips_of_a_part_know_where_it_lies(epoch):
    pipeline = Pipeline(
        [ops.Decode(), ops.RandomHorizontalFlip(), ops.RandomVerticalFlip(), ops.RandomHorizontalFlip()]
    )
    part = Part(scene(20, 10), top=5, left=7, height=60, width=80)
    key = Key(1, epoch, 2)
    assert _same(pipeline.run(part, key, 1), _one_by_one(pipeline, part, key, 1))


@pytest.mark.parametrize("epoch", range(8))
def test_a_crop_behind_flips_takes_a_part(epoch):
    pipeline = Pipeline([ops.Decode(), ops.RandomHorizontalFlip(), ops.RandomVerticalFlip(), ops.CenterCrop((30, 20))])
    whole = scene(80, 60)
    part = Part(whole.crop((20, 10, 60, 50)), top=10, left=20, height=60, width=80)
    key = Key(1, epoch, 2)
    assert _same(pipeline.run(part, key, 1), _one_by_one(pipeline, whole, key, 1))


def test_two_flips_of_the_same_kind_are_none():
    pipeline = Pipeline([ops.Decode(), ops.RandomHorizontalFlip(1.0), ops.RandomHorizontalFlip(1.0)])
    picture = scene(20, 10)
    assert pipeline.run(picture, Key(0, 0, 0), 1) is picture


def test_what_is_fused_and_what_is_not():
    spans = {
        at: [fused.span for fused in fusions]
        for at, fusions in fuse(
            [
                ops.Decode(),
                ops.CenterCrop(60),
                ops.RandomHorizontalFlip(),
                ops.RandomResizedCrop(40),
                ops.RandomVerticalFlip(),
                ops.Resize(30),
                ops.ToTensor(),
                ops.Normalize((0.5,) * 3, (0.5,) * 3),
            ]
        ).items()
    }
    assert spans == {1: [3, 2], 2: [2], 6: [2]}


def test_an_op_in_the_middle_of_a_run_that_cannot_is_named():
    pipeline = Pipeline([ops.Decode(), ops.RandomVerticalFlip(), ops.RandomHorizontalFlip(), ops.RandomCrop(30)])
    with pytest.raises(OpError) as caught:
        pipeline.run(encode(scene(20, 20), "png"), Key(0, 0, 3))
    assert (caught.value.op, caught.value.position, caught.value.sample) == ("RandomCrop", 3, 3)


def test_a_trace_knows_the_bytes_between_fused_ops():
    steps = [ops.Decode(), ops.CenterCrop(30), ops.RandomHorizontalFlip(), ops.CenterCrop(10), ops.ToTensor()]
    pipeline, trace = Pipeline(steps), Trace(len(steps))
    pipeline.run(encode(scene(40, 50), "png"), Key(0, 0, 0), trace=trace)
    assert trace.op_bytes == [40 * 50 * 3, 30 * 30 * 3, 30 * 30 * 3, 10 * 10 * 3, 10 * 10 * 3 * 4]


def test_a_subclass_of_a_crop_is_left_alone():
    class Odd(ops.CenterCrop):
        def apply(self, value, params=None):  # noqa: ARG002 - part of the contract
            return Image.new("RGB", self._size)

    assert fuse([ops.Decode(), Odd(20), ops.CenterCrop(10)]) == {}
