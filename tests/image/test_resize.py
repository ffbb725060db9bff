"""Resizing: known sums, edges, dtypes and layouts. Against TensorFlow: `test_decode_keras.py`."""

import pickle

import numpy as np
import pytest

import penstock
from penstock.image import Resizing, resize
from penstock.image._resize import nearest, taps

INTERPOLATIONS = ["bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"]
KERNELS = [name for name in INTERPOLATIONS if name not in ("nearest", "bilinear")]  # bilinear is OpenCV's
RAMP = np.arange(8, dtype=np.float32)[:, None] * 10 + np.arange(6, dtype=np.float32)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("source", "target"), [(10, 3), (3, 10), (1, 5), (5, 1), (7, 7), (500, 180)])
def test_weights_add_up_to_1_within_the_source(name: str, source: int, target: int) -> None:
    indices, weights = taps(name, source, target)
    assert indices.min() >= 0
    assert indices.max() < source
    assert np.allclose(weights.sum(axis=0), 1, atol=1e-6)


def test_a_flat_image_stays_flat() -> None:
    for name in INTERPOLATIONS:
        for size in ((3, 20), (20, 3), (8, 6)):
            flat = np.full((8, 6, 3), 77, np.uint8)
            assert (resize(flat, size, interpolation=name) == 77).all(), name  # type: ignore[arg-type]


def test_an_image_of_the_size_asked_for_is_unchanged_by_kernels_that_interpolate() -> None:
    for name in ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5"):
        assert np.allclose(resize(RAMP, (8, 6), interpolation=name), RAMP, atol=1e-4), name  # type: ignore[arg-type]


def test_area_is_the_mean_of_what_a_pixel_covers() -> None:
    assert np.allclose(resize(RAMP, (4, 3), interpolation="area"), RAMP.reshape(4, 2, 3, 2).mean(axis=(1, 3)))
    thirds = resize(np.array([[0, 3, 6]], np.float32), (1, 2), interpolation="area")
    assert np.allclose(thirds, [[1, 5]])  # (0 + 3/2) / 1.5 and (3/2 + 6) / 1.5


def test_pixels_have_their_centres_in_the_middle() -> None:
    doubled = resize(np.array([[0, 4]], np.float32), (1, 4))
    assert doubled.tolist() == [[0, 1, 3, 4]]
    assert nearest(4, 2).tolist() == [1, 3]
    assert nearest(2, 4).tolist() == [0, 0, 1, 1]


def test_kernels_that_overshoot_are_clipped_in_integers_alone() -> None:
    edge = np.zeros((4, 12), np.uint8)
    edge[:, 6:] = 255
    floats = resize(edge.astype(np.float32), (4, 30), interpolation="lanczos3")
    assert floats.min() < -5
    assert floats.max() > 260
    assert np.array_equal(
        resize(edge, (4, 30), interpolation="lanczos3"), np.clip(np.rint(floats), 0, 255).astype(np.uint8)
    )


def test_the_dtype_is_kept() -> None:
    for dtype in ("uint8", "int8", "uint16", "int16", "float16", "float32", "float64"):
        for name in INTERPOLATIONS:
            image = RAMP.astype(dtype)
            smaller = resize(image, (5, 4), interpolation=name)  # type: ignore[arg-type]
            assert smaller.dtype == dtype
            reference = resize(RAMP, (5, 4), interpolation=name)  # type: ignore[arg-type]
            assert np.abs(smaller.astype(np.float64) - reference).max() <= 0.5 + 2e-2


@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_channels_strides_and_layouts_make_no_difference(name: str) -> None:
    resizing = Resizing((9, 5), interpolation=name)  # type: ignore[arg-type]
    rng = np.random.default_rng(1)
    for dtype in (np.uint8, np.float32):
        image = (rng.random((14, 11, 4)) * 255).astype(dtype)
        whole = resizing(image)
        for channel in range(4):
            assert np.allclose(resizing(image[..., channel]), whole[..., channel], atol=1)
            assert resizing(image[..., channel : channel + 1]).shape == (9, 5, 1)
        turned = np.asfortranarray(image)
        assert np.allclose(resizing(turned), whole, atol=1e-3)
        out = np.zeros((2, 4, 9, 5), np.float32)
        resizing.into(image[::1], out[1].transpose(1, 2, 0))
        floats = out[1].transpose(1, 2, 0)
        assert np.allclose(floats.clip(0, 255) if dtype is np.uint8 else floats, whole, atol=1)
        assert (out[0] == 0).all()


def test_a_crop_is_the_largest_centred_part() -> None:
    wide = np.tile(np.arange(20, dtype=np.float32), (10, 1))
    assert resize(wide, (10, 10), fit="crop")[0].tolist() == list(range(5, 15))
    assert resize(wide.T, (10, 10), fit="crop")[:, 0].tolist() == list(range(5, 15))


def test_padding_is_zeros_on_both_sides() -> None:
    ones = np.ones((10, 20, 3), np.float32)
    padded = resize(ones, (20, 20), fit="pad")
    assert (padded[5:15] == 1).all()
    assert (padded[:5] == 0).all()
    assert (padded[15:] == 0).all()


def test_an_image_may_be_as_thin_as_a_line() -> None:
    for shape in ((1, 500, 3), (500, 1, 3), (1, 1, 3)):
        for name in INTERPOLATIONS:
            for fit in ("stretch", "crop", "pad"):
                assert resize(np.ones(shape, np.uint8), (7, 9), interpolation=name, fit=fit).shape == (7, 9, 3)  # type: ignore[arg-type]


def test_a_result_of_one_pixel_may_have_any_strides() -> None:
    resizing = Resizing((1, 1))
    for dtype in (np.uint8, np.float32):
        image = np.full((5, 4, 3), 7, dtype)
        first, strided = np.zeros((3, 1, 1), dtype), np.zeros((2, 2, 3), dtype)
        resizing.into(image, first.transpose(1, 2, 0))
        resizing.into(image, strided[::2, ::2])
        assert first.tolist() == [[[7]], [[7]], [[7]]]
        assert strided.sum() == 3 * 7


def test_a_resizing_is_a_function_for_map() -> None:
    resizing = Resizing((4, 3), interpolation="area")
    images = penstock.from_arrays(np.stack([RAMP, RAMP + 1])[..., None])
    small = images.map(resizing)
    assert small.element_spec == penstock.ArraySpec((4, 3, 1), "float32")
    assert np.array_equal(small[1], resizing(RAMP[..., None] + 1))
    assert pickle.loads(pickle.dumps(resizing)) == resizing
    assert resizing.releases_gil


def test_what_is_no_image_is_refused() -> None:
    for wrong in (
        np.zeros(5, np.uint8),
        np.zeros((2, 5, 5, 3), np.uint8),
        np.zeros((3, 40, 40), np.uint8),
        np.zeros((0, 4)),
    ):
        with pytest.raises(
            penstock.SpecError, match=r"an image to resize is \(height, width, channels\) of 1 to 4 channels"
        ):
            resize(wrong, (4, 4))
    with pytest.raises(penstock.SpecError, match=r"this is \(4, 4\) int64\. Cast it, a mask of"):
        resize(np.zeros((4, 4), np.int64), (2, 2))
