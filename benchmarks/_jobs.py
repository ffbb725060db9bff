"""Functions of an element that benchmarks of worker processes run, alike for every contender."""

import functools
import random
import time
from typing import Any

import numpy as np
from _harness import Array

_STEP_COUNT = 14_000
_MULTIPLIER, _INCREMENT, _MASK = 1_103_515_245, 12_345, 0x7FFF_FFFF
_WORD_COUNT = 16
PICTURE_SHAPE = (224, 224, 3)
_MEAN, _DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def hold_gil(index: Any) -> Array:
    """Computes in pure Python for about a millisecond, the same for each element, and never lets go of the GIL.

    Returns:
        An array of shape (16,), int64: the index, and 15 times a number that follows from it.
    """
    number = int(index)
    state = number
    for _ in range(_STEP_COUNT):
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
    words = np.full(_WORD_COUNT, state)
    words[0] = number
    return words


def seldom_slow(index: Any) -> Array:
    """Returns what `hold_gil` gives. One element in twenty takes 50 ms of Python instead of one."""
    if is_slow(int(index)):
        for _ in range(49):
            hold_gil(index)
    return hold_gil(index)


def seldom_waits(index: Any) -> Array:
    """Returns what `hold_gil` gives. One element in twenty waits for 49 ms first, as a request does."""
    if is_slow(int(index)):
        time.sleep(0.049)
    return hold_gil(index)


def is_slow(number: int) -> bool:
    """Whether an element is one of the slow ones, which are spread at random."""
    return random.Random(number).random() < 0.05


def held(indices: Array) -> Array:
    """Returns what `hold_gil` gives for many indices, as rows, without its time: to check what was delivered."""
    # Many steps of a linear congruence are one, whose two constants follow from two of its values.
    increment = int(hold_gil(0)[1])
    multiplier = (int(hold_gil(1)[1]) - increment) & _MASK
    rows = np.empty((len(indices), _WORD_COUNT), np.int64)
    rows[:] = ((indices * multiplier + increment) & _MASK)[:, None]
    rows[:, 0] = indices
    return rows


def plain_picture(index: Any) -> Array:
    """Returns a picture of one colour, (224, 224, 3) uint8, 150 kB: as cheap as data can be made in Python."""
    return np.full(PICTURE_SHAPE, int(index) & 0xFF, np.uint8)


def adjusted_picture(index: Any) -> Array:
    """Returns a picture in NumPy's usual way, an array for each step: (224, 224, 3) float32, 602 kB.

    Mirrored, brighter, of more contrast, less colourful, normalised: 3 MB of arrays that live for an element.
    """
    number = int(index)
    pixels = _photograph()[number % 32 :][: PICTURE_SHAPE[0], : PICTURE_SHAPE[1]].astype(np.float32) / 255
    if number % 2:
        pixels = pixels[:, ::-1]
    pixels = np.clip(pixels * np.float32(1.1) + np.float32(0.01 * (number % 8)), 0, 1)
    pixels = pixels * np.float32(0.8) + pixels.mean(axis=2, keepdims=True) * np.float32(0.2)
    normalised: Array = (pixels - _MEAN) / _DEVIATION
    return normalised


@functools.cache
def _photograph() -> Array:
    return np.random.default_rng(0).integers(0, 256, (PICTURE_SHAPE[0] + 32, *PICTURE_SHAPE[1:]), np.uint8)
