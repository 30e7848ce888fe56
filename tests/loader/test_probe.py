"""The three short runs that say what holds training back."""

import time

import pytest
import torch

import sophon
from sophon.errors import ConfigError, UnavailableError
from tests.support.servers import RECIPE, make_images, serve


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "images", 40)


def test_a_slow_step_is_what_binds_and_is_fed_random_numbers(images):
    seen, begun_s, ended_s = [], [], []

    def step(batch):
        seen.append(batch)
        begun_s.append(time.monotonic())
        time.sleep(0.25)
        ended_s.append(time.monotonic())

    loader = sophon.DataLoader(images, RECIPE, batch_size=8, num_workers=1)
    verdict = sophon.probe(loader, step, batches=4)
    assert verdict.bound == "GPU-bound"
    assert len(begun_s) == 3 + 4  # the first three do not count
    assert verdict.consumer_per_s == pytest.approx(8 * 4 / (ended_s[-1] - begun_s[3]), rel=0.2)
    values, labels = seen[0]
    assert values.shape == (8, 3, 48, 48)
    assert abs(values.mean()) < 0.05
    assert values.std() == pytest.approx(1, abs=0.05)
    assert labels.dtype == torch.int64
    assert loader.epoch == 0


def test_a_slow_link_is_what_binds(images):
    with serve(images, options=("--limit", "1mbit")) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=8, num_workers=1)
        verdict = sophon.probe(loader, lambda _: None, batches=4)
    assert verdict.bound == "I/O-bound"
    assert verdict.io_stall > 0.9
    assert verdict.factor > 2


def test_more_batches_than_samples_go_round(images):
    steps = []
    sophon.probe(sophon.DataLoader(images, RECIPE, batch_size=32), batches=3, on_step=lambda *step: steps.append(step))
    assert {name for name, _, _ in steps} == {"raw fetch", "preprocessing"}


def test_a_damaged_file_does_not_stop_it(tmp_path):
    make_images(tmp_path / "images", 12)
    (tmp_path / "images" / "class_0" / "zz.jpg").write_bytes(b"\xff\xd8\xff nothing")
    verdict = sophon.probe(sophon.DataLoader(tmp_path / "images", RECIPE, batch_size=4), batches=4)
    assert verdict.cpu_per_s > 0


def test_files_that_are_no_pictures_are_told_and_not_measured(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(4):
        (tmp_path / "images" / f"{number}.jpg").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"no sample of .* passes through the pipeline; the first error: .*0\.jpg"):
        sophon.probe(sophon.DataLoader(tmp_path / "images", RECIPE, batch_size=4), batches=1)


def test_it_ends_by_itself_when_its_seconds_are_over(images):
    steps, reported = [], []
    loader = sophon.DataLoader(images, RECIPE, batch_size=8, num_workers=1)
    verdict = sophon.probe(
        loader, steps.append, batches=1000, seconds=1e-6, on_step=lambda *step: reported.append(step)
    )
    assert len(steps) == 3 + 1  # three to warm up, and one that counts
    assert min(verdict.io_per_s, verdict.cpu_per_s, verdict.consumer_per_s) > 0
    assert {name for name, _, _ in reported} == {"training step", "raw fetch", "preprocessing"}
    with pytest.raises(ConfigError, match="seconds: expected more than 0"):
        sophon.probe(loader, seconds=0)


def test_no_batches_are_refused(images):
    with pytest.raises(ConfigError, match="at least 1"):
        sophon.probe(sophon.DataLoader(images, RECIPE), batches=0)


def test_a_node_that_goes_away_meanwhile_is_named_with_what_to_try(images):
    with serve(images) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=8)
    with pytest.raises(UnavailableError, match=r"Is `sophon serve` running") as caught:
        sophon.probe(loader, batches=2)
    assert server.url in str(caught.value)
