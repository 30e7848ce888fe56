"""Every limit ends in a clear error or a smaller cut, and the server goes on."""

import gc
import json
from dataclasses import fields

import pytest
from click.testing import CliRunner
from pyarrow import flight

import sophon
from sophon.cli.limits import _OPTIONS, limits_from
from sophon.cli.serve import serve as serve_command
from sophon.codec import RAW, Cut
from sophon.errors import ConfigError, RetryableError, StoreError
from sophon.link.wire import Request
from sophon.pipeline import Pipeline, ops
from sophon.server.budget import CpuBudget
from sophon.server.executor import Executor
from sophon.server.limits import Limits
from sophon.server.seats import Seats
from sophon.server.tenants.rest import Crowding
from sophon.store import open_store
from sophon.units import parse_bytes, parse_seconds
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import HANG_S


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 20)


@pytest.fixture
def make(images):
    budgets = []

    def executor(**limits):
        budgets.append(CpuBudget(1))
        made = Executor({"data": open_store(images, "data")}, budgets[-1], limits=Limits(**limits))
        made.reasons = []
        made.on_smaller_cut = made.reasons.append
        return made

    yield executor
    for budget in budgets:
        budget.close()


def _request(samples=range(20), cut="2:webp", pipeline=RECIPE):
    samples = tuple(samples)
    return Request("data", pipeline.to_spec(), 0, 0, samples, (Cut.parse(cut),) * len(samples))


def test_more_samples_than_a_request_may_name_are_refused(make):
    executor = make(request_samples=4)
    assert len(list(executor.replies(_request(range(4))))) == 4
    with pytest.raises(ConfigError, match=r"the request is for 5 samples; this node accepts at most 4: ask for fewer"):
        executor.replies(_request(range(5)))


def test_more_bytes_than_a_request_may_name_are_refused(make):
    with pytest.raises(ConfigError, match=r"this node accepts at most 10 KB: ask for fewer samples"):
        make(request_bytes=10_000).replies(_request())


def test_a_loader_keeps_to_the_samples_that_a_node_takes(images):
    with serve(images, options=("--max-request-samples", "3")) as server:
        expected = digest(sophon.DataLoader(images, RECIPE, batch_size=8))
        assert digest(sophon.DataLoader(server.url, RECIPE, batch_size=8, num_workers=1)) == expected
        dataset = sophon.RemoteDataset(server.url, RECIPE)
        assert len(dataset.__getitems__(list(range(10)))) == 10


def test_a_file_that_is_too_large_is_an_error_of_its_own(make):
    executor = make(sample_bytes=4000)
    replies = list(executor.replies(_request(cut="0:raw")))
    refused = [reply for reply in replies if reply.error]
    assert 0 < len(refused) < 20
    assert all(isinstance(reply.error, StoreError) for reply in refused)
    assert "leave it out, or raise --max-sample-bytes there" in str(refused[0].error)
    assert all(len(reply.payload) <= 4000 for reply in replies)


def test_a_picture_with_too_many_pixels_is_sent_as_it_is(make):
    executor = make(pixels=4000)
    assert {str(reply.cut) for reply in executor.replies(_request())} == {"0:raw", "2:webp"}
    assert set(executor.reasons) == {"op_failed"}


BOMBS = [
    ops.Resize((2000, 2000)),
    ops.CenterCrop(2000),
    ops.RandomResizedCrop(2000),
    ops.Views([ops.RandomResizedCrop(200)] * 26),  # all together
    ops.Views([[]] * 64),  # of whole pictures, whose size nobody knows
]


@pytest.mark.parametrize("bomb", BOMBS)
def test_an_op_that_makes_too_many_pixels_is_not_run(make, bomb):
    pipeline = Pipeline([ops.Decode(), bomb, *([] if isinstance(bomb, ops.Views) else [ops.ToTensor()])])
    executor = make(pixels=1_000_000)
    for cut in ("2:raw", "3:raw"):
        assert {reply.cut for reply in executor.replies(_request(range(3), cut, pipeline))} == {RAW}
    answer = executor.describe({"dataset": "data", "pipeline": pipeline.to_spec()})
    assert answer["max_cut"] == 1
    assert "beyond the 1,000,000 pixels that this node allows" in answer["reason"]


def test_one_request_too_many_is_told_to_try_again():
    room = Seats(Limits(requests=2))
    one, two = room.enter(), room.enter()
    with pytest.raises(RetryableError, match="already answering 2 requests; try again later"):
        room.enter()
    one.leave()
    one.leave()
    assert room.requests == 1
    three = room.enter()
    del two, three
    gc.collect()
    assert room.requests == 0


def test_one_tenant_of_several_has_half_of_the_seats_at_most():
    room = Seats(Limits(requests=5), tenants=3)
    first = [room.enter(1) for _ in range(3)]
    with pytest.raises(RetryableError, match=r"already answering 3 requests with this token.*try again later"):
        room.enter(1)
    others = [room.enter(2), room.enter(3)]
    first.pop().leave()
    first.append(room.enter(1))
    assert room.requests == len(first + others) == 5


def test_streams_of_one_tenant_that_are_never_read_keep_nobody_else_out(images, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("one-of-the-tenants *\nanother-tenant-of-it *\n")
    options = ("--token-file", str(tokens), "--max-requests", "4", "--limit", "100kbit")
    with serve(images, options=options) as server:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            ticket = flight.Ticket(_request(cut="0:raw").to_bytes())
            greedy, modest = (
                flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token.encode())])
                for token in ("one-of-the-tenants", "another-tenant-of-it")
            )
            readers = [client.do_get(ticket, greedy) for _ in range(2)]
            with pytest.raises(flight.FlightUnavailableError, match="limit for one tenant of several"):
                client.do_get(ticket, greedy).read_all()
            readers += [client.do_get(ticket, modest) for _ in range(2)]
            for reader in readers:
                reader.cancel()
        server.kill()  # it would send for half a minute


def test_a_seat_that_is_dropped_gives_up_what_it_held():
    room = Seats(Limits(in_flight_bytes=100))
    seat = room.enter()
    seat.hold(90)
    seat.hold(-30)
    assert room.held_bytes == 60
    assert room.has_space(40)
    assert not room.has_space(41)
    del seat
    gc.collect()
    assert (room.held_bytes, room.requests) == (0, 0)


@pytest.mark.parametrize("in_order", [True, False])
def test_no_more_is_held_than_there_is_room_for(make, in_order, monkeypatch):
    """A request gets on one sample at a time if need be, as what it made is sent."""
    monkeypatch.setattr("sophon.server.seats.FREE_BYTES", 1)
    executor = make(in_flight_bytes=40_000)  # the largest of the payloads has 30 KB, the largest file 20 KB
    room = Seats(executor.limits)
    seat = room.enter()
    request = Request(**{**vars(_request(cut="2:raw")), "in_order": in_order})
    came, most = [], 0
    for reply in executor.replies(request, seat=seat).pulse(lambda: 0.01):
        most = max(most, room.held_bytes)
        if reply is not None:
            came.append(reply.position)
            seat.hold(-len(reply.payload))
    assert sorted(came) == list(range(20))
    assert 0 < most <= 40_000
    assert room.held_bytes == 0


def test_a_result_that_there_is_no_room_for_is_not_made_room_for(make):
    """Not even if it is the first of its request, and nothing else is held: the file is sent in its place."""
    pipeline = Pipeline([ops.Decode(), ops.Pad(2000)])
    executor = make(in_flight_bytes=2 << 20)
    room = Seats(executor.limits)
    seat = room.enter()
    replies = list(executor.replies(_request(range(4), "2:raw", pipeline), seat=seat))
    assert {reply.cut for reply in replies} == {RAW}
    assert executor.reasons == ["memory"] * 4
    assert room.held_bytes == sum(len(reply.payload) for reply in replies)


def test_results_that_there_is_no_room_for_are_not_made_again_and_again(make):
    pipeline = Pipeline([ops.Decode(), ops.Pad(2000)])
    executor = make(in_flight_bytes=2 << 20)
    made, maker = [], executor.maker.make
    executor.maker.make = lambda *told: made.append(told) or maker(*told)
    replies = list(executor.replies(_request(range(20), "2:raw", pipeline), seat=Seats(executor.limits).enter()))
    assert {reply.cut for reply in replies} == {RAW}
    assert executor.reasons == ["memory"] * 20
    assert len(made) < 10, "three in a row, and those that were under way"


def test_a_result_without_room_suspends_its_own_pipeline_for_longer_and_longer():
    now_s = 0.0
    crowding = Crowding(lambda: now_s)
    for _ in range(3):
        assert not crowding.expected(1, "work")
        crowding.refused(1, "work")
    assert crowding.expected(1, "work")
    assert not crowding.expected(1, "other work")
    assert not crowding.expected(2, "work")
    now_s = 1.0
    assert not crowding.expected(1, "work")
    crowding.refused(1, "work")
    now_s = 3.9
    assert crowding.expected(1, "work")
    now_s = 4.0
    crowding.fitted(1, "work")
    crowding.refused(1, "work")
    assert not crowding.expected(1, "work"), "all is forgotten when there is room"
    crowding.is_shared = True
    crowding.refused(2, "work")
    assert crowding.expected(2, "work"), "at once where others wait"


def test_a_file_that_never_fits_is_an_error_of_its_own(make, monkeypatch):
    monkeypatch.setattr("sophon.server.seats.FREE_BYTES", 4000)
    executor = make(in_flight_bytes=4000)
    seat = Seats(executor.limits).enter()
    errors = []
    for reply in executor.replies(_request(cut="0:raw"), seat=seat).pulse(lambda: 0.01):
        if reply is not None:
            errors += [str(reply.error)] if reply.error else []
            seat.hold(-len(reply.payload))
    assert 0 < len(errors) < 20
    assert "leave it out, or raise --max-in-flight there" in errors[0]


def test_one_tenant_of_several_holds_half_of_the_bytes_at_most():
    room = Seats(Limits(in_flight_bytes=100 << 20), tenants=3)
    greedy, modest = room.enter(1), room.enter(2)
    assert greedy.hold(50 << 20, is_certain=False)
    assert not greedy.has_space(1 << 20)
    assert not greedy.hold(1 << 20, is_certain=False)
    another = room.enter(1)
    assert another.hold(1 << 20, is_certain=False), "a request may always hold a little"
    assert modest.hold(49 << 20, is_certain=False)
    assert not modest.hold(1 << 20, is_certain=False)
    another.leave()
    assert modest.hold(1 << 20, is_certain=False)


def test_clients_that_do_not_read_do_not_keep_others_from_being_served(images):
    """A dozen streams are opened and left alone under tight limits; a loader still gets its batches."""
    with (
        serve(images, options=("--max-in-flight", "20KB", "--max-requests", "14")) as server,
        flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        ticket = flight.Ticket(_request(cut="0:raw").to_bytes())
        readers = [client.do_get(ticket) for _ in range(12)]
        expected = digest(sophon.DataLoader(images, RECIPE, batch_size=8))
        assert digest(sophon.DataLoader(server.url, RECIPE, batch_size=8, policy="2:webp", num_workers=2)) == expected
        for reader in readers:
            reader.cancel()


def test_seats_are_free_again_when_clients_go_away_at_any_moment(images):
    with (
        serve(images, options=("--max-requests", "3", "--metrics-port", "0")) as server,
        flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        ticket = flight.Ticket(_request(cut="0:raw").to_bytes())
        for number in range(12):
            reader = client.do_get(ticket, flight.FlightCallOptions(timeout=HANG_S))
            if number % 3 == 0:
                reader.read_all()
            elif number % 3 == 1:
                reader.read_chunk()
            reader.cancel()
            del reader
        for bad in (b"", b"{}", Request("x", {"ops": []}, 0, 0, (), ()).to_bytes()) * 3:
            with pytest.raises(flight.FlightError):
                client.do_get(flight.Ticket(bad)).read_all()
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=8, num_workers=1)
        assert len(list(loader)) == 3


def test_a_busy_node_says_so_in_a_way_that_any_client_can_retry(images):
    with serve(images, options=("--max-requests", "1", "--limit", "100kbit")) as server:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            ticket = flight.Ticket(_request(cut="0:raw").to_bytes())
            reader = client.do_get(ticket)
            with pytest.raises(flight.FlightUnavailableError, match="try again later") as refused:
                client.do_get(ticket).read_all()
            assert json.loads(refused.value.extra_info)["type"] == "RetryableError"
            reader.cancel()
        server.kill()  # it would send for half a minute


def test_opening_takes_a_seat_too(images):
    with serve(images, options=("--max-requests", "1", "--limit", "100kbit")) as server:
        with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
            reader = client.do_get(flight.Ticket(_request(cut="0:raw").to_bytes()))
            opening = flight.Action("open", json.dumps({"dataset": "data", "pipeline": RECIPE.to_spec()}).encode())
            with pytest.raises(flight.FlightUnavailableError, match="try again later"):
                list(client.do_action(opening))
            reader.cancel()
        server.kill()  # it would send for half a minute


def test_options_show_the_defaults_that_hold():
    parse = {"SIZE": parse_bytes, "TIME": parse_seconds, "N": int}
    defaults = Limits()
    assert {name for name, *_ in _OPTIONS} == {field.name for field in fields(Limits)}
    for name, _, kind, shown, _ in _OPTIONS:
        if name != "pixels":
            assert parse[kind](shown) == getattr(defaults, name), name
    assert limits_from({name: None for name, *_ in _OPTIONS}) == defaults
    given = {name: None for name, *_ in _OPTIONS} | {"sample_cpu_s": 0.5, "in_flight_bytes": 2 * 10**9, "requests": 7}
    assert limits_from(given) == Limits(sample_cpu_s=0.5, in_flight_bytes=2 * 10**9, requests=7)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-request-samples", "9000", "request_samples: expected at most 8,192"),
        ("--max-sample-bytes", "2GiB", "sample_bytes: expected at most"),
        ("--max-in-flight", "much", "is not a number of bytes"),
        ("--max-sample-cpu", "0s", "sample_cpu_s: expected a number above 0"),
        ("--max-requests", "0", "0 is not in the range"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(images, option, value, message):
    done = CliRunner().invoke(serve_command, [str(images), "--port", "0", option, value])
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
