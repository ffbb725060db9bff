import numpy as np
import pytest

from penstock import ArgumentError, ArgumentTypeError
from penstock.image import (
    blur,
    brightness,
    contrast,
    erase,
    exactly,
    noise,
    sharpen,
    smooth,
    to_float,
)
from tests.image.warping import smooth_image


def rng(seed=0):
    return np.random.default_rng(seed)


def neighbours(image):
    """The mean of the eight pixels around each; mirrored beyond the border."""
    padded = np.pad(image.astype(float), 1, mode="reflect")
    height, width = image.shape
    shifted = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    return sum(shifted) / 8


def test_smooth_and_sharpen_mix_with_the_neighbours():
    image = rng().integers(0, 256, (20, 30), dtype=np.uint8)
    mean, pixels = neighbours(image), image.astype(float)
    expected = {smooth: pixels + 0.4 * (mean - pixels), sharpen: pixels - 0.4 * (mean - pixels)}
    for make, exact in expected.items():
        assert np.abs(make(exactly(0.4))(image) - np.clip(exact, 0, 255)).max() <= 0.5001


def test_blur_is_a_gaussian():
    image = smooth_image(30, 40)
    dot = np.zeros((31, 31), np.float32)
    dot[15, 15] = 1
    spread = blur(exactly(2))(dot)
    offsets = np.arange(-15, 16)
    assert spread.sum() == pytest.approx(1, abs=1e-4)
    assert np.sqrt((spread.sum(0) * offsets**2).sum()) == pytest.approx(2, rel=0.03)
    assert np.array_equal(blur(exactly(0))(image), image)


def test_brightness_and_contrast_round_and_stay_in_range():
    image = np.array([[0, 100, 200]], np.uint8)
    assert brightness(exactly(1.5))(image).tolist() == [[0, 150, 255]]
    assert contrast(exactly(1.5))(image).tolist() == [[0, 100, 250]]
    assert contrast(exactly(0))(image).tolist() == [[100, 100, 100]]


def test_floats_are_free():
    image = np.array([[-1.0, 0.5, 200.0]], np.float32)
    assert brightness(exactly(2))(image).tolist() == [[-2.0, 1.0, 400.0]]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64", "float16", "int32"])
def test_noise_has_the_deviation_it_says_and_the_dtype_it_had(dtype):
    image = np.full((100, 100, 3), 100, dtype)
    noisy = noise(exactly(8))(image, rng())
    assert noisy.dtype == dtype
    difference = noisy.astype(float) - 100
    assert difference.std() == pytest.approx(8, rel=0.03)
    assert abs(difference.mean()) < 0.2


def test_noise_that_rounding_takes_away_is_refused():
    with pytest.raises(
        ValueError, match=r"noise\(0 to 0.05\) changes nothing of an image of uint8: sigma is in levels"
    ):
        noise(0.05)(np.zeros((4, 4), np.uint8), rng())


def test_an_erased_rectangle_has_the_area_and_colour_it_says():
    image = np.full((40, 50, 3), 7, np.uint8)
    erased = erase(area=0.25, ratio=1, value=(1, 2, 3))(image, rng())
    ys, xs = np.nonzero((erased == (1, 2, 3)).all(2))
    assert len(ys) == (np.ptp(ys) + 1) * (np.ptp(xs) + 1)
    assert len(ys) == pytest.approx(0.25 * 2000, rel=0.05)
    assert (image == 7).all()


def test_what_is_painted_stays_in_range_and_bools_are_painted_true():
    for dtype, expected in (("uint8", 255), ("int16", 300), ("bool", True), ("float16", 300)):
        erased = erase(area=1, ratio=1, value=300)(np.zeros((9, 9), dtype), rng())
        assert (erased == expected).all()


def test_what_cannot_be_erased_stays():
    image = np.full((4, 400), 7, np.uint8)
    assert (erase(area=0.9, ratio=1)(image, rng()) == 7).all()


@pytest.mark.parametrize(("dtype", "most"), [("uint8", 255), ("uint16", 65535), ("int16", 32767), ("bool", 1)])
def test_to_float_makes_the_largest_value_one(dtype, most):
    found = to_float()(np.array([[0, most]], dtype))
    assert found.dtype == np.float32
    assert found.tolist() == [[0.0, 1.0]]


def test_to_float_keeps_floats_and_takes_a_dtype():
    assert to_float("float16")(np.array([[0.5, 1.0]], np.float32)).dtype == np.float16
    with pytest.raises(ValueError, match=r"these go up to 255, not 1. Read the images with dtype=\"uint8\""):
        to_float()(np.array([[0.5, 255.0]], np.float32))
    assert to_float("float64")(np.array([[51]], np.uint8))[0, 0] == 0.2


def test_amounts_that_cannot_be_meant_are_refused():
    with pytest.raises(
        ArgumentError, match=r"blur\(\): sigma=\(-1, 2\) is the range -1 to 2; it goes up, and lies within 0"
    ):
        blur((-1, 2))
    with pytest.raises(ArgumentError, match=r"brightness\(\): factor=1.5 is the range -0.5 to 2.5"):
        brightness(1.5)
    with pytest.raises(ArgumentError, match=r"contrast\(\): factor=\(2, 1\) is the range 2 to 1; it goes up"):
        contrast((2, 1))
    with pytest.raises(ArgumentTypeError, match=r"noise\(\): sigma takes a number, a pair .* not a str"):
        noise("much")
    with pytest.raises(ArgumentError, match=r"noise\(\): sigma takes finite numbers"):
        noise(10**400)
