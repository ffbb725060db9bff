import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from penstock.image import (
    compose,
    crop,
    elastic,
    exactly,
    flip,
    resized_crop,
    rotate,
    scale,
    shear,
    sine_warp,
    translate,
)
from tests.image.warping import bilinear, from_centre, grid, smooth_image, unrotated

HEIGHT, WIDTH = 41, 53
BORDERS = ("constant", "edge", "reflect", "symmetric", "wrap")


def close(found, expected):
    # OpenCV 4 looks between pixels in steps of 1/32. Our waves rise by up to 20 levels a pixel, borders by 150.
    difference = np.abs(found - expected)
    return difference.mean() < 0.2 and difference.max() < 5


@pytest.mark.parametrize("border", BORDERS)
def test_rotation_is_that_of_the_reference_beyond_the_border_too(border):
    image = smooth_image(HEIGHT, WIDTH, 3)
    found = compose(rotate(exactly(25)), border=border, value=77)(image)
    places = from_centre(*unrotated(*grid(HEIGHT, WIDTH), 25), HEIGHT, WIDTH)
    assert close(found, bilinear(image, *places, border=border, value=77))


@pytest.mark.parametrize("border", BORDERS)
def test_sine_warp_is_that_of_the_reference(border):
    image = smooth_image(HEIGHT, WIDTH)
    found = compose(sine_warp(exactly(6), 20, phase=0.25), border=border, value=77)(image)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(float)
    source_y = y - 6 * np.sin(2 * np.pi * (x / 20 + 0.25))
    assert close(found, bilinear(image, x, source_y, border=border, value=77))


def test_rows_roll_as_columns_of_the_transposed_do():
    image = smooth_image(HEIGHT, WIDTH)
    rolled = sine_warp(exactly(6), 20, phase=0.25, along="rows")(image)
    assert np.array_equal(rolled, sine_warp(exactly(6), 20, phase=0.25)(image.T).T)


def test_columns_roll_by_whole_pixels_as_numpy_rolls_them():
    image = np.random.default_rng(0).integers(0, 256, (16, 4), dtype=np.uint8)
    # A quarter of a period a column: shifts of 0, 3, 0 and -3.
    found = compose(sine_warp(exactly(3), 4, phase=0), border="wrap", interpolation="nearest")(image)
    expected = np.column_stack([np.roll(image[:, x], shift) for x, shift in enumerate((0, 3, 0, -3))])
    assert np.array_equal(found, expected)


def test_a_composed_warp_is_interpolated_once_where_the_chain_of_inverses_leads():
    image = smooth_image(HEIGHT, WIDTH, 3)
    steps = (
        rotate(exactly(20)),
        shear(exactly(0.2), exactly(0.1)),
        scale(x=exactly(1.2)),
        translate(exactly(3), exactly(-2)),
    )
    found = compose(*steps, border="edge")(image)
    x, y = grid(HEIGHT, WIDTH)
    x, y = x - 3, y + 2
    x = x / 1.2
    y = y - 0.1 * x
    x = x + 0.2 * y
    assert close(found, bilinear(image, *from_centre(*unrotated(x, y, 20), HEIGHT, WIDTH), border="edge"))


@pytest.mark.parametrize("sine_first", [False, True])
def test_a_composed_warp_with_a_sine_is_interpolated_once_too(sine_first):
    image = smooth_image(HEIGHT, WIDTH)
    sine, turn = sine_warp(exactly(4), 30, phase=0), rotate(exactly(20))
    found = compose(*([sine, turn] if sine_first else [turn, sine]), border="edge")(image)

    def unrolled(x, y):
        return x, y - 4 * np.sin(2 * np.pi * (x + (WIDTH - 1) / 2) / 30)

    x, y = grid(HEIGHT, WIDTH)
    x, y = unrolled(*unrotated(x, y, 20)) if sine_first else unrotated(*unrolled(x, y), 20)
    assert close(found, bilinear(image, *from_centre(x, y, HEIGHT, WIDTH), border="edge"))


def test_elastic_and_a_shift_are_the_elastic_shifted():
    image, rng = smooth_image(HEIGHT, WIDTH), np.random.default_rng
    alone = elastic(exactly(2), 10)(image, rng(0))
    after = compose(elastic(exactly(2), 10), translate(exactly(4), exactly(3)))(image, rng(0))
    assert np.allclose(after[3:, 4:], alone[:-3, :-4], atol=0.01)


def test_elastic_pulls_as_far_as_it_says_and_alike_nearby():
    y = np.mgrid[:200, :200][0].astype(np.float32)
    pulled = compose(elastic(exactly(3), 12), border="edge")(y, np.random.default_rng(0)) - y
    inner = pulled[20:-20, 20:-20]
    assert 1.5 < inner.std() < 3.5
    assert np.abs(np.diff(inner, axis=1)).max() < 2


@pytest.mark.parametrize("shape", [(5, 7), (6, 6, 3)])
def test_distortions_by_nothing_change_nothing(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    whole = crop(*shape[:2], down=0, across=0)
    for still in (rotate(0), shear(0), scale(0), translate(0, 0), flip(0), whole, sine_warp(0, 9, phase=0)):
        assert np.array_equal(still(image), image), still


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns_are_exact(dtype, quarters):
    image = np.random.default_rng(0).integers(0, 256, (9, 9, 3)).astype(dtype)
    assert np.array_equal(rotate(exactly(90 * quarters))(image), np.rot90(image, quarters))


def test_a_half_turn_is_exact_for_any_size():
    image = np.random.default_rng(0).integers(0, 256, (8, 5), dtype=np.uint8)
    assert np.array_equal(rotate(exactly(180))(image), image[::-1, ::-1])


def test_flips_are_exact_and_undo_themselves():
    image = np.random.default_rng(0).integers(0, 256, (8, 5, 3), dtype=np.uint8)
    assert np.array_equal(flip(1)(image), image[:, ::-1])
    assert np.array_equal(flip(0, 1)(image), image[::-1])
    assert np.array_equal(compose(flip(1, 1), flip(1, 1))(image), image)


def test_two_shifts_are_their_sum():
    image = np.random.default_rng(0).integers(0, 256, (12, 15), dtype=np.uint8)
    both = compose(translate(exactly(4), exactly(-1)), translate(exactly(-1), exactly(3)))(image)
    expected = np.zeros_like(image)
    expected[2:, 3:] = image[:-2, :-3]
    assert np.array_equal(both, expected)


def test_a_crop_within_a_warp_is_the_crop_of_the_warped():
    image = smooth_image(HEIGHT, WIDTH)
    whole = rotate(exactly(20))(image)
    part = compose(rotate(exactly(20)), crop(20, 30, down=0, across=1))(image)
    assert close(part, whole[:20, -30:])


def test_a_crop_of_the_corner_within_a_bend_is_the_corner_of_the_bent():
    image, pull = smooth_image(HEIGHT, WIDTH), elastic(exactly(2), 10)
    whole = pull(image, np.random.default_rng(0))
    part = compose(pull, crop(20, 30, down=0, across=0))(image, np.random.default_rng(0))
    assert close(part, whole[:20, :30])


def test_crops_lie_anywhere_with_equal_chance():
    image = np.arange(8, dtype=np.uint8).reshape(1, 8)
    rng = np.random.default_rng(0)
    starts = [int(crop(1, 6)(image, rng)[0, 0]) for _ in range(900)]
    assert min(np.bincount(starts, minlength=3)) > 250
    assert max(starts) == 2


def test_a_crop_alone_reads_the_image_without_a_copy():
    image = np.zeros((8, 8, 3), np.uint8)
    assert np.shares_memory(crop(4, 4, down=0, across=0)(image), image)


@given(st.integers(2, 6), st.integers(2, 6), st.sampled_from(BORDERS), st.sampled_from(["bilinear", "bicubic"]))
@settings(max_examples=50)
def test_the_smallest_images_can_be_warped(height, width, border, interpolation):
    image, rng = np.full((height, width), 50, np.uint8), np.random.default_rng(0)
    steps = elastic(2, 3), rotate(9), sine_warp(2, 5, along="rows"), scale(0.2)
    distort = compose(*steps, border=border, value=50, interpolation=interpolation)
    assert distort(image, rng).tolist() == image.tolist()


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=25)
def test_resized_crops_have_their_size_whatever_the_image(height, width, seed):
    image = np.full((height, width, 3), 200, np.uint8)
    found = resized_crop(7, 9)(image, np.random.default_rng(seed))
    assert found.shape == (7, 9, 3)
    assert (found == 200).all()


def test_a_resized_crop_of_everything_that_shrinks_is_the_mean_of_what_it_covers():
    image = np.random.default_rng(0).random((12, 16), dtype=np.float32)
    found = resized_crop(6, 4, area=1, ratio=16 / 12, down=0, across=0)(image)
    assert np.allclose(found, image.reshape(6, 2, 4, 4).mean((1, 3)), atol=1e-6)


def test_a_resized_crop_that_cannot_be_had_is_the_largest_in_the_middle():
    image = np.zeros((10, 100), np.uint8)
    image[:, 45:55] = 9
    assert (resized_crop(5, 5, area=1, ratio=1)(image, np.random.default_rng(0)) == 9).all()


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("bent", [False, True])
def test_a_bicubic_warp_is_that_of_the_image_with_its_border_around_it(border, bent):
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    # Up to 30 pixels beyond the image. With a border of 64 it is no small image any more, and gets no margin.
    steps = [rotate(exactly(25)), scale(exactly(0.7)), translate(exactly(20), exactly(-9))]
    if bent:
        steps.append(sine_warp(exactly(5), 32, phase=0.1))
    distort = compose(*steps, interpolation="bicubic", border=border, value=77)
    more = {"constant_values": 77} if border == "constant" else {}
    around = np.pad(image, [(64, 64), (64, 64), (0, 0)], mode=border, **more)
    difference = distort(image).astype(int) - distort(around)[64:-64, 64:-64]
    # Places are float32: what lies by the middle of two levels may be rounded to either.
    assert np.abs(difference).max() <= 1
    assert (difference != 0).mean() < 0.005


@pytest.mark.parametrize("shift", [0.5, 1.5, -2.5])
def test_masks_move_alike_whatever_the_images_are_interpolated_by(shift):
    image = np.random.default_rng(0).integers(0, 256, (9, 12), dtype=np.uint8)
    for step in (translate(exactly(shift), exactly(-shift)), rotate(exactly(45))):
        bilinear_, bicubic = (
            compose(step, masks=1, interpolation=how)((image, image))[1] for how in ("bilinear", "bicubic")
        )
        assert np.array_equal(bilinear_, bicubic)


@pytest.mark.parametrize("channel_count", [5, 8, 9])
def test_more_than_four_channels_are_each_warped_with_their_border(channel_count):
    image = smooth_image(HEIGHT, WIDTH, channel_count)
    value = tuple(10.0 * number for number in range(channel_count))
    found = compose(rotate(exactly(25)), value=value)(image)
    for channel in range(channel_count):
        alone = compose(rotate(exactly(25)), value=value[channel])(image[:, :, channel])
        assert np.allclose(found[:, :, channel], alone, atol=1e-4)


def test_floats_are_not_clipped_and_integers_are():
    image = np.random.default_rng(0).choice([-300.0, 300.0], (20, 20)).astype(np.float32)
    sharp = compose(translate(exactly(0.5), exactly(0.5)), interpolation="bicubic")(image)
    assert sharp.max() > 300
    bytes_ = compose(translate(exactly(0.5), exactly(0.5)), interpolation="bicubic")(np.uint8(255) * (image > 0))
    assert bytes_.dtype == np.uint8
    assert bytes_.max() == 255


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match=r"crop\(20, 8\) is larger than the image of 16 x 16 pixels\. Cut out less"):
        crop(20, 8)(np.zeros((16, 16), np.uint8), np.random.default_rng(0))


def test_what_is_scaled_beyond_one_pixel_is_that_pixel():
    image = np.full((12, 10), 7, np.uint8)
    assert np.array_equal(scale(exactly(1e9))(image), image)


def test_border_values_are_one_or_as_many_as_channels():
    with pytest.raises(ValueError, match="value= has 2 numbers, and the image 3 channels"):
        compose(rotate(exactly(9)), value=(1, 2))(np.zeros((9, 9, 3), np.uint8))
