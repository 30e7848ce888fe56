"""The way there: connections reset, silence, a link that is cut."""

import time

import pytest

from sophon.bench.proxy import Proxy
from sophon.errors import UnavailableError
from tests.faults.struck import MOMENTS, POLICIES, SLOWLY, Struck
from tests.support.marks import slow
from tests.support.network import can_make_links, far_server
from tests.support.servers import serve
from tests.support.waiting import HANG_S


@pytest.fixture(scope="module")
def server(images):
    with serve(images, options=SLOWLY) as running:
        yield running


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_connections_reset(server, expected, moment, policy):
    with Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        struck = Struck(url, proxy.reset, moment, policy=policy)
        assert struck.digest() == expected


@pytest.mark.parametrize("after_bytes", [*slow(1, 100, 1_000), 20_000, *slow(100_000)])
def test_reset_in_the_middle_of_a_frame_time_and_again(server, expected, after_bytes):
    with Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))

        def fault():
            for _ in range(4):
                proxy.reset_after(after_bytes)
                time.sleep(0.2)

        assert Struck(url, fault, "first batch").digest() == expected
        assert proxy.resets >= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_passes_for_three_seconds(server, expected, policy):
    with Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))

        def fault():
            proxy.pause()
            time.sleep(3)
            proxy.resume()

        assert Struck(url, fault, "mid-stream", policy=policy).digest() == expected


def test_nothing_passes_any_more(server):
    with Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        struck = Struck(url, proxy.pause, "mid-stream", deadline_s=3)
        start_s = time.monotonic()
        with pytest.raises(UnavailableError, match="no answer for 3 s"):
            struck.digest()
        assert time.monotonic() - start_s < HANG_S


@pytest.fixture(scope="module")
def far(images, tmp_path_factory):
    """A server at the other end of a link of its own."""
    if not can_make_links():
        pytest.skip("needs root, and ip")
    with far_server(images, tmp_path_factory.mktemp("far"), SLOWLY) as (link, url):
        yield link, url


@pytest.fixture
def linked(far):
    """A link that is whole, whatever was done to it before."""
    yield far
    far[0].restore()


@pytest.mark.parametrize("seconds", [1, *slow(4)])
def test_the_link_is_cut_and_restored(linked, expected, seconds):
    link, url = linked

    def fault():
        link.cut()
        time.sleep(seconds)
        link.restore()

    assert Struck(url, fault, "mid-stream", policy="2:webp").digest() == expected


def test_the_link_is_cut_for_good(linked):
    link, url = linked
    struck = Struck(url, link.cut, "mid-stream", deadline_s=3)
    start_s = time.monotonic()
    with pytest.raises(UnavailableError, match="no answer for 3 s"):
        struck.digest()
    assert time.monotonic() - start_s < HANG_S
