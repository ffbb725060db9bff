"""Distortions of pixel values. Integers are rounded and clipped to their dtype; floats are not.

Amounts are factors, or in the units of the pixels. So the range of floats does not matter.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError
from penstock.distort._distortion import Distortion, changes
from penstock.distort._frame import Array, Frame, Work, rounded
from penstock.distort._geometry import drawn_part, part_ranges
from penstock.distort._values import Amount, Draws, Range, numbers, spread
from penstock.image._opencv import cv2

_NO_BLUR: Final = 0.1
"""A standard deviation, in pixels, below which no 8-bit pixel changes."""
_LEAST_NOISE: Final = 0.1
"""A standard deviation, in levels, below which rounding removes all noise."""
_ONE: Final = 1.01
"""Interpolated values may be slightly above 1."""

# OpenCV's names of the dtypes of frames.
_DEPTHS: Final = {"u1": cv2.CV_8U, "u2": cv2.CV_16U, "i2": cv2.CV_16S, "f4": cv2.CV_32F, "f8": cv2.CV_64F}
_STILL: Final = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)
_TO_MEAN: Final = np.array([[1, 1, 1], [1, -8, 1], [1, 1, 1]], np.float32) / 8


@final
@dataclass(frozen=True)
class _EachImage:
    """Draws a number, and changes each image with it."""

    function: Callable[[Array, float], Array]

    def __call__(self, work: Work, draws: Draws, amount: Range) -> None:
        number = draws.between(amount)
        for frame in work.images:
            frame.image = self.function(frame.image, number)


def blur(sigma: Amount) -> Distortion:
    """Blurs with a Gaussian. Beyond the border the image is mirrored.

    Args:
        sigma: Its standard deviation in pixels. 1.5 is 0 to 1.5.
    """
    return changes("blur", _EachImage(_blur), sigma=spread("blur(): sigma", sigma, above=0, least=0))


def _blur(image: Array, deviation: float) -> Array:
    if deviation < _NO_BLUR:
        return image
    side = 2 * math.ceil(3 * deviation) + 1
    return cv2.GaussianBlur(image, (side, side), deviation)  # type: ignore[no-any-return]


def smooth(amount: Amount) -> Distortion:
    """Mixes each pixel with the mean of its eight neighbours. Beyond the border the image is mirrored.

    Args:
        amount: The neighbours' part: 0.6 is 0 to 0.6. Pillow's `SMOOTH` is `exactly(8 / 13)`.
    """
    return changes("smooth", _EachImage(_smooth), amount=spread("smooth(): amount", amount, above=0, least=0, most=1))


def _smooth(image: Array, amount: float) -> Array:
    return cv2.filter2D(image, -1, _STILL + amount * _TO_MEAN)  # type: ignore[no-any-return]


def sharpen(amount: Amount) -> Distortion:
    """Moves each pixel away from the mean of its eight neighbours. Beyond the border the image is mirrored.

    Args:
        amount: The distance, where 1 doubles the difference: 1 is 0 to 1. Pillow's `SHARPEN` is `exactly(1)`.
    """
    return changes("sharpen", _EachImage(_sharpen), amount=spread("sharpen(): amount", amount, above=0, least=0))


def _sharpen(image: Array, amount: float) -> Array:
    return _smooth(image, -amount)


def brightness(factor: Amount) -> Distortion:
    """Multiplies all pixels by a factor.

    Args:
        factor: 0.2 is 0.8 to 1.2; 0 would be black.
    """
    return changes(
        "brightness", _EachImage(_brightness), factor=spread("brightness(): factor", factor, around=1, least=0)
    )


def _brightness(image: Array, factor: float) -> Array:
    return cv2.addWeighted(image, factor, image, 0.0, 0.0)  # type: ignore[no-any-return]


def contrast(factor: Amount) -> Distortion:
    """Moves all pixels away from the mean of the image over all channels, or closer to it.

    Args:
        factor: 0.2 is 0.8 to 1.2; 0 would be grey.
    """
    return changes("contrast", _EachImage(_contrast), factor=spread("contrast(): factor", factor, around=1, least=0))


def _contrast(image: Array, factor: float) -> Array:
    return cv2.addWeighted(image, factor, image, 0.0, (1 - factor) * float(image.mean()))  # type: ignore[no-any-return]


def noise(sigma: Amount) -> Distortion:
    """Adds a normal random number to each pixel of each channel.

    Args:
        sigma: Their standard deviation in the units of the pixels: levels of 0 to 255 for uint8. 8 is 0 to 8.

    Raises:
        ValueError: When called: the pixels are integers, and `sigma` is too small to change any.
    """
    return changes("noise", _noise, sigma=spread("noise(): sigma", sigma, above=0, least=0))


def _noise(work: Work, draws: Draws, sigma: Range) -> None:
    deviation = draws.between(sigma)
    for frame in work.images:
        if frame.dtype.kind in "iu" and sigma.high < _LEAST_NOISE:
            raise ValueError(
                f"noise({sigma}) changes nothing of an image of {frame.dtype}: sigma is in levels. Give levels, as in "
                "noise(8), or make the image float32 before: to_float()."
            )
        normal = draws.rng.standard_normal(frame.image.shape, dtype=np.float32)
        depth = _DEPTHS[frame.image.dtype.str[1:]]
        frame.image = cv2.addWeighted(frame.image, 1.0, normal, deviation, 0.0, dtype=depth)


def erase(
    area: Amount = (0.02, 0.33), ratio: Amount = (0.3, 10 / 3), value: float | Sequence[float] = 0.0
) -> Distortion:
    """Paints a rectangle over. If none of ten drawn rectangles fits into the image, the image stays unchanged.

    Masks, boxes, points and labels stay as they are, also those of an object that is painted over.

    Z. Zhong, L. Zheng, G. Kang, S. Li, Y. Yang, "Random Erasing Data Augmentation", AAAI 2020; they erase every second
    image: `sometimes(0.5, erase())`.

    Args:
        area: Area of the rectangle, where the whole image is 1.
        ratio: Width over height; its logarithm is drawn evenly.
        value: The paint, in the units of the pixels; one number, or one for each channel.
    """
    ranges = part_ranges("erase()", area, ratio)
    return changes("erase", _erase, **ranges, value=numbers("erase(): value", value))


def _erase(work: Work, draws: Draws, area: Range, ratio: Range, value: tuple[float, ...]) -> None:
    height, width = work.images[0].image.shape[:2]
    part = drawn_part(area, ratio, height, width, draws)
    top, left = draws.rng.random(), draws.rng.random()
    if part is None:
        return
    y, x = int(top * (height - part[0] + 1)), int(left * (width - part[1] + 1))
    for frame in work.images:
        _paint(frame, (slice(y, y + part[0]), slice(x, x + part[1])), value)


def _paint(frame: Frame, place: tuple[slice, slice], value: tuple[float, ...]) -> None:
    """Paints a rectangle of a copy of the image."""
    colour: Array = np.array(value if len(value) > 1 else value[0])
    if frame.image.dtype.kind in "iu":
        colour = rounded(colour, frame.image.dtype)
    frame.image = frame.image.copy()
    try:
        frame.image[place] = colour
    except ValueError as error:
        raise ValueError(f"erase(value=) takes one number, or one for each channel: {error}.") from None


def to_float(dtype: Any = "float32") -> Distortion:
    """Converts integers to floats from 0 to 1: the largest value of their dtype becomes 1. Floats keep their values.

    Args:
        dtype: float16, float32 or float64.

    Raises:
        ValueError: When called: an image of floats has values above 1, such as levels up to 255.

    Example:
        >>> from penstock.image import to_float
        >>> to_float()(np.array([[0, 51, 255]], "uint8"))
        array([[0. , 0.2, 1. ]], dtype=float32)
    """
    try:
        name = np.dtype(dtype).name
    except TypeError:
        raise ArgumentTypeError(f"to_float() takes a dtype, not {dtype!r}.") from None
    if name not in ("float16", "float32", "float64"):
        raise ArgumentError(f"to_float() makes float16, float32 or float64, not {name}.")
    return changes("to_float", _to_float, dtype=name)


def _to_float(work: Work, draws: Draws, name: str) -> None:
    dtype, working = np.dtype(name), np.promote_types(name, np.float32)
    for frame in work.images:
        if frame.dtype.kind in "iu":
            frame.image = np.divide(frame.image, np.iinfo(frame.dtype).max, dtype=working)
        elif frame.image.max(initial=0) > _ONE:
            raise ValueError(
                f"to_float() leaves floats as they are, and these go up to {frame.image.max():g}, not 1. Read the "
                'images with dtype="uint8"; or divide them by 255, for levels up to 255.'
            )
        frame.image, frame.dtype = frame.image.astype(working, copy=False), dtype
