"""Relays that a registry knows of, asks for and runs: pure where time passes, real processes where they are started."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import sophon
from sophon.cluster.relays import Demand, RelayCommand
from sophon.cluster.roll import Roll
from sophon.cluster.steady import Steady
from sophon.errors import AccessError, ProtocolError
from sophon.link.credentials import Credentials
from sophon.link.membership import Held, NodeRecord, TrainerReport, dataset_of
from sophon.link.registry import RegistryClient
from sophon.plan.scaling import Bounds
from sophon.server.access import EVERYTHING, Rights, Tokens
from sophon.server.relay.behind import Behind, read_behind
from tests.support.epochs import epochs_digest
from tests.support.registries import Registry
from tests.support.relays import LocalRelay
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import wait_until

COUNT, BATCH, SEED = 24, 4, 5
QUICK = ("--isolation", "thread")
pytestmark = pytest.mark.filterwarnings("default::sophon.AwayWarning")


def report(trainer="a", bottleneck="trainer", waited=0.5, relay=0.0):
    return TrainerReport("train", trainer, bottleneck, waited, relay)


# --- how many ---------------------------------------------------------------------------------------------------------


def demand_after(demand, seconds, start, running, told=None):
    for second in range(start, start + seconds):
        if told is not None:
            demand.heard(told, float(second))
        demand.look(running, float(second))
    return demand.wanted


def test_relays_are_wanted_while_trainers_wait_for_cpu_and_no_more_before_they_have_come_up():
    demand = Demand(Bounds(0, 4))
    assert demand_after(demand, 9, 0, 0, report()) == 0
    assert demand_after(demand, 5, 9, 0, report()) == 1
    assert demand_after(demand, 60, 14, 0, report()) == 1  # the first has not come up
    assert demand_after(demand, 15, 74, 1, report()) == 2
    assert demand_after(demand, 60, 89, 4, report()) == 4


def test_relays_go_one_by_one_when_nobody_needs_them():
    demand = Demand(Bounds(1, 4, rest_s=20.0))
    assert demand_after(demand, 80, 0, 4, report()) == 4
    idle = report(bottleneck="link")
    assert demand_after(demand, 15, 80, 4, idle) == 4
    assert demand_after(demand, 30, 95, 4, idle) == 3 - 1
    assert demand_after(demand, 300, 125, 4, idle) == 1


def test_trainers_that_are_gone_and_resources_of_other_releases_count_for_nothing():
    demand = Demand(Bounds(0, 4))
    assert demand_after(demand, 60, 0, 4, report(bottleneck="flux capacitor")) == 0
    demand.heard(report("b"), 60.0)
    assert demand.trainers == 2
    assert demand_after(demand, 1, 200, 4) == 0
    assert demand.trainers == 0


def test_trainers_of_one_token_leave_space_for_those_of_another_with_the_same_names():
    demand = Demand(Bounds(0, 4))
    for number in range(4100):
        demand.heard(report(f"t{number}", bottleneck="link"), 0.0, tenant=1)
    full = demand.trainers
    for second in range(15):
        demand.heard(report("t7"), float(second), tenant=2)
        demand.look(0, float(second))
    assert demand.trainers == full
    assert demand.wanted == 1


def test_reports_are_bounded():
    assert TrainerReport.from_json(report().to_json()) == report()
    for wrong in (
        {"dataset": "train", "waited_share": 1.5},
        {"dataset": "a/b"},
        {"dataset": "train", "trainer": "x" * 300},
        {"dataset": "train", "relay_share": True},
    ):
        with pytest.raises(ProtocolError):
            TrainerReport.from_json(json.dumps(wrong).encode())


# --- where they are ---------------------------------------------------------------------------------------------------


def test_a_relay_has_a_name_for_each_part_and_is_no_holder():
    roll = Roll(0.0, settle_s=0.0)
    for number in (1, 2):
        held = Held(f"f{number}", 5, f"{number}/2", "w")
        roll.announce(NodeRecord(f"n{number}", f"grpc://n{number}:1", datasets={"train": held}), 0.0)
    assert roll.upstreams(0.0) == {"train~1": ["grpc://n1:1/train"], "train~2": ["grpc://n2:1/train"]}
    names = dict.fromkeys(roll.upstreams(0.0), Held())
    assert {dataset_of(name) for name in names} == {"train"}
    roll.announce(NodeRecord("r", "grpc://r:1", "relay", datasets=names), 0.0)
    assert roll.datasets() == ["train"]
    assert sorted(roll.relays("train", 1.0)) == ["grpc://r:1/train~1", "grpc://r:1/train~2"]
    assert roll.relays("train", 100.0) == []
    assert [part.urls for part in roll.parts("train", 1.0)] == [("grpc://n1:1",), ("grpc://n2:1",)]


def test_a_relay_is_told_of_its_nodes_by_a_file_that_no_name_can_turn_into_anything_else(tmp_path):
    command = RelayCommand("127.0.0.1", 0.5, tmp_path / "new", QUICK)

    def told(nodes, readers=None):
        name, option, path, *more = command.arguments(Behind(nodes, readers is not None, readers))
        assert [name, option, *more] == ["relay", "--announced", "--host", "127.0.0.1", "--cores", "0.5", *QUICK]
        assert [str(one) for one in (tmp_path / "new").iterdir()] == [path]
        return path, read_behind(Path(path))

    first, behind = told({"train~1": ["grpc://b:1/train", "grpc://a:1/train"]})
    assert behind == Behind({"train~1": ("grpc://a:1/train", "grpc://b:1/train")})
    assert told({"train~1": ["grpc://a:1/train", "grpc://b:1/train"]})[0] == first  # it need not be started again
    readers = Tokens.parse("reader-0123456789 train val\nanother-0123456789 *\n", "tokens")
    second, behind = told({"train~1": ["grpc://a:1/train", "grpc://b:1/train"]}, readers)
    assert second != first
    assert "reader-0123456789" not in Path(second).read_text()
    assert behind.needs_tokens
    assert behind.readers.rights_of("Bearer reader-0123456789") == Rights(frozenset({"train", "val"}))
    assert behind.readers.rights_of("Bearer another-0123456789") == EVERYTHING
    odd = {"--debug": ["grpc://a:1/--debug"], "x=y": ["grpc://a:1/x=y"]}
    many = {f"n{n}": [f"grpc://{'h' * 200}:{n}/train"] for n in range(20_000)}  # too long for a command line
    for nodes in (odd, many):
        assert told(nodes)[1].nodes == {name: tuple(urls) for name, urls in nodes.items()}


def test_relays_are_started_again_at_once_and_then_ever_more_seldom_while_nodes_come_and_go():
    steady = Steady({})
    calm = [steady.look({"train": 1}, now_s) for now_s in range(10)]
    assert calm == [{"train": 1}] * 10
    seen = [str(steady.look({"train": 1, "mine": now_s}, float(now_s))) for now_s in range(10, 610)]
    assert seen[0] == str({"train": 1, "mine": 10})
    assert len(set(seen)) <= 15  # of 600
    assert steady.look({"train": 1}, 700.0) == {"train": 1}
    assert steady.look({"train": 2}, 900.0) == {"train": 2}
    assert steady.look({"train": 3}, 901.0) == {"train": 3}


# --- real processes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("relays") / "train", COUNT)


def node(images, registry, *options):
    return serve(images, name="train", options=("--registry", registry.url, *QUICK, *options))


def opened(registry):
    return sophon.DataLoader(f"{registry.url}/train", RECIPE, batch_size=BATCH, shuffle=True, seed=SEED, num_workers=2)


def relays_of(loader):
    sources = loader.dataset.samples.sources
    sources.failed(0)  # look again soon
    sources.follow([0], 0)
    return sources.relays


def test_a_relay_that_announces_itself_is_found_behind_the_registrys_address(images, tmp_path):
    with Registry(tmp_path) as registry, node(images, registry) as server:
        registry.wait_for(1)
        loader = opened(registry)
        options = (*QUICK, "--registry", registry.url)
        with LocalRelay(server.url, name="train", options=options):
            registry.wait_for(2)
            wait_until(lambda: len(relays_of(loader)) == 1, "the relay is not found")
            batches = digest(batch for _ in range(2) for batch in loader)

            def reported():
                relays_of(loader)
                return registry.status()["relays"]["trainers"] == 1

            wait_until(reported, "the trainer does not say what holds it up")
        assert batches == epochs_digest(images, SEED, BATCH)
        wait_until(lambda: not relays_of(loader), "the relay is not forgotten")


@pytest.mark.slow
def test_a_registry_runs_the_relays_that_trainers_need(images, tmp_path):
    options = ("--relays", "1-2", "--relay-cores", "0.5", "--relay-folder", str(tmp_path / "relays"))
    with ExitStack() as stack:
        registry = stack.enter_context(Registry(tmp_path, *options, "--relay-option=--isolation=thread"))
        for part in ("1/2", "2/2"):
            stack.enter_context(node(images, registry, "--part", part))
        registry.wait_for(2)
        wait_until(lambda: registry.status()["relays"]["running"] == 1, "no relay was started")
        loader = opened(registry)
        wait_until(lambda: len(relays_of(loader)) == 2, "one relay, under two names, is not found")
        assert digest(batch for _ in range(2) for batch in loader) == epochs_digest(images, SEED, BATCH)
        client = RegistryClient(registry.url)

        def wants_two():
            client.action("report", report().to_json())
            return registry.status()["relays"]["running"] == 2

        wait_until(wants_two, "a second relay was not started")
        pids = [json.loads(path.read_bytes())["pid"] for path in tmp_path.glob("relays/*/ready.json")]
        assert len(pids) == 2
        assert registry.end() == 0
        assert not any(map(_is_running, pids))


def _is_running(pid):
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_only_who_may_read_a_data_set_may_report(tmp_path):
    readers, nodes = tmp_path / "readers", tmp_path / "nodes"
    readers.write_text("reader-of-train-0123456789 train\nreader-of-other-0123456789 other\n")
    nodes.write_text("node-0123456789012345 *\n")
    options = ("--token-file", str(readers), "--node-token-file", str(nodes))
    for path in (readers, nodes):
        path.chmod(0o600)
    with Registry(tmp_path, *options) as registry:
        asked = RegistryClient(registry.url, Credentials("reader-of-train-0123456789")).action(
            "report", report().to_json()
        )
        assert json.loads(asked) == {"relays": 0}
        with pytest.raises(AccessError, match="train"):
            RegistryClient(registry.url, Credentials("reader-of-other-0123456789")).action("report", report().to_json())
