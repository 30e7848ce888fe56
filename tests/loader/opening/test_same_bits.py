"""Two results are the same to the last bit, or not, or nobody can say."""

import math
from collections import UserDict, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from sophon.loader.opening.same_bits import same_bits


@dataclass
class Boxes:
    corners: torch.Tensor
    label: int


Pair = namedtuple("Pair", "one two")


def _tensor(*values, **kinds):
    return torch.tensor(values, **kinds)


def _with_palette(n):
    picture = Image.new("P", (2, 2))
    picture.putpalette([n, 0, 0])
    return picture


# What makes a value from a number: the same number, the same value.
MAKERS = {
    "float tensor": lambda n: _tensor(float(n), math.nan),
    "tensor of no dimension": torch.tensor,
    "bfloat16 tensor": lambda n: _tensor(n, dtype=torch.bfloat16),
    "boolean tensor": lambda n: _tensor(bool(n), True),
    "complex tensor": lambda n: _tensor(complex(1, n)).conj(),
    "tensor in another order": lambda n: torch.full((2, 3, 4), n).permute(2, 0, 1),
    "tensor with a gradient": lambda n: _tensor(float(n), requires_grad=True) * 2,
    "float array": lambda n: np.array([n, np.nan], np.float32),
    "array of records": lambda n: np.array([(1, n)], np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    "array of objects": lambda n: np.array(["a", n, None], object),
    "number of NumPy": np.float32,
    "picture": lambda n: Image.new("RGB", (3, 2), (0, n, 0)),
    "picture with a palette": _with_palette,
    "bytes": lambda n: bytes([n]),
    "text": str,
    "number": float,
    "complex number": lambda n: complex(n, math.nan),
    "truth": bool,
    "tuple": lambda n: (1, (n,)),
    "list": lambda n: [1, [n]],
    "dict": lambda n: {"a": 1, "b": {"c": _tensor(n)}},
    "other mapping": lambda n: UserDict({"a": n}),
    "set": lambda n: {1.5, f"{n}"},
    "data class": lambda n: Boxes(_tensor(1.0, n), 3),
    "named tuple": lambda n: Pair(1, n),
    "namespace": lambda n: SimpleNamespace(a=1, b=_tensor(n)),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_equal_values_are_the_same_and_others_are_not(kind):
    make = MAKERS[kind]
    assert same_bits(make(1), make(1)) is True
    assert same_bits(make(1), make(0)) is False


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (np.zeros(4, "u1"), np.zeros(4, "i1")),
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Image.new("L", (2, 3)), Image.new("L", (3, 2))),
        (None, 0),
    ],
)
def test_what_looks_alike_is_not_the_same(one, other):
    assert same_bits(one, other) is False


def test_of_other_types_nothing_is_said():
    assert same_bits(object(), object()) is None
    assert same_bits({object()}, {object()}) is None
    assert same_bits([1, object()], [1, object()]) is None
    assert same_bits(torch.eye(2).to_sparse(), torch.eye(2).to_sparse()) is None


@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
def test_of_quantized_tensors_nothing_is_said_and_torch_does_not_crash():
    whole = torch.quantize_per_tensor(torch.ones(3, 48, 48), 0.1, 0, torch.quint8)
    assert same_bits(whole, whole.clone()) is None


def test_a_part_that_differs_settles_it():
    assert same_bits([object(), 1], [object(), 2]) is False
