"""The handshake: what is compared, and that it sees what a few random boxes would not."""

from sophon.pipeline import Pipeline, ops, probe

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor()])


def test_digests_are_the_same_in_every_run_and_tell_pipelines_apart():
    assert probe.digests(RECIPE) == probe.digests(Pipeline.from_json(RECIPE.to_json()))
    assert len(probe.digests(RECIPE)) == len(RECIPE)
    other = Pipeline([ops.Decode(), ops.RandomResizedCrop(224, interpolation="bicubic")])
    assert probe.digests(other)[0] == probe.digests(RECIPE)[0]
    assert probe.digests(other)[1] != probe.digests(RECIPE)[1]


def test_an_op_that_fails_on_the_picture_ends_the_list():
    assert len(probe.digests(Pipeline([ops.Decode(), ops.RandomCrop(5000)]))) == 1


def test_a_pillow_that_resizes_otherwise_is_seen_behind_decoding_whatever_boxes_are_drawn(monkeypatch):
    here = probe.digests(RECIPE)
    monkeypatch.setattr(probe, "_resampling", lambda: b"another order of its two steps")
    there = probe.digests(RECIPE)
    assert there[0] == here[0]
    assert all(one != other for one, other in zip(here[1:], there[1:], strict=True))


def test_pictures_of_all_shapes_are_resized():
    widths, heights = zip(*((right - left, bottom - top) for left, top, right, bottom in probe._SHAPES), strict=True)
    to_width, to_height = probe._TARGET
    tall = [h - to_height > 2 * (w - to_width) for w, h in zip(widths, heights, strict=True)]
    assert set(tall) == {True, False}
    assert probe._resampling() == probe._resampling.__wrapped__()
