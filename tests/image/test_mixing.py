"""Colours, perspective, and batches that are mixed with themselves."""

import numpy as np
import pytest

import penstock as ps
from penstock.image import cut_mix, exactly, grayscale, hue, mix_up, perspective, saturation

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(60, 180, (8, 10, 3)).astype("uint8")


def test_grey_images_have_three_equal_channels():
    grey = grayscale()(IMAGE)
    assert (grey == grey[..., :1]).all()
    np.testing.assert_array_equal(saturation(exactly(0))(IMAGE), grey)
    np.testing.assert_allclose(grey[..., 0], IMAGE @ [0.299, 0.587, 0.114], rtol=0, atol=1)
    np.testing.assert_array_equal(saturation(exactly(1))(IMAGE), IMAGE)
    with pytest.raises(ValueError, match="Colours are those of RGB"):
        grayscale()(IMAGE[..., 0])


def test_a_whole_turn_of_the_hue_changes_nothing_and_grey_has_none():
    floats = IMAGE.astype("float32")
    np.testing.assert_allclose(hue(exactly(360))(floats), floats, atol=1e-3)
    grey = np.full((4, 4, 3), 77.0, "float32")
    np.testing.assert_allclose(hue(exactly(90))(grey), grey, atol=0.2)
    assert abs(hue(exactly(90))(floats) - floats).max() > 10


def test_perspective_moves_the_corners():
    assert (perspective(exactly(0))(IMAGE) == IMAGE).all()
    white = np.full((20, 20), 255, "uint8")
    inwards = perspective(exactly(0.2))(white)
    assert (inwards[0, 0], inwards[10, 10]) == (0, 255)
    assert ps.from_arrays(IMAGE[None]).random_map(perspective(0.2), seed=1)[0].shape == IMAGE.shape


@pytest.mark.parametrize("mix", [mix_up(1.0), cut_mix()], ids=["mix_up", "cut_mix"])
def test_labels_are_mixed_as_images_are(mix):
    labels = np.eye(6, dtype="float32")
    images = np.broadcast_to(np.arange(6, dtype="float32")[:, None, None, None] * 10, (6, 8, 8, 3)).copy()
    ds = ps.from_arrays((images, labels)).batch(6).random_map(mix, seed=3)
    mixed, shares = ds[0]
    np.testing.assert_allclose(mixed.mean((1, 2, 3)), shares @ (np.arange(6) * 10), rtol=1e-4)
    np.testing.assert_array_equal(ds[0][0], mixed)
    with pytest.raises(ps.ElementError, match="labels of floats that can be mixed"):
        ps.from_arrays((images, np.arange(6))).batch(6).random_map(mix)[0]
    with pytest.raises(ps.ArgumentError, match="it is above 0"):
        mix_up(0)
