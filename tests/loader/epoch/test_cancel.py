"""A fetch that is cancelled while it begins with its next part ends there, whatever it is made of."""

import pytest

from sophon.codec.cut import Cut
from sophon.link.transport import Opened, Transport
from sophon.link.wire import Request
from sophon.loader.sources.prefix_cache import CachedTransport, PrefixCache
from sophon.loader.sources.source import Source
from tests.support.servers import RECIPE


class _Cancels(Transport):
    """Is told to stop the outer fetch just when it is asked for one; its own would wait for ever."""

    address = "grpc://node:1/data"

    def __init__(self):
        self.outer = None

    def open(self, pipeline):  # noqa: ARG002 - part of the contract
        return Opened("data", 4, "same")

    def fetch(self, request, timeout_s):  # noqa: ARG002 - part of the contract
        self.outer.cancel()
        return iter(lambda: pytest.fail("it is read from"), None)

    def close(self):
        pass


@pytest.mark.parametrize("kind", ["source", "cache"])
def test_a_fetch_that_is_cancelled_while_it_begins_is_not_read_from(tmp_path, kind):
    inner = _Cancels()
    cut = Cut(1 if kind == "cache" else 0)
    kept = PrefixCache(tmp_path, cut, 1000)
    outer = CachedTransport(inner, kept, RECIPE, cut) if kind == "cache" else Source(inner, RECIPE)
    request = Request(
        dataset="data",
        dataset_fingerprint="same",
        pipeline=RECIPE.to_spec(),
        seed=0,
        epoch=0,
        samples=(0, 1),
        cuts=(cut, cut),
        columns=(),
    )
    inner.outer = outer.fetch(request, 1.0)
    assert list(inner.outer) == []
