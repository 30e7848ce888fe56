"""Relays whose nodes announced themselves, and may have several owners: a real relay and a real node."""

import socket
from contextlib import ExitStack

import pytest

import sophon
from sophon.errors import AccessError, Error
from sophon.server.access import Tokens
from sophon.server.budget import CpuBudget
from sophon.server.process import ServerConfig
from sophon.server.relay.behind import Behind, read_behind
from sophon.server.relay.executor import RelayExecutor
from sophon.server.relay.passed import PassedTokens
from sophon.server.relay.process import run_relay
from sophon.server.relay.upstream import Upstream
from tests.support.epochs import epochs_digest
from tests.support.relays import LocalRelay
from tests.support.servers import RECIPE, digest, make_images, serve

READER, OTHER = "reader-token-0123456789", "other-token-0123456789"
QUICK = ("--isolation", "thread")


@pytest.fixture
def silent():
    """A node that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        yield place
        place.setblocking(False)
        with pytest.raises(BlockingIOError):
            place.accept()  # nobody has even asked it


def test_a_token_is_shown_to_nodes_of_data_sets_that_it_may_read_and_to_no_others(silent):
    passed, budget = PassedTokens(), CpuBudget(1)
    mine = Upstream([f"grpc://127.0.0.1:{silent.getsockname()[1]}/mine"], tokens=passed)
    readers = Tokens.parse(f"{READER} nosuch\n", "tokens")
    relay = RelayExecutor({"mine": mine, "mine~2": mine}, budget, tokens=passed, readers=readers)
    try:
        for token in (READER, OTHER):
            rights = passed.rights_of(f"Bearer {token}")
            assert relay.names(rights) == []
            with pytest.raises(AccessError, match="no data set of this relay"):
                relay.admitted(rights, "10.0.0.1")
            with pytest.raises(AccessError, match="gives access to none"):
                relay.describe({"dataset": "mine"}, rights)
    finally:
        relay.close()
        budget.close()


@pytest.mark.slow
def test_nodes_of_others_keep_no_relay_from_working_and_see_no_token(tmp_path, silent):
    images = make_images(tmp_path / "train", 8)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{READER} train\n")
    with ExitStack() as stack:
        mine = f"grpc://127.0.0.1:{silent.getsockname()[1]}/mine"
        node = stack.enter_context(serve(images, name="train", options=("--token-file", str(tokens), *QUICK)))
        told = Behind(
            {"bad": ("grpc://h:99999/bad",), "mine": (mine,), "train": ("grpc://[:::%]:1/train", node.url)},
            needs_tokens=True,
            readers=Tokens.parse(f"{READER} train\n{OTHER} nosuch\n", "tokens"),
        )
        (tmp_path / "nodes").write_bytes(told.to_json())
        options = ("--announced", str(tmp_path / "nodes"), *QUICK)
        relay = stack.enter_context(LocalRelay(name="train", options=options))

        def batches(token):
            return sophon.DataLoader(
                relay.url,
                RECIPE,
                batch_size=4,
                shuffle=True,
                seed=5,
                num_workers=1,
                credentials=sophon.Credentials(token),
            )

        opened = batches(READER)
        assert digest(batch for _ in range(2) for batch in opened) == epochs_digest(images, 5, 4)
        for token in (OTHER, "nobody-token-0123456789"):
            with pytest.raises(AccessError, match="no data set of this relay"):
                batches(token)


def test_a_relay_without_any_usable_address_says_so():
    with pytest.raises(Error, match="no node whose address can be used"):
        run_relay(Behind({"bad": ("grpc://h:99999/bad",)}, needs_tokens=True), ServerConfig(port=0), print)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": [], "needs_tokens": true}', '{"nodes": {"a": 3}}'])
def test_a_file_of_nodes_that_is_none_is_an_error_that_says_so(tmp_path, text):
    (tmp_path / "nodes").write_text(text)
    with pytest.raises(Error, match="--announced"):
        read_behind(tmp_path / "nodes")
