"""A value that went through a parcel is the value that went in, to the bit, and may be written to."""

import io
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sophon.errors import Error
from sophon.loader.epoch.messages import Failure, packed, unpacked
from sophon.loader.epoch.parcel import Parcel, pack

_NAMES = ("uint8", "int8", "int16", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64", "complex64")
_DTYPES = [getattr(torch, name) for name in _NAMES]


def _through(value):
    """Return what arrives at the other end."""
    parcel, memory, file = packed(value)
    return unpacked(parcel, bytearray(memory), file).open()


@st.composite
def tensors(draw):
    """Tensors of all dtypes and shapes, whole ones and parts of others, in any order of their dimensions."""
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    dtype = draw(st.sampled_from(_DTYPES))
    made = torch.randint(0, 200, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9)))).to(dtype)
    if draw(st.booleans()) and shape:
        made = made.permute(*draw(st.permutations(range(len(shape)))))
    if draw(st.booleans()) and shape and made.shape[0] > 1:
        made = made[:: draw(st.integers(1, 3))]
    if draw(st.booleans()) and not shape:
        made = made.expand(3, 2)
    if dtype.is_complex and draw(st.booleans()):
        made = made.conj()
    return made


_LEAVES = st.one_of(
    tensors(),
    hnp.arrays(st.sampled_from([np.float32, np.int64, np.bool_, "<U3", ">f4", "M8[D]"]), hnp.array_shapes(min_dims=0)),
    st.text(),
    st.integers(),
    st.none(),
    st.binary(),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda some: st.lists(some, max_size=3) | st.tuples(some, some) | st.dictionaries(st.text(), some),
    max_leaves=6,
)


def _assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
        # It may be written to, unless torch itself forbids it: a lazy conjugate of an expanded one is sent as it is.
        if not (one.is_conj() and 0 in one.stride()):
            other.zero_()
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert other.flags.writeable
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            _assert_same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _assert_same(a, b)
    else:
        assert one == other


@settings(max_examples=80, deadline=None)
@given(_VALUES)
def test_every_value_arrives_as_it_was(value):
    _assert_same(value, _through(value))


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0,), (), (40_000,), (30, 40, 50)])
def test_small_tensors_and_those_in_shared_memory_arrive_alike(shape, dtype):
    value = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    _assert_same((value, "and all else"), _through((value, "and all else")))


def test_what_is_one_object_stays_one_object():
    tensor, array = torch.ones(3), np.ones(3)
    one, other, (numbers, same) = _through((tensor, tensor, [array, array]))
    assert one is other
    assert numbers is same


def test_a_part_of_a_large_tensor_travels_alone():
    parcel = pack(torch.zeros(1000, 1000)[3], lambda size: np.empty(size, np.uint8))
    assert parcel.size_bytes < 10_000


def test_the_order_of_a_tensors_dimensions_in_memory_is_kept():
    value = torch.rand(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    assert _through(value).stride() == value.stride()


def test_tensors_of_other_kinds_arrive_as_well():
    parameter = torch.nn.Parameter(torch.ones(2))
    sparse = torch.eye(3).to_sparse()
    got = _through((parameter, sparse, torch.ones(2, requires_grad=True)))
    assert isinstance(got[0], torch.nn.Parameter)
    assert torch.equal(got[1].to_dense(), torch.eye(3))
    assert got[2].requires_grad


def test_a_parcel_without_its_memory_is_never_opened_as_a_value():
    parcel, memory, _ = packed(torch.ones(5))
    assert len(memory)
    with pytest.raises(AssertionError, match="without its memory"):
        Parcel(parcel.text, parcel.sizes).open()


# --- errors ----------------------------------------------------------------------------------------------------------


class _TwoWordsError(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class _MuteError(Exception):
    def __str__(self):
        raise ValueError("no words")

    def __reduce__(self):
        raise TypeError("no pickle")


class _OtherError(Exception):
    def __reduce__(self):
        return str, ("something else",)


_NEEDS_HERE = threading.local()
_NEEDS_HERE.works = True


def _fussy(text):
    if not getattr(_NEEDS_HERE, "works", False):
        raise RuntimeError("not in this process")
    return _FussyError(text)


class _FussyError(Exception):
    def __reduce__(self):
        return _fussy, self.args


def _raised(error, cause=None):
    try:
        raise error from cause
    except Exception as found:  # noqa: BLE001 - any of them
        return found


def test_an_error_arrives_with_its_cause_its_notes_and_where_it_happened():
    error = _raised(KeyError("a", 2), ZeroDivisionError("by zero"))
    error.add_note("a note")
    got = Failure.of(error).to_error()
    assert type(got) is KeyError
    assert got.args == ("a", 2)
    assert repr(got.__cause__) == "ZeroDivisionError('by zero')"
    assert got.__notes__[0] == "a note"
    assert "in _raised" in got.__notes__[1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (_TwoWordsError(1, 2), "_TwoWordsError: 1 and 2"),
        (_MuteError(), "_MuteError"),
        (_OtherError("text"), "_OtherError: text"),
        (ValueError(io.StringIO), f"ValueError: {io.StringIO}"),
        (ValueError(threading.Lock()), "ValueError: <unlocked"),
    ],
)
def test_an_error_that_cannot_be_pickled_arrives_in_words(error, words):
    got = Failure.of(_raised(error)).to_error()
    assert f"{type(got).__name__}: {got}".removeprefix("Error: ").startswith(words)
    assert "in _raised" in got.__notes__[-1]


def test_an_error_that_can_be_read_by_its_maker_alone_arrives_in_words():
    failure = Failure.of(_raised(_FussyError("text")))
    _NEEDS_HERE.works = False
    try:
        got = failure.to_error()
    finally:
        _NEEDS_HERE.works = True
    assert type(got) is Error
    assert str(got) == "_FussyError: text"


@pytest.mark.parametrize("notes", [None, [3, "a note"], "a note"])
def test_notes_of_a_wrong_kind_do_no_harm(notes):
    error = ValueError("text")
    error.__notes__ = notes
    got = Failure.of(error).to_error()
    assert str(got) == "text"
    assert got.__notes__[:-1] == (["a note"] if isinstance(notes, list) else [])
