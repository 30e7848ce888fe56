"""Wrong uses: each ends at once, in one or two lines that say what to do instead."""

from __future__ import annotations

import json
import re
import secrets
import socket
import time
import warnings
from pathlib import Path

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

import sophon
from sophon import (
    Cache,
    Credentials,
    DataLoader,
    Faults,
    Output,
    Planning,
    Ranks,
    RemoteDataset,
    Workers,
    ops,
)
from tests.support.command import refusal
from tests.support.launching import free_port
from tests.support.pictures import encode, scene
from tests.support.servers import RECIPE, make_images, serve

TOKEN = secrets.token_urlsafe(24)
LONGEST = 500  # characters: two lines of a wide terminal, and a long path


class Place:
    """What the cases share: pictures, a server that wants a token, files that are not what they should be."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.images = folder / "images"
        self.url = url
        self.node = url.rpartition("/")[0]

    def file(self, name: str, text: str | bytes = "") -> Path:
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def loader(self, *arguments, **settings) -> DataLoader:
        return DataLoader(self.images, RECIPE, *arguments, **settings)

    def remote(self, url: str, **settings) -> RemoteDataset:
        return RemoteDataset(url, RECIPE, **{"credentials": Credentials(TOKEN)} | settings)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    images = make_images(folder / "images", 6)
    (folder / "empty").mkdir()
    (folder / "tokens").write_text(f"{TOKEN} *\n")
    with serve(images, name="train", options=("--token-file", str(folder / "tokens"))) as server:
        yield Place(folder, server.url)


def _taken_port() -> tuple[socket.socket, int]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


def _busy(place):
    listener, port = _taken_port()
    with listener:
        return refusal("serve", str(place.images), "--port", str(port))


def _other_state(place):
    state = place.loader(seed=3).state_dict()
    place.loader(seed=4).load_state_dict(state)


def _other_plan(place):
    return place.loader(policy=place.file("plan.parquet", "no plan"))


def _no_pipeline(place, text):
    return refusal("probe", str(place.images), "--pipeline", str(place.file("recipe.json", text)))


def _serve(place, *more):
    return refusal("serve", str(place.images), *map(str, more))


def _with_tokens(place, text):
    return _serve(place, "--token-file", place.file("other-tokens", text))


def _listed(place, text):
    return DataLoader(place.file("list.csv", text), RECIPE)


# What is done, and what the answer must say: the remedy.
ARGUMENTS = {
    "no samples in a batch": (lambda p: p.loader(batch_size=0), "batch_size: expected .* at least 1, got 0"),
    "a batch size of text": (lambda p: p.loader(batch_size="64"), "batch_size: expected an integer"),
    "fewer than no workers": (lambda p: p.loader(num_workers=-1), "num_workers: expected .*at least 0"),
    "workers of another word": (lambda p: p.loader(num_workers="many"), 'num_workers: expected .*"auto"'),
    "a kind of workers": (lambda p: p.loader(num_workers=Workers(1, kind="green")), "threads.*processes"),
    "shuffle and a sampler": (
        lambda p: p.loader(shuffle=True, sampler=SequentialSampler(range(6))),
        "sampler.*shuffle|shuffle.*sampler",
    ),
    "a batch sampler and a batch size": (
        lambda p: p.loader(batch_size=2, batch_sampler=BatchSampler(SequentialSampler(range(6)), 2, False)),
        "batch_sampler.*batch_size",
    ),
    "a sampler without a length": (
        lambda p: p.loader(sampler=iter(range(6))),
        "give it a __len__, or use a RemoteData",
    ),
    "prefetching nothing": (lambda p: p.loader(prefetch_factor=0), "prefetch_factor: expected .*at least 1"),
    "a timeout before now": (lambda p: p.loader(timeout=-1), "timeout: expected"),
    "an unknown policy": (lambda p: p.loader(policy="fastest"), "expected policy none, .*optimal.* or a cut such as"),
    "a cut beyond the pipeline": (lambda p: p.loader(policy="9:raw"), "9:raw; choose from 0:raw"),
    "an unknown codec": (lambda p: p.loader(policy="2:gif"), "gif.*webp"),
    "a lossy cut": (lambda p: p.loader(policy="2:jpeg"), "allow_lossy=True"),
    "an unknown order": (lambda p: p.loader(order="random"), "order: expected 'strict', 'relaxed'"),
    "an unknown reaction to errors": (lambda p: p.loader(on_error="ignore"), "on_error: expected .*substitute"),
    "an unknown output": (lambda p: p.loader(output="jax"), "output: expected .*torch.*numpy"),
    "a seed below zero": (lambda p: p.loader(seed=-1), "seed must be an integer in 0"),
    "no pipeline": (lambda p: DataLoader(p.images), r"the simplest one is ToTensor\(\)"),
    "a pipeline of numbers": (lambda p: DataLoader(p.images, [1, 2]), r"such as \[ops.Decode\(\), ops.ToTensor\(\)\]"),
    "a crop before decoding": (
        lambda p: DataLoader(p.images, [ops.RandomResizedCrop(8), ops.ToTensor()]),
        r"begin the pipeline with Decode\(\)",
    ),
    "a crop of nothing": (lambda _: ops.RandomResizedCrop(0), "size: expected"),
    "a cache of what is random": (lambda p: p.loader(cache="2:webp"), "cache: .*such as 1:raw"),
    "a cache and a policy": (lambda p: p.loader(cache=True, policy="all"), "leave out policy and plan"),
    "a cache of no bytes": (lambda p: p.loader(cache=Cache(most_bytes=0)), "most_bytes: expected .*at least 1"),
    "an unknown column": (
        lambda p: p.loader(output=Output(columns=("caption",))),
        "no column 'caption'.*choose from",
    ),
    "a deadline before now": (lambda p: p.loader(faults=Faults(deadline_s=0)), "deadline_s: expected"),
    "a rank beyond its world": (
        lambda p: p.loader(ranks=Ranks(rank=5, size=2)),
        "expected a rank in 0 … size - 1",
    ),
    "a state of another run": (_other_state, "Create the loader as it was when the state was saved"),
    "a share beyond the whole": (lambda p: p.loader(policy=Planning(share=2.0)), "share: expected"),
}
ADDRESSES = {
    "no port": (lambda p: p.remote("grpc://storage/train"), "expected an address like grpc://host:port/dataset"),
    "no data set": (lambda p: p.remote("grpc://storage:7077"), "expected an address like grpc://host:port/dataset"),
    "an unknown scheme": (lambda p: p.remote("http://storage:7077/train"), "grpc://"),
    "a password": (
        lambda p: p.remote("grpc://me:secret@storage:7077/train"),
        "expected an address like grpc://host:port",
    ),
    "a path among nodes": (lambda p: p.remote([p.url, str(p.images)]), r"pass it as Faults\(fallback="),
    "a node twice": (lambda p: p.remote([p.url, p.url]), "give each storage node once"),
    "no node": (lambda p: p.remote([]), "expected an address, a path, or a list of addresses"),
    "a node to fall back on": (
        lambda p: p.remote(p.url, faults=Faults(fallback="grpc://other:7077/train")),
        "give several nodes as a list",
    ),
    "a port where nobody listens": (
        lambda p: p.remote(f"grpc://127.0.0.1:{free_port()}/train", faults=Faults(deadline_s=1)),
        "nothing is listening on that port.*Is `sophon serve` running there",
    ),
    "a host that nobody knows": (
        lambda p: p.remote("grpc://no-such-host.invalid:7077/train", faults=Faults(deadline_s=1)),
        "host name cannot be resolved.*Is `sophon serve` running there",
    ),
    "another data set": (lambda p: p.remote(f"{p.node}/val"), "no data set 'val' here; available: train"),
    "TLS with a node that has none": (
        lambda p: p.remote(p.url.replace("grpc://", "grpc+tls://")),
        r"use grpc:// instead of grpc\+tls://",
    ),
    "an authority without TLS": (
        lambda p: p.remote(p.url, credentials=Credentials(TOKEN, tls_ca=p.file("ca.pem"))),
        r"tls_ca needs an address like grpc\+tls://",
    ),
}
TOKENS = {
    "no token": (
        lambda p: p.remote(p.url, credentials=Credentials()),
        "or set SOPHON_TOKEN",
    ),
    "a wrong token": (
        lambda p: p.remote(p.url, credentials=Credentials("x" * 32)),
        "compare it with the node's --token-file",
    ),
    "two tokens": (lambda p: p.remote(p.url, credentials=Credentials("a\nb")), "give one of them"),
    "a hash for a token": (
        lambda p: p.remote(p.url, credentials=Credentials("sha256:00")),
        "give the token itself",
    ),
    "a token file that is not there": (
        lambda p: _serve(p, "--token-file", "nowhere"),
        "nowhere cannot be read.*check the path",
    ),
    "a token that can be guessed": (lambda p: _with_tokens(p, "secret *"), "make one with python"),
    "a token for nothing": (lambda p: _with_tokens(p, TOKEN), "names of data sets after the token, or [*] for all"),
    "a token for what is not here": (
        lambda p: _with_tokens(p, f"{TOKEN} val"),
        "'val' here; available: images",
    ),
    "a public address without tokens": (lambda p: _serve(p, "--host", "0.0.0.0"), "give --token-file"),
    "half a certificate": (
        lambda p: _serve(p, "--tls-cert", "x.pem"),
        "--tls-cert and --tls-key go together; give both",
    ),
}
FILES = {
    "a path where nothing is": (
        lambda p: DataLoader(p.folder / "nowhere", RECIPE),
        "nowhere; check the spelling",
    ),
    "an empty folder": (lambda p: DataLoader(p.folder / "empty", RECIPE), "is empty; expected pictures, class folders"),
    "a text": (
        lambda p: DataLoader(p.file("notes.txt", "hello"), RECIPE),
        "is not a data set; expected a folder",
    ),
    "a tar that is none": (lambda p: DataLoader(p.file("x.tar", "no tar"), RECIPE), "Copy or pack the shard again"),
    "a listing without paths": (lambda p: _listed(p, "a,label\n1,2\n"), "path"),
    "a listing of what is not there": (lambda p: _listed(p, "path\nnowhere.jpg\n"), "put it there, remove the row"),
    "a listing that leads out": (lambda p: _listed(p, "path\n../../etc/passwd\n"), "put the listing above its files"),
    "a condition on what is not there": (
        lambda p: DataLoader(f"{p.images}?where=colour = 1", RECIPE),
        "'colour'; choose from id",
    ),
    "a plan that is none": (_other_plan, "plan.parquet.*give a file that sophon saved"),
    "a plan that is not there": (lambda p: p.loader(policy=p.folder / "no.plan"), "no.plan.*check the path"),
    "a pipeline that is no JSON": (lambda p: _no_pipeline(p, "{"), r"give the output of pipeline.to_json\(\)"),
    "a pipeline of an unknown op": (
        lambda p: _no_pipeline(p, json.dumps({"format": 1, "ops": [{"op": "NoOp", "version": 1}]})),
        "unknown op 'NoOp'; sophon.OPS lists the known ops",
    ),
    "a port that is taken": (_busy, "choose another --host or --port"),
    "two data sets of one name": (lambda p: _serve(p, f"images={p.folder / 'empty'}"), "write NAME="),
    "a command that there is not": (lambda _: refusal("frobnicate"), "Try '.* --help' for help"),
    "nothing to serve": (lambda _: refusal("serve"), r"Missing argument .*PATH"),
    "a module that is not there": (
        lambda p: _serve(p, "--import", "no_such_module"),
        "in PYTHONPATH",
    ),
    "a report of a picture": (
        lambda p: refusal("report", str(p.file("x.jpg", encode(scene(8, 8, 1), "jpeg 4:2:0")))),
        "give a result of .* a profile or a plan",
    ),
}
ALL = {
    f"{group}: {name}": case
    for group, cases in (("argument", ARGUMENTS), ("address", ADDRESSES), ("token", TOKENS), ("file", FILES))
    for name, case in cases.items()
}


def test_there_are_enough_of_them():
    assert len(ALL) >= 40


def _answer(use, place):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sophon.AwayWarning)
            return use(place), []
    except sophon.Error as error:
        return str(error), getattr(error, "__notes__", [])


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_use_is_told_in_two_lines_with_what_to_do(place, name):
    use, remedy = ALL[name]
    begun_s = time.process_time()
    said, notes = _answer(use, place)
    # Of our own CPU, which no busy machine makes more; who waits for a node is bounded by its deadline above.
    assert time.process_time() - begun_s < 5
    assert not notes, "a traceback of the node"
    assert isinstance(said, str), "nothing was said"
    lines = [line for line in said.strip().splitlines() if not line.startswith(("Usage:", "Try "))]
    assert len([line for line in lines if line]) <= 2, said
    assert len(said) <= LONGEST, said
    assert re.search(remedy, said), said
