"""The compiled convolution gives the bits of NumPy's, or is not used. test_torchvision_bits says whose those are."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sophon.pipeline import bell, ops
from sophon.pipeline.ops import blur
from tests.support.pictures import scene

needs_kernel = pytest.mark.skipif(not blur._has_numpys_bits(), reason="the extension was not built")
odd = st.integers(0, 6).map(lambda half: 2 * half + 1)


@needs_kernel
@given(
    st.tuples(st.integers(7, 80), st.integers(7, 80)),
    st.sampled_from([(), (1,), (2,), (3,)]),
    st.tuples(odd, odd),
    st.floats(0.05, 6.0),
    st.sampled_from(["noise", "black and white", "dark", "scene"]),
    st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_any_picture_and_kernel_give_numpys_bits(size, channels, kernel_size, sigma, form, seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (*size, *channels), np.uint8)
    if form == "black and white":
        pixels = (pixels > 127).astype(np.uint8) * 255
    elif form == "dark":
        pixels //= 100
    elif form == "scene" and channels == (3,):
        pixels = np.asarray(scene(size[1], size[0], seed % 9))
    kernel = np.outer(*(bell.weights(count, sigma) for count in kernel_size))
    assert np.array_equal(blur.convolve(pixels, kernel), blur.convolve_by_numpy(pixels, kernel))


@needs_kernel
def test_weights_that_are_not_a_bell_give_numpys_bits():
    rng = np.random.default_rng(3)
    for trial in range(40):
        pixels = rng.integers(0, 256, (19, 53, 3), np.uint8)
        kernel = (rng.random((5, 7)) ** (1 + trial)).astype(np.float32)
        kernel /= kernel.sum()
        assert np.array_equal(blur.convolve(pixels, kernel), blur.convolve_by_numpy(pixels, kernel))


@needs_kernel
@pytest.mark.parametrize("least", [2.0**-21, 2.0**-22, 2.0**-23, 2.0**-30, 2.0**-40, 2.0**-140])
def test_tiny_weights_and_those_that_add_up_to_more_than_one_give_numpys_bits(least):
    # On either side of where one fused step has the bits of two roundings.
    rng = np.random.default_rng(4)
    for most in (0.9, 1.0, 1.002):
        pixels = rng.integers(0, 256, (23, 61, 3), np.uint8)
        pixels[:10] //= 200
        kernel = (least * 2.0 ** rng.uniform(0, 9, (5, 5))).astype(np.float32)
        kernel[2, 2] = most - kernel.sum() if least < 2.0**-20 else most - 0.1
        assert np.array_equal(blur.convolve(pixels, kernel), blur.convolve_by_numpy(pixels, kernel))


@needs_kernel
def test_a_wide_kernel_on_a_picture_hardly_larger_than_half_of_it():
    pixels = np.random.default_rng(1).integers(0, 256, (32, 33, 3), np.uint8)
    kernel = np.outer(bell.weights(63, 20.0), bell.weights(63, 5.0))
    assert np.array_equal(blur.convolve(pixels, kernel), blur.convolve_by_numpy(pixels, kernel))


@needs_kernel
def test_pixels_that_do_not_lie_in_a_row():
    pixels = np.random.default_rng(1).integers(0, 256, (60, 80, 3), np.uint8)[::2, ::-2]
    kernel = np.outer(bell.weights(5, 1.0), bell.weights(5, 1.0))
    assert np.array_equal(blur.convolve(pixels, kernel), blur.convolve_by_numpy(pixels, kernel))


@needs_kernel
def test_sizes_that_do_not_fit_are_refused_before_anything_is_read():
    picture, kernel = np.zeros((9, 9, 3), np.uint8), np.ones((3, 3), np.float32)
    for source, weights, target in (
        (picture, np.ones((19, 3), np.float32), picture.copy()),
        (picture, np.ones((3, 19), np.float32), picture.copy()),
        (picture, np.ones((2, 3), np.float32), picture.copy()),
        (picture, kernel, np.zeros((9, 8, 3), np.uint8)),
        (np.zeros((9, 9, 5), np.uint8), kernel, np.zeros((9, 9, 5), np.uint8)),
        (np.zeros((0, 9, 3), np.uint8), kernel, np.zeros((0, 9, 3), np.uint8)),
    ):
        with pytest.raises(ValueError, match=r"kernel|room"):
            blur.compiled.convolve(source, weights, target)


@needs_kernel
def test_the_op_gives_the_same_bits_without_the_extension(monkeypatch):
    op, pictures = ops.GaussianBlur((9, 5)), [scene(61, 47), scene(61, 47).convert("L")]
    fast = [op.apply(picture, 1.3) for picture in pictures]
    monkeypatch.setattr(blur, "_has_numpys_bits", lambda: False)
    for picture, found in zip(pictures, fast, strict=True):
        slow = op.apply(picture, 1.3)
        assert (slow.mode, slow.size, slow.tobytes()) == (found.mode, found.size, found.tobytes())


def test_an_extension_with_other_bits_is_not_used(monkeypatch):
    class Wrong:
        @staticmethod
        def convolve(source, _kernel, target):
            target[...] = source

    monkeypatch.setattr(blur, "compiled", Wrong)
    assert not blur._has_numpys_bits.__wrapped__()
    monkeypatch.setattr(blur, "compiled", None)
    assert not blur._has_numpys_bits.__wrapped__()


@needs_kernel
def test_threads_share_nothing():
    op = ops.GaussianBlur(7)
    pictures = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (90, 70, 3), np.uint8)) for i in range(4)]
    expected = [op.apply(picture, 1.1).tobytes() for picture in pictures]
    wrong = []

    def work() -> None:
        for _ in range(10):
            for picture, bits in zip(pictures, expected, strict=True):
                if op.apply(picture, 1.1).tobytes() != bits:
                    wrong.append(picture)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
