"""Hostile input ends in a typed error, soon, and in bounded memory, whoever reads it.

Each target is a reader of bytes that may come from anybody: over the network, from a file that somebody else wrote. Its
inputs are made from good ones by a seeded generator, so that a failure can be run again: the seed and the number of the
input are in the message.
"""

import io
import json
import random
import time
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sophon.codec import Cut, codec_named, make_payload
from sophon.codec.window import available
from sophon.errors import AccessError, ArtifactError, ConfigError, Error, OpError, PayloadError, ProtocolError
from sophon.link.wire import Request, error_from_json
from sophon.pipeline import Key, Kind, Pipeline, Spec, ops, spec_of
from sophon.plan.plan import Plan
from sophon.profile.table import Profile
from sophon.server.access import Tokens
from sophon.server.budget import CpuBudget
from sophon.server.executor import Executor
from sophon.server.isolation import frames
from sophon.store import open_store
from sophon.store.manifest import Manifest
from tests.plan.test_plan import PROFILE, RESOURCES, make_plan
from tests.support.mutations import bytes_like, json_text
from tests.support.pictures import FORMS, encode, scene
from tests.support.servers import RECIPE, make_images

DEFAULT_COUNT = 200  # of each target: more than 2,000 in all
SLOW_COUNT = 8_000  # of each target: more than 100,000 in all
MOST_S = 1.0
MOST_BYTES = 600 << 20

MANY_OPS = Pipeline(
    [
        ops.Decode(),
        ops.Resize(64),
        ops.RandomApply((ops.ColorJitter(0.4, 0.4, 0.4, 0.1),), 0.8),
        ops.RandomGrayscale(0.2),
        ops.GaussianBlur(3, (0.1, 2.0)),
        ops.RandomCrop(32, padding=4),
        ops.ToTensor(),
        ops.Normalize((0.5,), (0.5,)),
        ops.RandomErasing(),
    ]
)
VIEWS = Pipeline([ops.Decode(), ops.Views([[ops.RandomResizedCrop(32), ops.ToTensor()]] * 2 + [ops.CenterCrop(8)] * 3)])
SPECS = [RECIPE.to_spec(), MANY_OPS.to_spec(), VIEWS.to_spec()]
REQUEST = Request("train", RECIPE.to_spec(), 1, 2, (5, 3, 9), (Cut(0), Cut(2, "webp"), Cut(0)), "f" * 32, True, 2.5)
VALUES = [scene(20, 10), scene(33, 17).convert("L"), np.ones((3, 5, 4), np.float32), b"some file"]


class Target:
    """Something that reads what it cannot trust.

    Args:
        make: Returns a hostile input.
        read: Reads one.
        errors: All that it may raise.
    """

    def __init__(self, make, read, *errors):
        self.make = make
        self.read = read
        self.errors = errors


def _codec_target(name):
    codec = codec_named(name)
    values = [value for value in VALUES if codec.fits(spec_of(value))]
    payloads = [codec.encode(value) for value in values]
    specs = [Spec(spec_of(v).kind, (None,) * len(spec_of(v).shape), spec_of(v).dtype) for v in values]

    def read(payload):
        for spec in specs:
            try:
                value = codec.decode(payload, spec)
            except PayloadError:
                continue
            assert spec_of(value).kind is spec.kind

    return Target(lambda rng: bytes_like(payloads, rng), read)


def _window_target():
    data = encode(scene(90, 70), "jpeg 4:2:0")
    payloads = [make_payload(RECIPE, data, Key(0, epoch, 0), Cut(0, "window")) for epoch in range(4)]
    codec = codec_named("window")
    return Target(lambda rng: bytes_like(payloads, rng), lambda data: codec.decode_ahead(data, RECIPE), PayloadError)


@cache
def _files():
    return [encode(scene(40, 30, seed), form) for seed, form in enumerate(FORMS)]


def _artifact_target(save, load, folder):
    path, copy = folder / "good", folder / "bad"
    save(path)
    good = [path.read_bytes()]

    def read(data):
        copy.write_bytes(data)
        load(copy)

    return Target(lambda rng: bytes_like(good, rng), read, ArtifactError)


class _Line:
    def __init__(self, data):
        self._file = io.BytesIO(data)

    def recv(self, count, _):
        return self._file.read(min(count, 4096))


def _frame_target():
    good = [
        frames._HEAD.pack(kind, 16, size) + frames.Costs(0.1, (3, 4)).pack() + b"x" * size
        for kind in (4, 5, 6, 7)
        for size in (0, 100)
    ]

    def read(data):
        _, note, _ = frames.receive(_Line(data))
        frames.Costs.parse(note, 5)

    return Target(lambda rng: bytes_like(good, rng), read, frames.Broken)


def _pixels(data):
    assert spec_of(ops.Decode(max_pixels=1 << 22).apply(data)).kind is Kind.IMAGE


def _tokens(data):
    tokens = Tokens.parse(data.decode("utf-8", "replace"), "file", ["train"])
    tokens.rights_of("Bearer " + data.decode("latin-1"))


TARGETS = {
    "request bytes": lambda _: Target(
        lambda rng: bytes_like([REQUEST.to_bytes()], rng), Request.from_bytes, ProtocolError
    ),
    "request JSON": lambda _: Target(
        lambda rng: json_text([json.loads(REQUEST.to_bytes())], rng), Request.from_bytes, ProtocolError
    ),
    "pipeline bytes": lambda _: Target(
        lambda rng: bytes_like([json.dumps(spec).encode() for spec in SPECS], rng).decode("utf-8", "replace"),
        Pipeline.from_json,
        ConfigError,
    ),
    "pipeline JSON": lambda _: Target(
        lambda rng: json_text(SPECS, rng).decode("utf-8", "surrogatepass"), Pipeline.from_json, ConfigError
    ),
    "error JSON": lambda _: Target(
        lambda rng: json_text([{"type": "StoreError", "message": "m"}], rng).decode("utf-8", "surrogatepass"),
        error_from_json,
        ProtocolError,
    ),
    "profile": lambda folder: _artifact_target(PROFILE.save, Profile.load, folder),
    "plan": lambda folder: _artifact_target(make_plan(PROFILE, RESOURCES, "all").save, Plan.load, folder),
    "manifest": lambda folder: _artifact_target(
        open_store(make_images(folder / "images", 6), "x").manifest.save, Manifest.load, folder
    ),
    "codec raw": lambda _: _codec_target("raw"),
    "codec zstd": lambda _: _codec_target("zstd"),
    "codec webp": lambda _: _codec_target("webp"),
    "codec jpeg": lambda _: _codec_target("jpeg"),
    "codec window": lambda _: _window_target(),
    "decode": lambda _: Target(lambda rng: bytes_like(_files(), rng), _pixels, OpError),
    "frames of a worker": lambda _: _frame_target(),
    "token file": lambda _: Target(
        lambda rng: bytes_like([b"0123456789abcdef0123 train\n# x\nsha256:" + b"ab" * 32 + b" *\n"], rng),
        _tokens,
        ConfigError,
        AccessError,
    ),
}


def _memory(name):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    return 0


def attack(target, seed, count):
    """Read many hostile inputs; return how many were taken for good ones."""
    rng = random.Random(seed)
    taken = 0
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before_bytes = _memory("VmRSS")
    for number in range(count):
        data = target.make(rng)
        start_s = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow about metadata
                target.read(data)
            taken += 1
        except target.errors:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}, input {number}: {error!r} for {data[:300]!r}") from error
        spent_s = time.process_time() - start_s
        assert spent_s < MOST_S, f"seed {seed}, input {number}: {spent_s:.1f} s for {data[:300]!r}"
    assert _memory("VmHWM") - before_bytes < MOST_BYTES
    return taken


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_ends_in_a_typed_error_soon_and_in_bounded_memory(name, tmp_path):
    if name == "codec window" and not available():
        pytest.skip("the extension was not built")
    taken = attack(TARGETS[name](tmp_path), seed=1, count=DEFAULT_COUNT)
    assert taken < DEFAULT_COUNT or name.startswith(("codec", "error"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_hostile_inputs(name, tmp_path):
    if name == "codec window" and not available():
        pytest.skip("the extension was not built")
    attack(TARGETS[name](tmp_path), seed=2, count=SLOW_COUNT)


def test_all_of_them_are_enough():
    assert DEFAULT_COUNT * len(TARGETS) >= 2_000
    assert SLOW_COUNT * len(TARGETS) >= 100_000


def _whole_requests(count, seed, tmp_path):
    """Send hostile messages through all that a server does with one."""
    store = open_store(make_images(tmp_path / "train", 6), "train")
    budget = CpuBudget(1)
    executor = Executor({"train": store}, budget)
    opening = {"dataset": "train", "pipeline": RECIPE.to_spec()}
    asking = json.loads(REQUEST.to_bytes()) | {"samples": [0, 1, 2], "dataset_fingerprint": ""}
    rng = random.Random(seed)
    answered = 0
    try:
        for _ in range(count):
            for good in (opening, asking):
                try:
                    text = json_text([good], rng)
                    if good is opening:
                        executor.describe(json.loads(text) if text.startswith(b"{") else {})
                    else:
                        replies = list(executor.replies(Request.from_bytes(text)))
                        answered += len(replies) > 0
                except Error:
                    continue
    finally:
        budget.close()
    return answered


def test_hostile_messages_never_bring_a_server_down(tmp_path):
    assert _whole_requests(150, 3, tmp_path) > 5


@pytest.mark.slow
def test_many_hostile_messages_never_bring_a_server_down(tmp_path):
    _whole_requests(5_000, 4, tmp_path)


def test_a_picture_that_declares_more_pixels_than_are_allowed_is_refused_before_it_is_decoded():
    out = io.BytesIO()
    Image.new("1", (8000, 8000)).save(out, "PNG")
    start_bytes = _memory("VmRSS")
    with pytest.raises(OpError, match="more than the limit"):
        ops.Decode(max_pixels=1 << 22).apply(out.getvalue())
    assert _memory("VmRSS") - start_bytes < 32 << 20
