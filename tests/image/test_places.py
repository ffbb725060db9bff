"""Boxes and points move with the pixels: each is marked in the image, and found again in the result."""

import numpy as np
import pytest

import penstock as ps
from penstock import ArgumentError
from penstock.image import (
    blur,
    compose,
    crop,
    elastic,
    exactly,
    flip,
    one_of,
    perspective,
    resized_crop,
    rotate,
    scale,
    shear,
    sine_warp,
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
    "perspective": (perspective(0.15),),
    "sine": (sine_warp(4, 40),),
    "elastic": (elastic(exactly(1.5), 20),),
    "all": (rotate(10), sine_warp(3, 50), perspective(0.1), scale(0.1), crop(80, 90), elastic(exactly(1), 25)),
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
    assert cut[1].tolist() == [[2, 3, 6, 5], [10, 0, 10, 2]]  # the second is outside, and has no area
    assert cut[1].dtype == boxes.dtype


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
    with pytest.raises(ArgumentError, match="1 is in boxes= and in points="):
        compose(flip(1), boxes=1, points=1)
