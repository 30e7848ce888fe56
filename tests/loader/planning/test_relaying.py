"""What is learnt of relays from their replies, and planned with."""

from types import SimpleNamespace

import numpy as np
import pytest

from sophon.codec.cut import RAW, Cut
from sophon.codec.route import Route
from sophon.link.wire import Reply, StreamClock
from sophon.loader.planning.relaying import Relaying
from sophon.loader.planning.replanning import moved
from sophon.plan.plan import make_plan
from sophon.plan.resources import Resources
from sophon.profile.columns import cuts_to_profile, routes_to_profile
from sophon.profile.table import Profile
from tests.support.servers import RECIPE

COUNT = 40
ROUTES = (RAW, Cut(2), Route((RAW, Cut(2))))


def profile_of(relay_s=0.004):
    """Return the costs of samples that take 4 ms of CPU, most of which a relay can take over."""
    each = np.ones((COUNT, 1), np.float32)
    return Profile(
        ROUTES,
        each * [[1e5, 1.5e5, 1e5]],
        each * [[0, 0.004, 0]],
        each * [[0.004, 0.0004, 0.0004]],
        more={"relay_s": each * [[0, 0, relay_s]], "relay_bytes": each * [[0, 0, 1.5e5]]},
    )


def resources_of(relay_cores):
    return Resources(1e9, 0, 0.5, relay_cores=relay_cores, relay_link_bytes_per_s=1e9)


@pytest.mark.parametrize(("relay_cores", "speedup"), [(0, 1.0), (0.5, 1.8), (1.0, 2.6), (100, 10.0)])
def test_a_plan_sends_through_relays_what_makes_the_epoch_shortest(relay_cores, speedup):
    profile = profile_of()
    plan = make_plan(profile, resources_of(relay_cores))
    none = make_plan(profile, resources_of(0)).prediction.epoch_s
    # At best both are busy all the time: relayed samples x take 0.4 ms here and 4 ms there, the others 4 ms here.
    numbers = range(COUNT + 1) if relay_cores else [0]
    times = [((0.004 * (COUNT - x) + 0.0004 * x) / 0.5, 0.004 * x / relay_cores if x else 0.0) for x in numbers]
    best_s = min(map(max, times))
    assert plan.prediction.epoch_s == pytest.approx(best_s, rel=1e-6)
    assert none / plan.prediction.epoch_s == pytest.approx(speedup, rel=0.1)
    assert {route for route, count in plan.counts().items() if count} <= {Route.of(route) for route in ROUTES}


def test_routes_begin_with_what_costs_a_node_nothing_and_end_after_the_crop():
    routes = routes_to_profile(RECIPE, cuts_to_profile(RECIPE, ("raw", "webp", "window")))
    assert {str(route.cuts[0]) for route in routes} == {"0:raw", "0:window"}
    assert min(route.arrival.k for route in routes) == 2


def stream(relaying, request, relay, replies, seconds, computing):
    """Tell of a stream of replies; it waits for ops for a share of the time."""
    profile = profile_of()
    plan = make_plan(profile, resources_of(100))
    relaying.began(request, relay, 0.0)
    for number in range(replies):
        now_s = seconds * (number + 1) / replies
        made = Reply(0, Cut(2), b"x" * 150_000, first=RAW, relay_s=0.008, first_bytes=100_000)
        fetch = SimpleNamespace(clock=StreamClock(computing_s=computing * now_s))
        relaying.received(request, number % COUNT, made, fetch, (plan, profile), now_s)
    relaying.ended(request, seconds)


def test_relays_are_believed_to_have_the_cores_that_they_say_or_fewer_where_they_were_slower():
    relaying = Relaying(RECIPE, (RAW, Cut(2)))
    before = Resources(1e6, 0, 1)
    assert relaying.resources(before, {1: 2.0, 2: 0.5}, 1).relay_cores == 2.5
    stream(relaying, 7, 1, 100, 2.0, computing=0.9)  # 0.8 CPU seconds in two, and ops were what was waited for
    assert relaying.resources(before, {1: 2.0, 2: 0.5}, 1).relay_cores == pytest.approx(0.9, rel=0.05)
    assert relaying.resources(before, {2: 0.5}, 1).relay_cores == 0.5  # the other one is gone


def test_how_fast_relays_are_beside_the_trainer_is_learnt():
    relaying = Relaying(RECIPE, (RAW, Cut(2)))
    stream(relaying, 7, 1, 20, 1.0, computing=0.0)
    relaying.turn()
    assert relaying.relayed.to_trainer == pytest.approx(2.0)  # 8 ms where 4 were planned


def test_a_link_that_was_never_full_is_taken_for_one_like_the_nodes():
    relaying = Relaying(RECIPE, (RAW, Cut(2)))
    assert relaying.resources(Resources(5e6, 0, 1), {1: 1.0, 2: 1.0}, 1).relay_link_bytes_per_s == 1e7


def test_a_relay_that_comes_or_goes_is_a_reason_to_plan_anew():
    two, one = (resources_of(cores) for cores in (0.8, 0.4))
    assert moved(one, two)
    assert moved(resources_of(0), two)
    assert not moved(two, two)
    plain = Resources(1e6, 1, 1)
    assert not moved(plain, plain)
