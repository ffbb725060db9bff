"""Distortions of a grey character, as they are written by hand: Pillow and plain Python, an element at a time.

They hold the GIL nearly all of the time, so threads do not help. Each is a function of its arguments alone, and
`distort` of its element and `rng`: the same numbers give the same pixels, in whatever process.

This module imports Pillow and NumPy and nothing else, for workers import it.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageFilter

BILINEAR = Image.Resampling.BILINEAR
FILTERS = (ImageFilter.GaussianBlur(1.2), ImageFilter.SHARPEN, ImageFilter.SMOOTH)


def distort(
    element: tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]], rng: np.random.Generator
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Distorts an image, and leaves its label: for `random_map`.

    Args:
        element: The image, (height, width) uint8, light on black; its label.
        rng: Of this element and epoch.
    """
    array, label = element
    image = Image.fromarray(array)
    image = image.rotate(rng.uniform(-15, 15), BILINEAR)
    image = shear(image, rng.uniform(-0.25, 0.25))
    image = scale(image, rng.uniform(0.75, 1.15), rng.uniform(0.75, 1.15))
    image = wave(image, rng.uniform(0, 3), rng.uniform(24, 64), rng.uniform())
    image = image.filter(FILTERS[rng.integers(len(FILTERS))])
    return np.asarray(image), label


def shear(image: Any, slope: float) -> Any:
    """Leans the image over, by `slope` pixels to the side for each pixel down; its middle row stays."""
    middle = slope * image.height / 2
    return image.transform(image.size, Image.Transform.AFFINE, (1, slope, -middle, 0, 1, 0), BILINEAR)


def scale(image: Any, across: float, down: float) -> Any:
    """Stretches or shrinks what the image shows, about its centre; 1 is as it is."""
    shown = image.resize((max(1, round(image.width * across)), max(1, round(image.height * down))), BILINEAR)
    scaled = Image.new("L", image.size)
    scaled.paste(shown, ((image.width - shown.width) // 2, (image.height - shown.height) // 2))
    return scaled


def wave(image: Any, amplitude: float, period: float, phase: float) -> Any:
    """Rolls each column up or down along a sine.

    Args:
        image: The image.
        amplitude: The most that a column is rolled, in pixels.
        period: Pixels from crest to crest.
        phase: Where the sine begins, 0 to 1.
    """
    waved = Image.new("L", image.size)
    for x in range(image.width):
        shift = round(amplitude * math.sin(2 * math.pi * (x / period + phase)))
        column = image.crop((x, 0, x + 1, image.height))
        waved.paste(ImageChops.offset(column, 0, shift), (x, 0))
    return waved
