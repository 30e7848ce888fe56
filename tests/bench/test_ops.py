import pytest

from sophon.bench import harness
from sophon.bench.ops import RECIPE, bench_ops
from sophon.bench.pictures.samples import Samples, load_samples
from sophon.codec.table import offered
from sophon.errors import ConfigError
from tests.support.pictures import encode, scene

SAMPLES = Samples("test", tuple(encode(scene(260, 240, i), "jpeg 4:2:0") for i in range(3)))


def test_every_op_of_the_recipe_and_every_codec_is_timed():
    seen = []
    result = bench_ops(SAMPLES, 0.1, lambda name, number, count: seen.append((name, number, count)))
    assert {op.name() for op in RECIPE.ops} <= set(result["ops"])
    assert set(result["codecs"]) == set(offered()) - {"window", "flac"}  # of files, and of sounds
    for row in (*result["ops"].values(), result["recipe"]):
        assert set(row) == {"ours_ms", "torchvision_ms"}
        assert row["ours_ms"] > 0
    assert all(row["payload_bytes"] > 0 for row in result["codecs"].values())
    assert [number for _, number, _ in seen] == list(range(seen[0][2]))


def test_contestants_take_turns_on_every_item():
    order = []
    result = harness.race_ms({"a": lambda i: order.append(("a", i)), "b": lambda i: order.append(("b", i))}, [1, 2], 0)
    assert set(result) == {"a", "b"}
    assert order[4:8] == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert len(order) == 4 + 3 * 4


class _Clock:
    """Clocks that only work moves."""

    def __init__(self):
        self.spent_ns = 0

    def work(self, seconds):
        self.spent_ns += int(seconds * 1e9)

    def thread_time_ns(self):
        return self.spent_ns

    def monotonic(self):
        return self.spent_ns / 1e9


def test_a_contestant_that_does_three_times_the_work_takes_three_times_the_time(monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(harness, "time", clock)
    result = harness.race_ms({"one": lambda _: clock.work(0.001), "three": lambda _: clock.work(0.003)}, [0, 1], 0.3)
    assert result == pytest.approx({"one": 1.0, "three": 3.0})


def test_samples_are_spread_over_a_folder(tmp_path):
    for i in range(9):
        (tmp_path / f"{i}.jpg").write_bytes(bytes([i]))
    (tmp_path / "notes.txt").write_text("no image")
    samples = load_samples(tmp_path, 3)
    assert samples.files == (b"\x00", b"\x03", b"\x06")
    assert samples.name == f"3 of 9 images in {tmp_path}"


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no images in"):
        load_samples(tmp_path, 3)
    with pytest.raises(ConfigError, match="expected a folder of images"):
        load_samples(tmp_path / "nowhere", 3)


def test_samples_are_made_up_where_no_folder_is_given():
    samples = load_samples(None, 2)
    assert samples.name == "2 synthetic photos like imagenet"
    assert all(data[:2] == b"\xff\xd8" for data in samples.files)
