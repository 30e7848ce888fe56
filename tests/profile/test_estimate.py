"""From what a recorder was told to a profile: checked against measuring everything."""

import itertools
import math
import time

import numpy as np
import pytest

from sophon import Cut, Key, Pipeline, finish_payload, make_payload, open_store, ops
from sophon.bench.pictures.photos import PhotoSource
from sophon.bench.planning import replan
from sophon.codec.cut import looks_ahead
from sophon.errors import ConfigError
from sophon.pipeline import Trace, needed_box
from sophon.profile.columns import cuts_to_profile
from sophon.profile.estimate import estimate, seconds
from sophon.profile.explore import cuts_to_try, explore
from sophon.profile.measure import measure
from sophon.profile.model import BLOCK, Fit
from sophon.profile.recorder import Recorder, Storage
from sophon.profile.table import Profile
from tests.support.pictures import encode, scene

RECIPE = Pipeline(
    [
        ops.Decode(),
        ops.RandomResizedCrop(96),
        ops.RandomHorizontalFlip(),
        ops.ToTensor(),
        ops.Normalize((0.5,) * 3, (0.2,) * 3),
    ]
)
CUTS = cuts_to_profile(RECIPE, ("raw", "zstd", "webp", "window"))  # what there is everywhere
COUNT = 160


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    source = PhotoSource("imagenet")
    for number in range(COUNT):
        (folder / f"{number:03d}.jpg").write_bytes(source.photo(number))
    return open_store(folder)


def _pass(store, recorder, epoch, columns, slower=1.0, only=None):
    """One epoch of a storage node and a trainer, in this thread."""
    for sample in range(len(store)) if only is None else only:
        data, key, cut = store.read(sample), Key(0, epoch, sample), CUTS[columns[sample]]
        there, start_s = Trace(len(RECIPE)), time.thread_time()
        payload = make_payload(RECIPE, data, key, cut, there)
        cpu_s = time.thread_time() - start_s
        here = Trace(len(RECIPE))
        finish_payload(RECIPE, payload, key, cut, trace=here)
        told = Storage(slower * cpu_s, [slower * s for s in there.op_s[: cut.k]], len(data), there.size)
        recorder.saw(key, cut, len(payload), here, told if cut != Cut(0) else None)


@pytest.fixture(scope="module")
def explored(store):
    recorder = Recorder(RECIPE, CUTS, COUNT, 0)
    _pass(store, recorder, 0, explore(RECIPE, CUTS, COUNT, 0.5, 0))
    return recorder


def test_bytes_of_the_next_epoch_are_predicted_from_its_boxes(store, explored):
    profile, truth = estimate(explored, 1), measure(store, RECIPE, epoch=1, cuts=CUTS)
    for cut in CUTS:
        column = profile.column(cut)
        predicted, measured = profile.payload_bytes[:, column], truth.payload_bytes[:, column]
        assert predicted.sum() == pytest.approx(measured.sum(), rel=0.12), cut
    window = profile.column(Cut(0, "window"))
    assert np.corrcoef(profile.payload_bytes[:, window], truth.payload_bytes[:, window])[0, 1] > 0.9
    # The boxes are those of the epoch: with another epoch's the same prediction is worse.
    other = measure(store, RECIPE, epoch=2, cuts=[Cut(0), Cut(0, "window")]).payload_bytes[:, 1]
    mine = profile.payload_bytes[:, window]
    assert np.abs(np.log(mine / truth.payload_bytes[:, window])).mean() < 0.5 * np.abs(np.log(mine / other)).mean()


def test_the_stated_error_is_the_error(store):
    cuts = (Cut(0, "window"), Cut(2, "webp"))
    explored = Recorder(RECIPE, CUTS, COUNT, 0)
    _pass(store, explored, 0, np.array([CUTS.index((Cut(0), *cuts)[sample % 3]) for sample in range(COUNT)]))
    profile, truth = estimate(explored, 1), measure(store, RECIPE, epoch=1, cuts=(Cut(0), *cuts))
    for cut in cuts:
        column = profile.column(cut)
        predicted, measured = profile.payload_bytes[:, column], truth.payload_bytes[:, truth.column(cut)]
        found = float(np.mean(np.abs(predicted - measured) / measured))
        assert found == pytest.approx(profile.quality[column].payload_bytes_error, rel=0.5), cut
        assert profile.quality[column].measured == explored.count(cut) > 0


def test_a_slower_storage_node_is_noticed_op_by_op(store):
    recorder = Recorder(RECIPE, CUTS, COUNT, 0)
    columns = explore(RECIPE, CUTS, COUNT, 0.6, 0)
    _pass(store, recorder, 0, columns, slower=3.0)
    ratios = estimate(recorder, 1).provenance["storage_to_trainer"]
    # Clocks of a shared machine are noisy, and Decode here may decode a part where storage decodes all.
    assert 1.5 < np.median(ratios) < 6


def test_samples_timed_in_this_very_epoch_are_measured_and_the_others_are_not(explored):
    this, following = estimate(explored, 0), estimate(explored, 1)
    raw = this.column(Cut(0))
    whole = explored.known(0).op_s[:, 0] > 0
    assert (this.measured[:, raw] == whole).all()
    assert this.measured[:, this.column(Cut(2))].any()
    assert not this.measured[:, this.column(Cut(2, "webp"))].any()
    assert not following.measured.any()


def test_a_profile_is_where_the_next_run_begins(explored, tmp_path):
    first = estimate(explored, 1, dataset="d")
    first.save(tmp_path / "profile.parquet")
    again = Recorder(RECIPE, CUTS, COUNT, 0)
    again.recall(Profile.load(tmp_path / "profile.parquet"))
    second = estimate(again, 1)
    assert np.allclose(second.payload_bytes, first.payload_bytes, rtol=1e-5)
    assert np.allclose(second.storage_s, first.storage_s, rtol=1e-3)
    assert np.allclose(second.trainer_s, first.trainer_s, rtol=1e-3)


def test_a_file_that_no_window_can_be_cut_from_never_gets_one(tmp_path):
    for number in range(12):
        form = "webp" if number % 3 == 0 else "jpeg 4:2:0"
        (tmp_path / f"{number:02d}.jpg").write_bytes(encode(scene(300, 200, number), form))
    store = open_store(tmp_path)
    recorder = Recorder(RECIPE, CUTS, 12, 0)
    columns = np.zeros(12, np.uint8)
    columns[1] = CUTS.index(Cut(0, "window"))
    _pass(store, recorder, 0, columns)
    profile = estimate(recorder, 1)
    refused = np.isinf(profile.payload_bytes[:, profile.column(Cut(0, "window"))])
    assert refused.tolist() == [number % 3 == 0 for number in range(12)]


def test_a_cut_that_nobody_was_asked_for_is_no_choice_unless_its_ops_tell_all(store):
    recorder = Recorder(RECIPE, CUTS, COUNT, 0)
    _pass(store, recorder, 0, np.zeros(COUNT, np.uint8))
    profile = estimate(recorder, 1)
    for column, cut in enumerate(CUTS):
        assert np.isfinite(profile.payload_bytes[:, column]).all() == (cut.codec == "raw"), cut
    assert profile.payload_bytes[0, profile.column(Cut(2))] == pytest.approx(96 * 96 * 3)


def test_from_one_measured_sample_nobody_knows_how_far_off_predictions_are(store, tmp_path):
    recorder = Recorder(RECIPE, CUTS, COUNT, 0)
    columns = np.zeros(COUNT, np.uint8)
    columns[3], columns[4] = CUTS.index(Cut(2, "webp")), CUTS.index(Cut(2))
    _pass(store, recorder, 0, columns)
    estimate(recorder, 1).save(tmp_path / "profile.parquet")
    profile = Profile.load(tmp_path / "profile.parquet")
    webp, plain, never = (profile.quality[profile.column(cut)] for cut in (Cut(2, "webp"), Cut(2), Cut(0, "window")))
    assert (webp.measured, webp.payload_bytes_error, webp.storage_s_error) == (1, None, None)
    assert (plain.measured, plain.payload_bytes_error) == (1, 0.0)  # pictures of one size have one size in bytes
    assert (never.measured, never.payload_bytes_error) == (0, None)
    (line,) = (line for line in profile.explain().splitlines() if " 2:webp " in line)
    assert "from 1 measured, too few to know the error" in line
    assert "±" not in line


def _half_seen(store, epoch=0):
    """A recorder that every second sample has passed, as at one of two ranks."""
    recorder = Recorder(RECIPE, CUTS, COUNT, 0)
    mine = list(range(0, COUNT, 2))
    cuts = (Cut(0), Cut(0), Cut(0, "window"), Cut(2, "webp"))
    columns = np.array([CUTS.index(cuts[sample // 2 % 4]) for sample in range(COUNT)])
    _pass(store, recorder, epoch, columns, only=mine)
    return recorder, mine


def test_samples_that_have_not_passed_cost_as_much_on_average_as_those_that_have(store):
    recorder, mine = _half_seen(store)
    profile, others = estimate(recorder, 1), np.arange(1, COUNT, 2)
    for table in (profile.payload_bytes, profile.storage_s, profile.trainer_s):
        seen, unseen = table[mine].mean(axis=0, dtype=float), table[others].mean(axis=0, dtype=float)
        known = np.isfinite(seen)
        assert unseen[known] == pytest.approx(seen[known], rel=1e-4)
    # Their boxes are drawn as they will be, so that one is not like the other.
    window = profile.payload_bytes[others, profile.column(Cut(0, "window"))]
    assert window.std() > 0.2 * window.mean()
    truth = measure(store, RECIPE, epoch=1, cuts=[Cut(0), Cut(0, "window")]).payload_bytes[others, 1]
    assert np.corrcoef(window, truth)[0, 1] > 0.3


def test_with_the_sizes_of_their_files_they_are_known_nearly_as_well(store):
    recorder, _ = _half_seen(store)
    recorder.expect(store.manifest.sizes)
    assert recorder.seen == COUNT // 2
    profile, others = estimate(recorder, 1), np.arange(1, COUNT, 2)
    assert (profile.payload_bytes[:, profile.column(Cut(0))] == store.manifest.sizes).all()
    window = profile.payload_bytes[others, profile.column(Cut(0, "window"))]
    truth = measure(store, RECIPE, epoch=1, cuts=[Cut(0), Cut(0, "window")]).payload_bytes[others, 1]
    assert np.corrcoef(window, truth)[0, 1] > 0.85


def test_what_an_earlier_run_has_not_seen_is_not_taken_for_seen(store, tmp_path):
    recorder, mine = _half_seen(store)
    estimate(recorder, 1).save(tmp_path / "profile.parquet")
    again = Recorder(RECIPE, CUTS, COUNT, 0)
    again.recall(Profile.load(tmp_path / "profile.parquet"))
    assert again.seen == len(mine)
    known = again.known(1)
    assert (known.raw_bytes[mine] == store.manifest.sizes[mine]).all()
    assert not np.delete(known.raw_bytes, mine).any()


def test_without_a_whole_sample_there_is_no_profile():
    with pytest.raises(ConfigError, match="profile an epoch first"):
        estimate(Recorder(RECIPE, CUTS, 4, 0), 0)


def test_exploring_gives_most_samples_whole_and_every_cut_its_share():
    columns = explore(RECIPE, CUTS, 10_000, 0.05, 0)
    counts = np.bincount(columns, minlength=len(CUTS))
    assert counts[CUTS.index(Cut(0))] == 9_500
    tried = [counts[CUTS.index(cut)] for cut in cuts_to_try(RECIPE, CUTS)]
    assert max(tried) - min(tried) <= 1
    # Of few samples some more, so that what promises most is tried often enough.
    counts = np.bincount(explore(RECIPE, CUTS, 200, 0.05, 0), minlength=len(CUTS))
    tried = [int(counts[CUTS.index(cut)]) for cut in cuts_to_try(RECIPE, CUTS)]
    assert tried == [12, 12, 3, 3, 3, 3, 0, 0]
    assert not explore(RECIPE, CUTS, 200, 0.0, 0).any()
    assert (explore(RECIPE, CUTS, 500, 0.05, 1) == explore(RECIPE, CUTS, 500, 0.05, 1)).all()


def test_a_rank_explores_among_its_own_samples_as_one_alone_would():
    mine = np.arange(3, 2000, 4)
    columns = explore(RECIPE, CUTS, 2000, 0.05, 0, mine)
    assert not np.delete(columns, mine).any()
    alone = explore(RECIPE, CUTS, len(mine), 0.05, 0)
    assert (np.bincount(columns[mine]) == np.bincount(alone)).all()


def test_where_nobody_knows_whose_samples_are_whose_all_ranks_together_try_as_much():
    shared = np.bincount(explore(RECIPE, CUTS, 2000, 0.05, 0, ranks=4), minlength=len(CUTS))
    alone = np.bincount(explore(RECIPE, CUTS, 500, 0.05, 0), minlength=len(CUTS))
    assert (shared == 4 * alone).all()


def test_what_promises_most_is_tried_first():
    assert [str(cut) for cut in cuts_to_try(RECIPE, CUTS)][:3] == ["0:window", "2:webp", "2:zstd"]
    assert cuts_to_try(RECIPE, CUTS)[-1] == Cut(0, "zstd")


def test_seconds_near_storage_do_not_depend_on_what_memory_held_before():
    """A BLAS may read memory that nobody has written; where a signalling NaN lies in it, NumPy warns in vain."""
    rng = np.random.default_rng(0)
    signalling = np.full(800, 0x7FA00000, np.uint32).view(np.float32)
    for samples, ops_there in itertools.product(range(1, 40), range(9)):
        op_s, ratios = rng.random((samples, ops_there), np.float32), rng.random(ops_there, np.float32)
        with np.errstate(invalid="ignore"):
            np.ones((4, 400), np.float32) @ signalling[::2]  # BLAS copies a strided vector, and leaves it on the stack
        found = np.empty(samples, np.float32)
        seconds(op_s, ratios, out=found)
        assert np.allclose(found, (op_s.astype(np.float64) * ratios).sum(axis=1), rtol=1e-6)


def test_costs_are_what_the_rules_and_ratios_say_sample_by_sample():
    samples = BLOCK + 3  # the last block is a short one
    recorder = Recorder(replan.RECIPE, replan.CUTS, samples, 4)
    recorder.recall(replan.kept_profile(samples))
    found = estimate(recorder, 2)
    rules = {name: Fit.from_json(said) for name, said in found.provenance["rules"].items()}
    ratios, known, ops_run = found.provenance["storage_to_trainer"], recorder.known(2), len(replan.RECIPE)
    raw_bytes, sizes = found.payload_bytes[:, found.column(Cut(0))], known.sizes
    for sample in (0, 7, BLOCK - 1, BLOCK, BLOCK + 2):
        area = needed_box(replan.RECIPE, Key(4, 2, sample), *map(int, sizes[sample]))
        values = (float(raw_bytes[sample]), float(sizes[sample].prod()), float(area[2] * area[3]))

        def predicted(name, values=values):
            rule = rules.get(name)
            if rule is None:
                return 0.0
            terms = zip(rule.slopes, values, rule.centre, strict=True)
            line = rule.level + sum(slope * (math.log(value) - centre) for slope, value, centre in terms)
            return min(max(math.exp(line), rule.least), rule.most)

        ops_s = [predicted(f"op {position}") for position in range(ops_run)]
        for column, cut in enumerate(replan.CUTS):
            first = 1 if looks_ahead(cut) else cut.k
            there = sum(s * ratio for s, ratio in zip(ops_s[: cut.k], ratios[: cut.k], strict=True))
            expected = (
                values[0] if cut == Cut(0) else predicted(f"{cut} bytes"),
                there + (0.0 if cut == Cut(0) else predicted(f"{cut} encode")),
                sum(ops_s[first:]) + (0.0 if cut == Cut(0) else predicted(f"{cut} decode")),
            )
            tables = (found.payload_bytes, found.storage_s, found.trainer_s)
            assert [table[sample, column] for table in tables] == pytest.approx(expected, rel=1e-4, abs=1e-12)
