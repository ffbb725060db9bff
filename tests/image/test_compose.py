import os
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import penstock as ps
from penstock import ArgumentError, ArgumentTypeError
from penstock.image import (
    blur,
    brightness,
    compose,
    contrast,
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
    sharpen,
    shear,
    sine_warp,
    smooth,
    sometimes,
    to_float,
    translate,
)
from tests.image.warping import smooth_image

EYES = np.zeros((4, 5, 5), "u1")
EVERY = (
    rotate(30),
    shear(0.2, 0.1),
    scale(0.2),
    translate(3, 3),
    flip(0.5, 0.5),
    crop(12, 11),
    resized_crop(12, 11),
    sine_warp(3, 15),
    elastic(2, 6),
    blur((0.5, 2)),
    sharpen((0.5, 1)),
    smooth((0.5, 1)),
    brightness(0.5),
    contrast(0.5),
    noise((3, 9)),
    one_of(brightness(0.4), rotate(9)),
    erase(),
)
INTEGERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
DTYPES = ["bool", *INTEGERS, "float16", "float32", "float64"]


def rng(seed=0):
    return np.random.default_rng(seed)


def picture(shape=(21, 25, 3), dtype="uint8"):
    image = rng(5).integers(0, 100, shape)
    return (image > 50) if dtype == "bool" else image.astype(dtype)


@pytest.mark.parametrize("distortion", EVERY, ids=lambda each: each.title)
def test_every_distortion_takes_every_dtype_and_layout_and_writes_nothing(distortion):
    for dtype in DTYPES:
        for shape in ((21, 25), (21, 25, 1), (21, 25, 3), (21, 25, 5)):
            image = picture(shape, dtype)
            image.flags.writeable = False
            found = distortion(image, rng())
            assert found.dtype == dtype
            assert found.shape[2:] == shape[2:]
            assert found.ndim == image.ndim


@pytest.mark.parametrize("distortion", EVERY, ids=lambda each: each.title)
def test_channels_first_is_channels_last_transposed(distortion):
    image = smooth_image(21, 25, 3, "uint8")
    last = distortion(image, rng())
    first = compose(distortion, data_format="channels_first")(np.ascontiguousarray(image.transpose(2, 0, 1)), rng())
    assert np.array_equal(first, last.transpose(2, 0, 1))


@pytest.mark.parametrize("distortion", EVERY, ids=lambda each: each.title)
def test_the_same_numbers_give_the_same_pixels_and_others_others(distortion):
    image = picture()
    assert np.array_equal(distortion(image, rng(1)), distortion(image, rng(1)))
    assert len({distortion(image, rng(seed)).tobytes() for seed in range(12)}) > 1


@pytest.mark.parametrize("distortion", EVERY, ids=lambda each: each.title)
def test_distortions_are_values(distortion):
    again = pickle.loads(pickle.dumps(distortion))
    assert again == distortion
    assert hash(again) == hash(distortion)
    assert repr(again) == repr(distortion)
    assert again.releases_gil
    with pytest.raises(AttributeError):
        distortion.name = "other"


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "uint64"])
def test_a_mask_moves_with_its_image_and_keeps_its_numbers(dtype):
    most = min(np.iinfo(dtype).max, 2**53)
    mask = (np.indices((21, 25)).sum(0) % 7).astype(dtype)
    mask[3, 3] = most
    image = mask.astype(np.float32)
    steps = rotate(30), elastic(exactly(2), 8), flip(), blur(2), brightness(0.5)
    moved = compose(*steps, on=0, masks=1)((picture(), mask), rng())[1]
    nearest = compose(*steps[:3], interpolation="nearest")(image, rng())
    assert moved.dtype == dtype
    assert set(np.unique(moved)) <= {*range(7), most}
    assert np.array_equal(moved.astype(np.float32), nearest)


def test_several_images_are_distorted_alike():
    image = picture()
    distort = compose(rotate(30), brightness(0.5), one_of(blur(2), sharpen(1)), on=("left", "right"))
    found = distort({"left": image, "right": image.copy(), "label": 3}, rng())
    assert np.array_equal(found["left"], found["right"])
    assert found["label"] == 3
    assert list(found) == ["left", "right", "label"]


class Example(NamedTuple):
    image: Any
    label: int


def test_an_element_keeps_its_structure_and_what_is_no_image():
    image, turn = picture(), rotate(exactly(90))
    expected = turn(image)
    for element, kind in (((image, 3), tuple), (Example(image, 3), Example), ({"image": image, "label": 3}, dict)):
        found = turn(element)
        assert type(found) is kind
        leaves = list(found.values()) if kind is dict else list(found)
        assert np.array_equal(leaves[0], expected)
        assert leaves[1] == 3
    assert np.array_equal(compose(turn, on="image")(Example(image, 3)).image, expected)
    assert np.array_equal(compose(turn, on=-1)((3, image))[1], expected)


def test_composing_nests():
    image = picture()
    nested = compose(rotate(30), compose(shear(0.2), translate(3, 3)), compose(blur(2), compose(flip(), scale(0.2))))
    flat = compose(rotate(30), shear(0.2), translate(3, 3), blur(2), flip(), scale(0.2))
    assert np.array_equal(nested(image, rng()), flat(image, rng()))


def test_pixels_are_interpolated_once_when_a_choice_stands_between():
    image = smooth_image(40, 40)
    there_and_back = compose(rotate(exactly(33)), sometimes(1, one_of(rotate(exactly(-33)))))
    assert np.allclose(there_and_back(image, rng()), image, atol=0.01)
    twice = rotate(exactly(-33))(rotate(exactly(33))(image))
    assert np.abs(twice - image)[15:25, 15:25].max() > 0.01


def test_one_of_and_sometimes_keep_their_chances():
    image = np.full((2, 2), 100, np.float32)
    either = one_of(brightness(exactly(2)), brightness(exactly(3)))
    generator = rng()
    found = [int(sometimes(0.5, either)(image, generator)[0, 0]) for _ in range(800)]
    assert set(found) == {100, 200, 300}
    assert 350 < found.count(100) < 450
    assert 150 < found.count(200) < 250


def test_what_draws_needs_a_generator():
    with pytest.raises(ArgumentError, match=r"rotate\(±15\) draws random numbers, .* Use random_map\(\)"):
        rotate(15)(picture())


@pytest.mark.usefixtures("workers_stay")
def test_every_executor_gives_the_same_pixels():
    images = np.stack([smooth_image(24, 24, 3, "uint8", most=10.0 * number) for number in range(1, 13)])
    distort = compose(rotate(15), sine_warp(3, 20), elastic(2, 8), one_of(blur(2), sharpen(1)), noise(5), erase())
    ds = ps.from_arrays((images, np.arange(12))).random_map(distort, seed=4).batch(4)
    expected = list(ds)
    for options in ({"executor": "threads", "workers": 3}, {"executor": "processes", "workers": 2}):
        with ds.loader(**options) as loader:
            for found, wanted in zip(loader, expected, strict=True):
                assert np.array_equal(found[0], wanted[0])
                assert np.array_equal(found[1], wanted[1])


def test_auto_runs_distortions_on_threads():
    ds = ps.from_arrays(np.zeros((8, 9, 9), "uint8")).random_map(rotate(15)).map(to_float()).batch(4)
    with ds.loader(workers=2) as loader:
        assert len(list(loader)) == 2
        assert "threads" in str(loader.report())


ON_DEMAND = """
import sys
import penstock
assert "cv2" not in sys.modules
sys.modules["cv2"] = None
try:
    penstock.image
except penstock.PenstockError as error:
    assert isinstance(error, ImportError)
    print(error)
del sys.modules["cv2"]
assert penstock.image.rotate and "cv2" in sys.modules
"""

THREADS = """
import cv2
cv2.setNumThreads(5)
import penstock.image
assert cv2.getNumThreads() == 5
"""


def test_opencv_is_imported_when_it_is_needed_and_missed_with_a_cure(fresh_python):
    done = fresh_python(ON_DEMAND)
    assert done.returncode == 0, done.stderr
    assert "works on OpenCV, which cannot be imported" in done.stdout
    assert "pip install opencv-python-headless." in done.stdout


@pytest.mark.slow
def test_opencv_threads_are_off_unless_the_user_set_their_number(fresh_python):
    import cv2

    assert cv2.getNumThreads() == 1 or "OPENCV_FOR_THREADS_NUM" in os.environ
    done = fresh_python(THREADS)
    assert done.returncode == 0, done.stderr


def test_a_step_is_named_by_its_distortions():
    ds = ps.from_arrays(np.zeros((8, 9, 9), "uint8")).random_map(compose(rotate(15), one_of(blur(1), noise(8))))
    assert "random_map(compose(rotate, one_of(blur, noise)))" in str(ds)


def test_representations_say_the_numbers():
    distort = compose(rotate(15), translate(4, (1, 2)), sometimes(0.5, blur(1.5)), on=("a", "b"), border="edge")
    assert repr(distort) == (
        "compose(rotate(±15), translate(x=±4, y=1 to 2), sometimes(0.5, blur(0 to 1.5)), on=('a', 'b'), border='edge')"
    )
    assert repr(sometimes(1, rotate(exactly(3)))) == "sometimes(1, rotate(3))"


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (np.zeros((2, 9, 9, 3), np.uint8), r"shape \(2, 9, 9, 3\).*Distort before batch\(\)"),
        (np.zeros((1, 2, 9, 9, 3), np.uint8), r"shape \(1, 2, 9, 9, 3\)"),
        (np.zeros((3, 64, 48), np.uint8), "compose.*data_format='channels_first'"),
        ({"picture": np.zeros((9, 9))}, r"has no leaf 'image'\. It has 'picture': say which is the image by on="),
        (([[1, 2]], 3), "but here is a list"),
        (7, "but here is an int"),
    ],
)
def test_what_is_no_image_is_refused(element, message):
    with pytest.raises(ValueError, match=message):
        flip(1)(element)


def test_what_goes_wrong_in_a_step_names_its_element():
    ds = ps.from_arrays(np.zeros((8, 9, 9), "uint8")).random_map(crop(20, 20))
    with pytest.raises(ps.ElementError, match=r"random_map\(crop\) at .* failed on element 0 .*larger than the image"):
        ds[5]


def test_leaves_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=r"The element has no leaf 'mask'\. It has 'image'"):
        compose(flip(1), masks="mask")({"image": picture()})
    with pytest.raises(ValueError, match=r"The element has no leaf 2\. It is a tuple of 2"):
        compose(flip(1), on=2)((picture(), 1))
    with pytest.raises(ValueError, match="An image is an array, or a leaf of a tuple or dict, but here is an ndarray"):
        compose(flip(1), on=0)(picture())
    with pytest.raises(ValueError, match="one is 21 x 25 and another 9 x 9 pixels"):
        compose(flip(1), on=0, masks=1)((picture(), picture((9, 9))))


def test_arguments_that_cannot_be_meant_are_refused():
    with pytest.raises(ArgumentError, match="border='mirror' is none of constant, edge, reflect, symmetric, wrap"):
        compose(rotate(1), border="mirror")
    with pytest.raises(
        ArgumentTypeError, match=r"one_of\(\) takes distortions .* a function.* random_map\(fn\) before"
    ):
        one_of(rotate(1), lambda image: image)
    with pytest.raises(ArgumentError, match="'mask' comes twice in on=, masks="):
        compose(rotate(1), on=["image", "mask"], masks="mask")
    with pytest.raises(ArgumentError, match=r"compose\(\) got no distortion"):
        compose()
    with pytest.raises(ArgumentError, match="whose settings it cannot follow: give them to the outermost"):
        compose(compose(rotate(1), on=0), blur(1))


def test_images_of_all_sizes_keep_theirs_unless_something_cuts():
    class Ragged(ps.Source):
        element_spec = ps.ArraySpec((None, None, 3), "uint8")

        def __len__(self):
            return 6

        def read_into(self, indices, out):
            for row, index in enumerate(indices.tolist()):
                out[row] = np.full((20 + index, 30 - index, 3), index, np.uint8)

    pairs = ps.zip((ps.from_source(Ragged()), ps.range(6)))
    turned = pairs.random_map(compose(flip(), rotate(10), to_float()), seed=1)
    assert turned.element_spec[0] == ps.ArraySpec((None, None, 3), "float32")
    assert turned.padded_batch(3)[0][0].shape == (3, 22, 30, 3)
    assert pairs.random_map(compose(flip(), crop(8, 8)), seed=1).batch(3)[0][0].shape == (3, 8, 8, 3)


def test_bools_that_become_floats_take_what_lies_beyond_them_along():
    shifted = compose(to_float(), translate(exactly(2), exactly(0)), value=1)(np.zeros((3, 4), bool))
    assert shifted.tolist() == [[1, 1, 0, 0]] * 3
    half = compose(translate(exactly(0.5), exactly(0)), to_float())(np.array([[True, False, True, True]]))
    np.testing.assert_allclose(half, [[0.5, 0.5, 0.5, 1.0]], atol=0.01)


def test_a_probability_is_one_number():
    with pytest.raises(ArgumentTypeError, match=r"flip\(\): horizontal takes a number from 0 to 1, not a tuple"):
        flip((0.2, 0.5))  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"sometimes\(\): probability takes a number"):
        sometimes((0.2, 0.5), rotate(3))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"probability=1\.5 is a probability: from 0 to 1"):
        sometimes(1.5, rotate(3))
    assert flip(True) == flip(1)


def test_leaves_in_a_list_are_those_of_a_tuple():
    assert compose(rotate(3), on=["a", "b"]) == compose(rotate(3), on=("a", "b"))  # type: ignore[arg-type]
    assert hash(compose(rotate(3), masks=["a"])) == hash(compose(rotate(3), masks=("a",)))  # type: ignore[arg-type]


def test_an_exact_number_has_bounds_too():
    with pytest.raises(ArgumentError, match=r"factor=0 is the range 0 to 0; it goes up, and lies within 0\.01 and inf"):
        scale(exactly(0))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 224, 224)])
def test_channels_that_stand_at_the_other_end_are_noticed(shape):
    with pytest.raises(ValueError, match=r"would have \d+ channels.*data_format='channels_first'"):
        flip(1)(np.zeros(shape, np.uint8))
    assert compose(flip(1), data_format="channels_first")(np.zeros(shape, np.uint8)).shape == shape
    with pytest.raises(ValueError, match="data_format='channels_last'"):
        compose(flip(1), data_format="channels_first")(np.zeros(shape[::-1], np.uint8))


@pytest.mark.parametrize(
    ("distortion", "names"),
    [
        (flip(), "'mask', of"),
        (compose(sometimes(0.5, rotate(5)), brightness(0.1)), "'mask', of"),
        (one_of(flip(), blur(1)), "'mask', of"),
        (compose(flip(), masks="mask"), None),
        (compose(flip(), on=("image", "mask")), None),
        (compose(flip(), on="labels"), None),
        (compose(brightness(0.1), blur(1)), None),
    ],
)
def test_a_leaf_as_large_as_the_image_that_does_not_move_with_it_is_told_once(distortion, names, caplog):
    ds = ps.from_arrays({"image": np.zeros((4, 6, 8, 3), "u1"), "mask": np.zeros((4, 6, 8), "u1"), "labels": EYES})
    for _ in range(2):
        with ds.random_map(distortion).batch(2).loader("inline") as loader:
            next(iter(loader))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (0 if names is None else 2)  # once a plan
    for text in told:
        assert f"{distortion.title} moves the pixels of 'image', and not those of {names} the same height" in text
        assert text.endswith("by compose(..., masks='mask'), and other images by on=('image', 'mask').")


def test_leaves_of_tuples_are_compared_with_channels_where_they_are(caplog):
    pairs = ps.zip((ps.from_arrays(np.zeros((4, 2, 6, 8), "f4")), ps.from_arrays(np.zeros((4, 1, 6, 8), "f4"))))
    for masks, count in ((None, 1), (1, 0)):
        caplog.clear()
        distortion = compose(flip(), data_format="channels_first", masks=masks)
        with pairs.random_map(distortion).batch(2).loader("inline") as loader:
            next(iter(loader))
        assert len(caplog.records) == count
