"""The tuner against simulated machines, and real loaders that tune themselves."""

import threading
import time

import pytest

import sophon
from sophon.errors import ConfigError
from sophon.loader.machine.gauge import Gauge
from sophon.loader.machine.tuner import STRETCH_S, Seen, Setting, Tuner
from tests.support.servers import RECIPE, digest, make_images
from tests.support.waiting import HANG_S

MOST = Setting(workers=8, requests=32, ahead_bytes=1 << 30)


def _tuner(workers=2, requests=2, cores=2, most=MOST):
    return Tuner(Setting(workers, requests, 1 << 20), most, cores)


def _settle(tuner, world, stretches=60):
    """Let a tuner look at a world, a function from a setting to what is seen, until nothing changes any more."""
    for _ in range(stretches):
        tuner.look(world(tuner.setting))
    return tuner.setting


def _io_bound(parallel, noise=lambda: 1.0):
    """Fetching binds: the rate grows with requests, up to what the storage can do at once."""

    def world(setting):
        rate = 100 * min(setting.requests, parallel) * noise()
        return Seen(1.0, int(rate), waited_s=0.9, busy_s=0.1 * setting.workers, cpu_s=0.1)

    return world


def _cpu_bound(cores, s_per_sample=0.01, cpu_share=1.0):
    """Finishing binds: the rate grows with workers, up to what the cores can do."""

    def world(setting):
        used = min(setting.workers * cpu_share, cores)
        return Seen(1.0, int(used / (s_per_sample * cpu_share)), waited_s=0.9, busy_s=setting.workers, cpu_s=used)

    return world


@pytest.mark.parametrize("parallel", [2, 4, 8, 16])
def test_requests_grow_until_more_do_not_help(parallel):
    tuner = _tuner()
    assert _settle(tuner, _io_bound(parallel)).requests == parallel
    assert tuner.setting.workers == 2
    assert tuner.trials <= 5


def test_workers_that_compute_are_as_many_as_cores():
    assert _settle(_tuner(), _cpu_bound(2)).workers == 2
    assert _settle(_tuner(workers=1), _cpu_bound(4)).workers == 2  # as many as this process may use


def test_workers_that_wait_may_be_more_than_cores():
    assert _settle(_tuner(), _cpu_bound(2, cpu_share=0.25)).workers == 7


def test_workers_that_hold_each_other_up_become_fewer():
    def lock(setting):
        rate = 100 if setting.workers == 1 else 90
        return Seen(1.0, rate, waited_s=0.9, busy_s=setting.workers, cpu_s=1.0)

    assert _settle(_tuner(workers=2, cores=4), lock).workers == 1


def test_nothing_changes_while_the_consumer_hardly_waits():
    tuner = _tuner()
    _settle(tuner, lambda _: Seen(1.0, 100, waited_s=0.04, busy_s=0.2, cpu_s=0.2))
    assert (tuner.setting, tuner.trials) == (Setting(2, 2, 1 << 20), 0)


def test_at_the_end_of_an_epoch_when_nothing_is_left_to_ask_for_nothing_is_concluded():
    tuner = _tuner()
    _settle(tuner, lambda _: Seen(1.0, 100, waited_s=0.9, busy_s=0.2, cpu_s=0.2, fetching=False))
    assert tuner.trials == 0


def test_a_fixed_number_stays_a_fixed_number():
    tuner = _tuner(requests=3, most=Setting(8, 3, 1 << 30))
    assert _settle(tuner, _io_bound(16)).requests == 3


def test_trials_are_made_anew_when_the_world_has_changed():
    tuner = _tuner()
    assert _settle(tuner, _io_bound(2)).requests == 2
    trials = tuner.trials
    _settle(tuner, _io_bound(2))
    assert tuner.trials == trials
    world = _io_bound(2)

    def faster(setting):
        seen = world(setting)
        grown = min(setting.requests, 8) * 200
        return Seen(1.0, grown, seen.waited_s, seen.busy_s, seen.cpu_s)

    assert _settle(tuner, faster).requests == 8


def test_bytes_ahead_double_up_to_the_buffer():
    tuner = _tuner()
    doubled = 0
    while tuner.deepen():
        doubled += 1
    assert (tuner.setting.ahead_bytes, doubled) == (1 << 30, 10)


def _stretch(tuner, needed_bytes, waits=False):
    """Let a consumer that needs so many bytes ahead look at what it gets."""
    spare_bytes = max(0, tuner.setting.ahead_bytes - needed_bytes)
    if waits or not spare_bytes:
        tuner.deepen()
        return tuner.look(Seen(1.0, 100, waited_s=0.3, busy_s=2.0, cpu_s=2.0))
    return tuner.look(Seen(1.0, 100, waited_s=0.0, busy_s=1.0, cpu_s=1.0, spare_bytes=spare_bytes))


def test_bytes_ahead_that_nobody_needs_are_given_back_down_to_where_they_began():
    tuner = _tuner()
    while tuner.deepen():
        pass
    sizes = [_stretch(tuner, 3 << 20).ahead_bytes for _ in range(200)]
    assert sizes[-1] == 4 << 20  # twice what is needed would be 6 MiB: 8 MiB are halved, 4 MiB are not
    assert sizes == sorted(sizes, reverse=True)
    assert tuner.trials == 0
    sizes = [_stretch(tuner, 1).ahead_bytes for _ in range(200)]
    assert sizes[-1] == 1 << 20


def test_a_consumer_that_needs_what_it_has_keeps_it():
    tuner = _tuner()
    while tuner.setting.ahead_bytes < 64 << 20:
        tuner.deepen()
    for needed in (33 << 20, 48 << 20, 63 << 20):
        for _ in range(100):
            assert _stretch(tuner, needed).ahead_bytes == 64 << 20


def test_bytes_ahead_do_not_go_up_and_down_for_ever():
    tuner = _tuner()
    changes, before = 0, tuner.setting.ahead_bytes
    for number in range(10_000):
        # For most of the time next to nothing is needed; every now and then a slow sample needs it all.
        _stretch(tuner, 1, waits=number % 20 == 0 and tuner.setting.ahead_bytes < 64 << 20)
        changes += tuner.setting.ahead_bytes < before
        before = tuner.setting.ahead_bytes
    assert changes <= 6  # after 8, 32, 128, 512, … stretches


def test_a_gauge_counts_time_while_it_passes():
    gauge = Gauge(0.0)
    gauge.began(0.0)
    gauge.began(0.0)
    gauge.waits(True, 1.0)
    for i in range(20):
        gauge.ended(0.05, 0.1, True, 1.0 + i * 0.1)
        gauge.began(1.0 + i * 0.1)
    seen = gauge.look(3.0)
    assert seen is not None
    assert (seen.seconds, seen.samples, seen.waited_s) == (3.0, 20, pytest.approx(2.0))
    assert seen.busy_s == pytest.approx(6.0)  # two workers all the time, though one of them has ended nothing
    assert seen.cpu_s == pytest.approx(3.0)
    assert seen.spare_bytes == 0  # nobody has taken anything
    assert gauge.look(3.0 + STRETCH_S / 2) is None
    for spare_bytes in (900.0, 400.0, 700.0):
        gauge.took(spare_bytes)
    for _ in range(20):
        gauge.began(3.0)
        gauge.ended(0.05, 0.1, True, 4.0)
    assert gauge.look(4.0).spare_bytes == 400.0


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 60)


def test_tuning_changes_no_bit(images):
    plain = digest(sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True, seed=5))
    tuned = sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True, seed=5, num_workers="auto")
    assert digest(tuned) == plain
    tuned.set_epoch(0)
    assert digest(tuned) == plain


def test_threads_come_and_go_with_the_setting_and_none_is_left(images):
    class Restless(Tuner):
        """Changes its mind at every look."""

        def look(self, seen):  # noqa: ARG002 - part of the contract
            self.trials += 1
            workers, requests = ((1, 1), (5, 4), (2, 8), (3, 2))[self.trials % 4]
            self.setting = Setting(workers, requests, self.setting.ahead_bytes)
            return self.setting

        def deepen(self):
            return False

    loader = sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True, seed=5, num_workers="auto")
    plain = digest(sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True, seed=5))
    loader._passes.tuner = Restless(Setting(2, 2, 1), MOST, 2)  # one batch ahead: work goes on as long as the epoch
    end_s = time.monotonic() + HANG_S
    while loader._passes.tuner.trials < 8 and time.monotonic() < end_s:
        loader.set_epoch(0)
        # Stretches are a quarter of a second: a consumer that takes its time, and epochs, until there were enough.
        assert digest(_slowly(loader)) == plain
    assert loader._passes.tuner.trials >= 8
    assert not [t for t in threading.enumerate() if t.name.startswith("sophon-f")]  # those that fetch and finish


def _slowly(loader):
    pause = threading.Event()
    for batch in loader:
        yield batch
        pause.wait(0.06)


def test_a_consumer_that_waits_at_a_full_buffer_gets_more_read_ahead(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=4, num_workers=sophon.Workers("auto", buffer_bytes=4 << 20))
    loader._passes.tuner.setting = Setting(2, 2, 1)
    assert len(list(loader)) == 15
    assert loader.setting.ahead_bytes > 1
    assert loader.setting.ahead_bytes <= 4 << 20


def test_numbers_given_are_kept(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=4, num_workers=sophon.Workers(3, max_requests=5))
    assert loader.setting == Setting(3, 5, 1 << 30)
    list(loader)
    assert loader.setting == Setting(3, 5, 1 << 30)


def test_what_is_no_number_of_workers_or_requests_is_refused(images):
    with pytest.raises(ConfigError, match="num_workers"):
        sophon.DataLoader(images, RECIPE, num_workers="many")
    with pytest.raises(ConfigError, match="max_requests"):
        sophon.DataLoader(images, RECIPE, num_workers=sophon.Workers(0, max_requests=0))
