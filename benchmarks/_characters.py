"""Grey characters of 64x64, and the distortions that people write for them on Pillow."""

import math
import random
import string
from typing import Any

import numpy as np
from _contenders import Element
from _harness import Array
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIDE = 64
COUNT = 4096
"""16 MiB of them: enough that they are data, and not a constant."""

_FILTERS = (ImageFilter.GaussianBlur(1), ImageFilter.SHARPEN, ImageFilter.SMOOTH)


def characters() -> Array:
    """Returns drawn letters and digits, a little out of place, (4096, 64, 64) uint8."""
    font = ImageFont.load_default(size=44)
    rng = random.Random(0)
    drawn = np.empty((COUNT, SIDE, SIDE), np.uint8)
    for number in range(COUNT):
        image = Image.new("L", (SIDE, SIDE))
        place = (SIDE // 2 + rng.randint(-4, 4), SIDE // 2 + rng.randint(-4, 4))
        letter = rng.choice(string.ascii_letters + string.digits)
        ImageDraw.Draw(image).text(place, letter, fill=rng.randint(160, 255), font=font, anchor="mm")
        drawn[number] = np.asarray(image)
    return drawn


def distorted(character: Array, rng: random.Random) -> Array:
    """Rotates, shears, scales, rolls the columns along a sine, and blurs, sharpens or smooths: (64, 64) uint8."""
    image = Image.fromarray(character).rotate(rng.uniform(-15, 15), Image.Resampling.BICUBIC)
    shear, scale = rng.uniform(-0.3, 0.3), rng.uniform(0.8, 1.2)
    middle = SIDE / 2
    image = _affine(image, (1, shear, -shear * middle, 0, 1, 0))
    image = _affine(image, (scale, 0, middle * (1 - scale), 0, scale, middle * (1 - scale)))
    pixels = np.array(image)
    height, phase = rng.uniform(0, 4), rng.uniform(0, 2 * math.pi)
    for column in range(SIDE):
        shift = round(height * math.sin(phase + 2 * math.pi * column / SIDE))
        pixels[:, column] = np.roll(pixels[:, column], shift)
    return np.asarray(Image.fromarray(pixels).filter(rng.choice(_FILTERS)))


def _affine(image: Image.Image, inverse: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, inverse, Image.Resampling.BICUBIC)


def half_distorted(drawn: Array) -> Element:
    """Returns the function of an element: every second one is distorted, the others are as they were drawn."""

    def element(index: Any) -> Array:
        number = int(index)
        character: Array = drawn[number % COUNT]
        # Seeded by its index, so that every contender makes the same pictures and they can be compared.
        return distorted(character, random.Random(number)) if number % 2 else character

    return element
