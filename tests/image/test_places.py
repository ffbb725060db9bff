"""Boxes and points move with the pixels: each is marked in the image, and found again in the result."""

import numpy as np
import pytest

import penstock as ps
from penstock import ArgumentError
from penstock.image import (
    blur,
    brightness,
    compose,
    crop,
    elastic,
    erase,
    exactly,
    flip,
    noise,
    one_of,
    resized_crop,
    rotate,
    scale,
    shear,
    sine_warp,
    sometimes,
    translate,
)

HEIGHT, WIDTH = 96, 128
MOVES = {
    "rotate": (rotate(20),),
    "affine": (rotate(15), shear(0.2, 0.1), scale(0.2), translate(5, 5)),
    "flip": (flip(1, 1),),
    "crop": (crop(80, 90),),
    "resized_crop": (resized_crop(90, 90, area=(0.6, 1)),),
    "flip of crop": (crop(80, 90), flip(1)),
    "sine": (sine_warp(4, 40),),
    "elastic": (elastic(exactly(1.5), 20),),
    "all": (rotate(10), sine_warp(3, 50), scale(0.1), crop(80, 90), elastic(exactly(1), 25)),
    "two warps": (rotate(10), blur(exactly(0.6)), flip(1), sine_warp(3, 50)),
    "chosen": (one_of(rotate(20), flip(1)),),
}
POINTS = np.array([(x, y) for x in (45.0, 64, 83) for y in (35.0, 48, 60)])


def spot(x, y):
    """A picture of a spot of a few pixels."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return (1000 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 8)).astype("float32")


def middle(image):
    rows, columns = np.indices(image.shape)
    return np.array([(columns * image).sum(), (rows * image).sum()]) / image.sum()


@pytest.mark.parametrize("steps", MOVES.values(), ids=MOVES)
def test_points_are_where_their_pixels_are(steps):
    distort = compose(*steps, points="points")
    for seed in range(4):
        for number, (x, y) in enumerate(POINTS):
            element = {"image": spot(x, y), "points": POINTS}
            found = distort(element, np.random.default_rng(seed))
            assert np.abs(found["points"][number] - middle(found["image"])).max() < 0.35


@pytest.mark.parametrize("steps", MOVES.values(), ids=MOVES)
def test_boxes_are_around_their_pixels(steps):
    left, top, right, bottom = 40, 30, 90, 60
    image = np.zeros((HEIGHT, WIDTH), "float32")
    image[top:bottom, left:right] = 1
    for box, form in (((left, top, right, bottom), "xyxy"), ((left, top, right - left, bottom - top), "xywh")):
        distort = compose(*steps, boxes="boxes", box_format=form)
        for seed in range(4):
            found = distort({"image": image, "boxes": np.array([box], "float32")}, np.random.default_rng(seed))
            rows, columns = np.nonzero(found["image"] > 0.5)
            x, y, *rest = found["boxes"][0]
            x_end, y_end = rest if form == "xyxy" else (x + rest[0], y + rest[1])
            expected = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert np.abs(np.array([x, y, x_end, y_end]) - expected).max() < 2


def test_a_flip_and_a_crop_are_exact():
    image, boxes = np.zeros((10, 20, 3), "uint8"), np.array([[2, 3, 6, 9], [15, 0, 20, 2]])
    points = np.array([0, 4])
    found = compose(flip(1), boxes=1, points=2)((image, boxes, points), np.random.default_rng(0))
    assert found[1].tolist() == [[14, 3, 18, 9], [0, 0, 5, 2]]
    assert found[2].tolist() == [19, 4]
    cut = compose(crop(5, 10, down=0, across=0), boxes=1, points=2)((image, boxes, points))
    assert cut[1][0].tolist() == [2, 3, 6, 5]
    assert cut[1][1, :2].tolist() == cut[1][1, 2:].tolist()  # the second is outside, and has no area
    assert cut[1].dtype == boxes.dtype


SCENE = np.zeros((64, 96, 3), "uint8")
CUT = crop(64, 60, down=0, across=0), translate(exactly(-30), exactly(0))


@pytest.mark.parametrize("between", [brightness(exactly(1)), sometimes(0, blur(1)), erase(), one_of(noise(1))], ids=str)
def test_boxes_reach_no_further_than_pixels_that_an_earlier_warp_left(between):
    distort = compose(CUT[0], between, CUT[1], boxes=1)
    boxes = np.array([[[70, 10, 90, 54], [50, 10, 70, 54]], [[40, 10, 50, 54], [-9, -9, 99, 99]]], "float32")
    found = distort((SCENE, boxes), np.random.default_rng(0))[1]
    assert found.shape == boxes.shape
    assert found[0, 0, :2].tolist() == found[0, 0, 2:].tolist()  # nothing of it is left
    assert found[0, 1].tolist() == [20, 10, 30, 54]
    assert found[1].tolist() == [[10, 10, 20, 54], [0, 0, 30, 64]]
    together = compose(*CUT, boxes=1)((SCENE, boxes))[1]  # one warp brings the pixels back
    assert together[0].tolist() == [[40, 10, 60, 54], [20, 10, 40, 54]]


def test_a_turned_box_ends_where_its_part_in_the_image_ends():
    image = np.zeros((100, 100), "uint8")
    found = compose(rotate(exactly(45)), boxes=1)((image, np.array([[-50, -50, 50, 50], [0, 0, 10, 10]], "float64")))[1]
    assert np.abs(found[0] - [0, 0, 50, 100]).max() < 1e-3  # a triangle, whose right corner is the middle
    assert found[1, :2].tolist() == found[1, 2:].tolist()


def test_boxes_of_no_area_and_of_nan_stay_in_their_rows():
    boxes = np.array([[5, 5, 5, 5], [np.nan] * 4, [2, 3, 4, 5]])
    found = compose(translate(exactly(1), exactly(0)), blur(exactly(1)), translate(exactly(-3), exactly(0)), boxes=1)
    moved = found((SCENE, boxes))[1]
    assert moved[[0, 2]].tolist() == [[3, 5, 3, 5], [0, 3, 2, 5]]
    assert np.isnan(moved[1]).all()


def test_a_point_that_an_earlier_warp_left_outside_stays_outside():
    left, back = translate(exactly(-30), exactly(0)), translate(exactly(30), exactly(0))
    points = np.array([[10, 20], [40, 20], [np.nan, 20]])
    two_warps = compose(left, brightness(exactly(1)), back, points=1)
    assert two_warps((SCENE, points))[1][:2].tolist() == [[-1, -1], [40, 20]]
    assert np.isnan(two_warps((SCENE, points))[1][2, 0])
    assert compose(left, back, points=1)((SCENE, points))[1][:2].tolist() == [[10, 20], [40, 20]]
    assert compose(left, brightness(exactly(1)), points=1)((SCENE, points))[1][0].tolist() == [-20, 20]
    assert two_warps((SCENE, points[:2].astype("int32")))[1].tolist() == [[-1, -1], [40, 20]]
    assert points[0].tolist() == [10, 20]


def test_boxes_and_points_of_random_chains_are_where_masks_are():
    steps = [rotate(30), shear(0.2, 0.1), scale(0.3), translate(25, 25), flip(0.5, 0.5), crop(64, 80)]
    steps += [sine_warp(3, 50), elastic(1, 25), resized_crop(80, 100, area=(0.3, 1)), rotate(exactly(-13))]
    steps += [one_of(rotate(20), flip(1)), sometimes(0.5, rotate(20), blur(1), translate(20, 20))]
    off = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        chosen = [step for number in rng.choice(len(steps), 3, replace=False) for step in (steps[number], blur(0.5))]
        # A crop is last, as its result is too small for another one.
        chosen.sort(key=lambda step: step.name == "crop")
        x, y, wide, high = rng.integers((0, 0, 8, 8), (WIDTH - 60, HEIGHT - 60, 60, 60)).tolist()
        mask, spot = np.zeros((2, HEIGHT, WIDTH), "uint8")
        mask[y : y + high, x : x + wide] = spot[y + 1 : y + 6, x + 1 : x + 6] = 1
        element = mask * 200, mask, spot, np.array([x, y, x + wide, y + high], "float32"), np.array([x + 3.0, y + 3])
        image, mask, spot, box, point = compose(*chosen, masks=(1, 2), boxes=3, points=4)(element, rng)
        if not mask.any():
            assert np.prod(box[2:] - box[:2]) < 40
        elif mask.sum() > 20:
            rows, columns = np.nonzero(mask)
            around = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            off += np.abs(box - around).max() > 3  # a corner of less than a pixel
        if ((point >= 0) & (point < image.shape[::-1])).all():
            rows, columns = np.nonzero(spot)
            assert spot.sum() < 15 or np.abs(point - (columns.mean(), rows.mean())).max() < 2
            assert spot.any()
    assert off < 6


def test_integers_that_cannot_hold_a_place_are_an_error():
    image, rng = np.zeros((10, 300), "uint8"), np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"boxes move to 29[48], which uint8 cannot hold\. Give them as float32\."):
        compose(flip(1), boxes=1)((image, np.array([[2, 3, 6, 9]], "uint8")), rng)
    away = compose(translate(exactly(-5), exactly(0)), points=1)
    with pytest.raises(ValueError, match=r"points move to -3, which uint16 cannot hold\. Give them as float32\."):
        away((image, np.array([[2, 3]], "uint16")))
    assert away((image, np.array([[2, 3]], "int16")))[1].tolist() == [[-3, 3]]


def test_images_without_boxes_and_boxes_of_any_number_make_padded_batches():
    def scene(number):
        image = np.full((64 + int(number), 72, 3), number, "uint8")
        boxes = np.tile(np.array([8, 8, 24, 24], "float32"), (int(number) % 3, 1))
        return {"image": image, "boxes": boxes}

    distort = compose(rotate(5), resized_crop(48, 48), boxes="boxes")
    batch = ps.range(6).map(scene).random_map(distort, seed=1).padded_batch(6)[0]
    assert batch["image"].shape == (6, 48, 48, 3)
    assert batch["boxes"].shape == (6, 2, 4)
    curved = compose(sine_warp(2, 30), boxes="boxes")
    assert curved(scene(0), np.random.default_rng(0))["boxes"].shape == (0, 4)


def test_other_arrays_are_refused():
    image = np.zeros((8, 8), "uint8")
    with pytest.raises(ValueError, match=r"Boxes are numbers \(..., 4\), but here is an array of float64, \(3, 2\)"):
        compose(flip(1), boxes=1)((image, np.zeros((3, 2))), np.random.default_rng(0))
    with pytest.raises(ValueError, match="The element has no leaf 'points'"):
        compose(flip(1), points="points")({"image": image}, np.random.default_rng(0))
    with pytest.raises(ArgumentError, match="box_format='yxyx' is none of xyxy, xywh"):
        compose(flip(1), boxes=1, box_format="yxyx")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="1 comes twice in on=, masks=, boxes= and points="):
        compose(flip(1), boxes=1, points=1)
