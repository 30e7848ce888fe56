"""Nodes of the release before, and nodes that are replaced by one while a loader runs."""

import pytest

import sophon
from sophon.errors import ConfigError, Error, ProtocolError
from sophon.link.wire import PROTOCOL, agreed
from tests.support.other_release import WHAT
from tests.support.servers import RECIPE, digest, make_images, serve

EARLIER = ("--import", "tests.support.other_release")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("versions") / "images", 20)


def epochs(url, between=lambda: None):
    own = sophon.Credentials(trusted=True)
    with sophon.DataLoader(url, RECIPE, batch_size=4, seed=3, policy="2:zstd", credentials=own) as loader:
        first = digest(loader)
        between()
        return first, digest(loader), loader.stats.cuts


def test_a_node_of_the_release_before_is_asked_in_its_terms(images, monkeypatch):
    expected = epochs(images)
    monkeypatch.setenv(WHAT, "earlier")
    with serve(images, options=EARLIER) as server:
        found = epochs(server.url)
    assert found[:2] == expected[:2]
    assert "2:zstd" in map(str, found[2]), "it makes cuts as ever"


def test_a_node_may_be_taken_back_to_the_release_before_and_upgraded_again(images, monkeypatch):
    expected = epochs(images)[:2]
    with serve(images) as server:
        command = list(server._command)

        def step(release):
            server.stop()
            monkeypatch.setenv(WHAT, release)
            server._command = [*command, *EARLIER]
            server.start()

        assert epochs(server.url, lambda: step("earlier"))[:2] == expected
        assert epochs(server.url, lambda: step("none"))[:2] == expected


def test_a_node_of_the_release_before_has_no_fields(images, monkeypatch):
    monkeypatch.setenv(WHAT, "earlier")
    with serve(images, options=EARLIER) as server:
        with pytest.raises(ProtocolError, match=r"earlier release.*Credentials\(trusted=True\)"):
            sophon.RemoteDataset(server.url, RECIPE)
        own = sophon.Credentials(trusted=True)
        transport = sophon.RemoteDataset(server.url, RECIPE, credentials=own).transport
        request = sophon.RemoteDataset(server.url, RECIPE, credentials=own).samples.request(0, [0])
        with pytest.raises(ConfigError, match="does not know fields; upgrade it"):
            list(transport.fetch(_with_fields(request), 5))
        transport.close()


def _with_fields(request):
    from dataclasses import replace

    return replace(request, fields=("mask",))


@pytest.mark.parametrize("said", [[1, 2], [2], [1], None, [1, 2, 3], [2, 7, "x"], "2", {}])
def test_the_highest_version_that_both_speak_is_used(said):
    expected = max(v for v in (1, 2) if v in (said if isinstance(said, list) else [1]))
    assert agreed(said) == expected <= PROTOCOL


@pytest.mark.parametrize("said", [[], [0], [3], [99, 100], ["1"], [True + 2]])
def test_releases_that_are_too_far_apart_are_told_so(said):
    with pytest.raises(Error, match="upgrade the older of the two"):
        agreed(said)
