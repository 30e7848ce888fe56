"""NumPy batches: the same numbers as torch's, and no torch is needed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import sophon
from sophon.errors import ConfigError
from sophon.loader.epoch.collate import numpy_collate
from sophon.pipeline import Pipeline, ops
from tests.support.servers import RECIPE, make_images, serve
from tests.support.settings import grouped

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 13)


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"num_workers": 1, "kind": "processes"}])
def test_batches_are_the_same_numbers_in_the_same_structure(images, settings):
    made = [
        sophon.DataLoader(
            images,
            RECIPE,
            **grouped(batch_size=4, shuffle=True, output=sophon.Output(output, columns=("id",)), **settings),
        )
        for output in ("torch", "numpy")
    ]
    for theirs, ours in zip(*made, strict=True):
        assert isinstance(ours[0], np.ndarray)
        assert (ours[1].dtype, ours[0].dtype) == (np.int64, np.float32)
        assert np.array_equal(theirs[0].numpy(), ours[0])
        assert np.array_equal(theirs[1].numpy(), ours[1])
        assert theirs[2] == ours[2]
        assert ours[0].flags.writeable


def test_collate_fn_gets_arrays_and_callables_work(images):
    seen = []
    pipeline = Pipeline([*RECIPE.ops, lambda tensor: tensor * 2])
    loader = sophon.DataLoader(images, pipeline, batch_size=13, collate_fn=seen.extend, output="numpy")
    list(loader)
    plain = next(iter(sophon.DataLoader(images, RECIPE, batch_size=13, output="numpy")))[0]
    assert all(isinstance(image, np.ndarray) for image, _ in seen)
    assert np.array_equal(np.stack([image for image, _ in seen]), 2 * plain)


def test_pictures_that_cannot_be_stacked_stay_a_list(images):
    loader = sophon.DataLoader(images, Pipeline([ops.Decode(), ops.CenterCrop(8)]), batch_size=3, output="numpy")
    pictures, labels = next(iter(loader))
    assert [picture.size for picture in pictures] == [(8, 8)] * 3
    assert labels.shape == (3,)


def test_collating_gives_the_structure_of_torchs_own():
    items = [(np.ones(2), 1, {"a": 1.5, "b": "x"}, True), (np.zeros(2), 2, {"a": 2.5, "b": "y"}, False)]
    ours, theirs = numpy_collate(items), torch.utils.data.default_collate(items)
    assert len(ours) == len(theirs)
    assert np.array_equal(ours[0], theirs[0].numpy())
    assert ours[1].dtype == theirs[1].numpy().dtype
    assert ours[2]["a"].dtype == theirs[2]["a"].numpy().dtype
    assert ours[2]["b"] == theirs[2]["b"]
    assert ours[3].dtype == theirs[3].numpy().dtype


def test_it_works_where_there_is_no_torch(images):
    code = f"""
import sys; sys.modules["torch"] = None
import json, sophon
from tests.support.no_torch import RECIPE
told = dict(batch_size=4, shuffle=True, output="numpy")
loader = sophon.DataLoader({{url!r}}, RECIPE, num_workers=2, on_error="substitute", **told)
state, total = None, 0.0
for images, labels in loader:
    total += float(images.astype("f8").sum()) + int(labels.sum())
    state = state or loader.state_dict()
other = sophon.DataLoader({{url!r}}, RECIPE, batch_size=4, shuffle=True, output="numpy")
other.load_state_dict(json.loads(json.dumps(state)))
assert sum(len(labels) for _, labels in other) == 9
print(type(images).__module__, round(total, 3))
forked = sophon.DataLoader({{url!r}}, [*RECIPE.ops, lambda x: x], num_workers=1, **told)
print(round(sum(float(images.astype("f8").sum()) + int(labels.sum()) for images, labels in forked), 3))
try:
    sophon.DataLoader({str(images)!r}, RECIPE)
except sophon.ConfigError as error:
    print(error)
"""
    total = sum(
        float(batch.astype("f8").sum()) + int(labels.sum())
        for batch, labels in sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True, output="numpy")
    )
    with serve(images) as server:
        done = subprocess.run(
            [sys.executable, "-c", code.replace("{url!r}", repr(server.url))],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "", "HOME": str(images.parent)},
        )
    assert done.returncode == 0, done.stderr
    threads, processes, error = done.stdout.splitlines()
    assert threads == f"numpy {round(total, 3)}"
    assert processes == str(round(total, 3))
    assert "needs torch" in error


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"output": "jax"}, "output: expected torch or numpy"), ({"output": "numpy", "pin_memory": True}, "pin_memory")],
)
def test_wrong_settings_are_refused(images, settings, message):
    with pytest.raises(ConfigError, match=message):
        sophon.DataLoader(images, RECIPE, **grouped(**settings))


def test_a_type_that_numpy_lacks_is_refused_in_words(images):
    loader = sophon.DataLoader(images, [*RECIPE.ops, lambda tensor: tensor.bfloat16()], batch_size=4, output="numpy")
    with pytest.raises(ConfigError, match=r"bfloat16.*float32, or use output='torch'"):
        next(iter(loader))
