"""Right bytes for the right sample: a node that sends other samples' valid bytes is found out, and named."""

import struct
from dataclasses import replace

import pytest
from click.testing import CliRunner

import sophon
from sophon.bundle import pack, unpack
from sophon.cli.index import index
from sophon.codec import RAW, Cut, make_payload
from sophon.errors import ArtifactError, ConfigError, ProtocolError
from sophon.link.closed import CLOSED_SCHEMA, enclosed, nothing
from sophon.link.wire import Reply, StreamClock, batch_of
from sophon.loader.sources.assignment import Assignment
from sophon.loader.sources.verified import VerifiedTransport
from sophon.pipeline.probe import digests
from sophon.store import open_store
from sophon.store.digests import Digests, write_digests
from tests.support.liar import ANSWER, Liar
from tests.support.relays import LocalRelay
from tests.support.servers import RECIPE, digest, make_images, serve

COUNT = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of pictures, its store and its digests."""
    folder = make_images(tmp_path_factory.mktemp("data") / "train", COUNT)
    store = open_store(folder)
    path = folder.parent / "digests.parquet"
    assert write_digests(store, path, threads=2) == 0
    return folder, store, path


def _node(store, mistake, **lies):
    """Return a node that serves a store, but for one sample, where it makes a mistake; it may lie at opening, too."""

    def stream(request):
        replies = []
        for position, asked in enumerate(request.samples):
            cut, told = request.cuts[position], 0
            sample = asked % len(store)
            taken = sample
            if sample == 7 and mistake in ("another file", "another of both") and cut == RAW:
                taken = 3
            if sample == 7 and mistake in ("another cut", "another of both") and cut != RAW:
                taken = 3
            if mistake == "everything":
                taken = 3
            if sample == 7 and mistake == "another label":
                told = 1
            data = store.read(taken)
            payload = data if cut == RAW else make_payload(RECIPE, data, request.key(position), cut)
            label = (int(store.manifest.labels[sample]) + told) % 3
            replies.append(Reply(position, cut, payload, label))
        return CLOSED_SCHEMA, iter([(nothing(), StreamClock().to_bytes()), (nothing(), enclosed(batch_of(replies)))])

    said = {
        **ANSWER,
        "samples": len(store),
        "fingerprint": store.manifest.fingerprint,
        "classes": list(store.manifest.classes),
        "has_labels": True,
        "max_cut": RECIPE.max_cut,
        "digests": digests(RECIPE),
        **lies,
    }
    return Liar(said, stream)


def _loader(url, path, samples="all", **more):
    faults = sophon.Faults(deadline_s=10, verify=sophon.Verify(path, samples))
    return sophon.DataLoader(url, RECIPE, batch_size=4, num_workers=1, faults=faults, **more)


@pytest.mark.parametrize(
    ("mistake", "policy"),
    [("another file", "none"), ("another label", "none"), ("another cut", "2:zstd"), ("another of both", "2:zstd")],
)
def test_a_node_that_lies_about_a_sample_is_found_out_and_named(data, mistake, policy):
    _, store, path = data
    with _node(store, mistake) as liar, pytest.raises(ProtocolError, match=f"{liar.url} lied about sample 7: it sent"):
        list(_loader(liar.url, path, policy=policy))


def test_nothing_was_noticed_without(data):
    _, store, _ = data
    with _node(store, "another file") as liar:
        batches = list(sophon.DataLoader(liar.url, RECIPE, batch_size=4, num_workers=1, policy="none"))
    assert sum(len(batch[0]) for batch in batches) == COUNT


@pytest.mark.parametrize("policy", ["none", "2:zstd", "3:webp"])
def test_an_honest_node_passes_and_the_tensors_are_the_same(data, policy):
    folder, _, path = data
    expected = digest(sophon.DataLoader(folder, RECIPE, batch_size=4))
    with serve(folder) as server:
        assert digest(_loader(server.url, path, policy=policy)) == expected
        assert digest(_loader(server.url, path, "sampled", policy=policy)) == expected


def test_local_files_are_checked_too(data, tmp_path):
    folder, store, path = data
    list(_loader(folder, path))
    broken = tmp_path / "broken.parquet"
    other = open_store(make_images(tmp_path / "other", COUNT + 1))
    write_digests(other, broken)
    with pytest.raises(ConfigError, match="digests do not belong to"):
        _loader(folder, broken)
    with pytest.raises(ArtifactError):
        _loader(folder, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="expected sampled or all"):
        sophon.Verify(path, "some")
    assert len(store) == COUNT


def test_sophon_index_writes_digests(data, tmp_path):
    folder, store, _ = data
    out = tmp_path / "d.parquet"
    done = CliRunner().invoke(index, [str(folder), "--out", str(tmp_path / "w"), "--digests", str(out)])
    assert done.exit_code == 0, done.output
    found = Digests.load(out)
    assert (len(found), found.fingerprint) == (COUNT, store.manifest.fingerprint)
    for sample in range(COUNT):
        assert found.problem(sample, store.read(sample), int(store.manifest.labels[sample])) is None
        assert "digest" in found.problem(sample, store.read(sample) + b"x", 0)


def test_a_share_is_checked_that_nobody_can_foresee(data):
    _, store, path = data

    class Counted(Digests):
        looked = 0

        def problem(self, *args):
            self.looked += 1
            return super().problem(*args)

    counted = Digests.load(path)
    counted.__class__ = Counted
    transport = VerifiedTransport(sophon.RemoteDataset(store.path, RECIPE).transport, counted, "sampled", RECIPE)
    request = sophon.RemoteDataset(store.path, RECIPE, policy="none").samples.request(0, [0])
    reply = Reply(0, RAW, store.read(int(request.samples[0])), int(store.manifest.labels[int(request.samples[0])]))
    for _ in range(6400):
        transport.check(reply, request, 10)
    assert 100 < counted.looked < 320  # 200 are to be expected


@pytest.mark.parametrize("cut", ["2:zstd", "0:window", "1:webp"])
def test_a_picture_that_targets_follow_is_checked_with_its_size(data, cut):
    _, store, path = data
    joint = RECIPE.along([])  # its targets are columns: no field crosses the link
    transport = VerifiedTransport(sophon.RemoteDataset(store.path, RECIPE).transport, Digests.load(path), "all", RECIPE)
    request = sophon.RemoteDataset(store.path, RECIPE, policy=cut).samples.request(0, [0])
    request = replace(request, pipeline=joint.to_spec())
    sample = int(request.samples[0])
    honest = make_payload(joint, store.read(sample), request.key(0), Cut.parse(cut))
    label = int(store.manifest.labels[sample])
    transport.check(Reply(0, Cut.parse(cut), honest, label), request, 10)
    picture, size = unpack(honest, 2)
    height, width = struct.unpack("<II", size)
    lies = [(height + 1, width)] + ([(0, 0)] if cut != "0:window" else [])  # with a window the whole size comes anyway
    for told in lies:
        lie = pack([bytes(picture), struct.pack("<II", *told)])
        with pytest.raises(ProtocolError, match="lied about sample"):
            transport.check(Reply(0, Cut.parse(cut), lie, label), request, 10)


def test_a_sample_that_comes_again_in_an_epoch_is_no_lie(data):
    folder, _, path = data
    twice = [*range(COUNT), 7, 7]
    expected = digest(sophon.DataLoader(folder, RECIPE, batch_size=4, sampler=twice))
    with serve(folder) as server:
        for policy in ("none", "2:zstd"):
            assert digest(_loader(server.url, path, policy=policy, sampler=twice)) == expected


@pytest.mark.parametrize("lie", [{"samples": 1}, {"samples": 2 * COUNT}, {"has_labels": False}])
def test_a_node_that_tells_the_right_fingerprint_of_other_data_is_found_out(data, lie):
    _, store, path = data
    with _node(store, "", **lie) as liar, pytest.raises(ProtocolError, match=f"{liar.url} lied about its data set"):
        list(_loader(liar.url, path, policy="none"))


def test_what_was_kept_without_a_check_is_not_used_with_one(data, tmp_path):
    folder, store, path = data
    steady = sophon.Pipeline([sophon.ops.Decode(), sophon.ops.Resize((32, 32)), sophon.ops.ToTensor()])
    cache = sophon.Cache("1:raw", tmp_path)
    with _node(store, "everything", max_cut=0, digests=[]) as liar, pytest.warns(sophon.OffloadWarning):
        list(sophon.DataLoader(liar.url, steady, batch_size=4, cache=cache))
    faults = sophon.Faults(verify=sophon.Verify(path, "all"))
    expected = digest(sophon.DataLoader(folder, steady, batch_size=4))
    with serve(folder) as server:
        for reads in (COUNT, 0):
            loader = sophon.DataLoader(server.url, steady, batch_size=4, cache=cache, faults=faults)
            assert digest(loader) == expected
            assert loader.stats.cached == COUNT - reads


def test_what_a_lying_node_sent_is_not_taken_from_the_cache_for_an_honest_one(data, tmp_path):
    folder, store, _ = data
    cache = sophon.Cache("0:raw", tmp_path / "cache")
    expected = digest(sophon.DataLoader(folder, RECIPE, batch_size=4))
    with serve(folder) as server:
        with _node(store, "everything", state=sophon.RemoteDataset(server.url, RECIPE).opened.state) as liar:
            lied = digest(sophon.DataLoader(liar.url, RECIPE, batch_size=4, cache=cache))
        assert lied != expected
        assert digest(sophon.DataLoader(server.url, RECIPE, batch_size=4, cache=cache)) == expected


def test_what_comes_through_a_relay_is_checked_too(data):
    folder, _, path = data
    expected = digest(sophon.DataLoader(folder, RECIPE, batch_size=4))
    with serve(folder) as node, LocalRelay(node.url) as relay:
        loader = _loader([node.url, relay.url], path, policy="none")
        loader.dataset.samples.assignment = Assignment((Cut(2, "zstd"),), None, (RAW,))
        assert digest(loader) == expected
        assert loader.stats.relayed == COUNT
