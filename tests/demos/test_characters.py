"""The characters and what is done to them: the same on every run, right for training, whole or not there."""

import os

import numpy as np
import pytest

from penstock.demos import characters
from penstock.demos.errors import DemoError

pytestmark = pytest.mark.framework  # a font and Pillow

NAMES = "あいう一二三"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pytest.importorskip("PIL")
    path = tmp_path_factory.mktemp("characters") / "folder" / "characters.npy"
    characters.make_characters(path, NAMES)
    return characters.Characters(path, NAMES)


def test_every_character_is_there_once():
    names = characters.HIRAGANA + characters.KANJI
    assert len(set(names)) == len(names) == 46 + 240


def test_file_holds_bytes_and_is_all_there_is(made):
    images = np.load(made.path)
    assert images.shape == (24 * len(NAMES), 64, 64)
    assert images.dtype == np.uint8
    assert os.listdir(made.path.parent) == [made.path.name]


def test_file_is_the_same_on_every_run(made, tmp_path):
    characters.make_characters(tmp_path / "again.npy", NAMES)
    assert (tmp_path / "again.npy").read_bytes() == made.path.read_bytes()


def test_every_character_is_whole(made):
    images = np.load(made.path)
    border = np.concatenate([images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1]], axis=-1)
    assert border.max() == 0
    assert images.max((1, 2)).min() > 200


def test_no_image_of_validation_is_in_training(made):
    train, validation = ({image.tobytes() for image, _ in part} for part in made.split())
    assert len(validation) == 4 * len(NAMES)
    assert train.isdisjoint(validation)


def test_training_and_validation_have_all_characters_equally_often(made):
    for part, renderings in zip(made.split(), (20, 4), strict=True):
        labels = [int(label) for _, label in part]
        assert sorted(labels) == sorted([*range(len(NAMES))] * renderings)


def test_validation_has_sizes_that_training_has_not():
    sizes = [{size for size, _ in part} for part in (characters.TRAINING_RENDERINGS, characters.VALIDATION_RENDERINGS)]
    assert sizes[0].isdisjoint(sizes[1])


def test_label_is_the_place_of_the_character(made):
    train, _ = made.split()
    dash = NAMES.index("一")  # one stroke, wider than high
    image = next(image for image, label in train if label == dash)
    rows, columns = np.nonzero(image)
    assert np.ptp(columns) > 5 * np.ptp(rows)


def test_font_that_is_in_no_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DemoError, match=r"matplotlib-fontja, which is not installed\. Install it: pip install"):
        characters.make_characters(tmp_path / "characters.npy", NAMES)
    assert os.listdir(tmp_path) == []


def test_distortion_is_a_function_of_element_and_numbers(made):
    from penstock.demos.distort import distort

    element = made.dataset[0]
    before = element[0].copy()
    first, again, other = (distort(element, np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert (first.shape, first.dtype) == ((64, 64), np.uint8)
    assert (first == again).all()
    assert (first != other).any()
    assert (element[0] == before).all()


def test_scale_shrinks_about_the_centre():
    from PIL import Image

    from penstock.demos.distort import scale

    shrunk = np.asarray(scale(Image.new("L", (64, 64), 255), 0.5, 0.25))
    assert (shrunk[24:40, 16:48] == 255).all()
    assert shrunk.sum() == 255 * 16 * 32


def test_wave_rolls_columns_and_loses_nothing():
    from PIL import Image

    from penstock.demos.distort import wave

    image = np.random.default_rng(0).integers(0, 256, (64, 64), "uint8")
    waved = np.asarray(wave(Image.fromarray(image), 3.0, 64.0, 0.0))
    shifts = np.round(3 * np.sin(2 * np.pi * np.arange(64) / 64)).astype(int)
    assert (waved == np.stack([np.roll(image[:, x], shifts[x]) for x in range(64)], axis=1)).all()


def test_half_of_every_batch_is_distorted(made, monkeypatch):
    from penstock.demos import augment

    monkeypatch.setattr(augment, "BATCH_SIZE", 8)
    train, _ = made.split()
    as_they_are = {image.tobytes() for image, _ in train}
    for images, _ in augment.batches_of(train):
        assert [image.tobytes() in as_they_are for image in images] == [True, False] * 4
