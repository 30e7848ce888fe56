import numpy as np
import pytest

from sophon.bench.paper.calibration import _nearest
from sophon.bench.paper.datasets import _spread
from sophon.bench.paper.figures import figure_1b, figure_1c
from sophon.bench.paper.published import PAPER
from sophon.codec import RAW, Cut
from sophon.profile.table import Profile

CUTS = (RAW, Cut(0, "window"), Cut(2), Cut(2, "webp"))
# A large file, one that is smallest as it is, one that has no window.
PAYLOAD = [[400e3, 200e3, 150e3, 70e3], [50e3, 30e3, 150e3, 70e3], [300e3, np.inf, 150e3, 80e3]]
STORAGE = [[0, 1e-3, 10e-3, 12e-3], [0, 1e-3, 5e-3, 7e-3], [0, np.inf, 10e-3, 12e-3]]


@pytest.fixture
def profiles():
    trainer = np.where(np.isinf(PAYLOAD), np.inf, 1e-3)
    return {"openimages": Profile(CUTS, np.array(PAYLOAD), np.array(STORAGE), trainer)}


def test_figure_1b_counts_samples_by_where_they_are_smallest(profiles):
    figure = figure_1b(profiles)
    row = figure["datasets"]["openimages"]
    assert row["shares"] == pytest.approx({"raw": 1 / 3, "RandomResizedCrop": 2 / 3})
    assert row["with_codecs"] == pytest.approx({"0:window": 1 / 3, "2:webp": 2 / 3})
    assert figure["paper"]["openimages"]["raw"] == pytest.approx(0.24)


def test_figure_1c_is_bytes_saved_per_cpu_second(profiles):
    row = figure_1c(profiles)["datasets"]["openimages"]
    assert row["zero_share"] == pytest.approx(1 / 3)
    assert row["bytes_per_cpu_s"][0] == 0
    assert row["bytes_per_cpu_s"][100] == pytest.approx(250e3 / 10e-3, rel=1e-5)
    assert row["with_codecs"][100] == pytest.approx(330e3 / 12e-3, rel=1e-5)


def test_files_are_spread_evenly_or_come_again():
    assert _spread([*range(10)], 5) == [0, 2, 4, 6, 8]
    assert _spread([*range(4)], 6) == [0, 1, 2, 3, 0, 1]


def test_every_cut_is_scaled_as_the_one_most_like_it():
    known = dict.fromkeys((RAW, Cut(0, "window"), Cut(2), Cut(2, "webp")))
    assert _nearest(Cut(5), known) == Cut(2)
    assert _nearest(Cut(2, "zstd"), known) == Cut(2)
    assert _nearest(Cut(0, "window"), known) == Cut(0, "window")
    assert _nearest(Cut(3, "webp"), known) == Cut(2, "webp")
    assert _nearest(Cut(2), {RAW: None}) == RAW


def test_the_paper_is_quoted_for_both_data_sets():
    assert PAPER["openimages"]["traffic"]["sophon"] == 2.2
    assert PAPER["imagenet"]["traffic"]["sophon"] == 1.2
