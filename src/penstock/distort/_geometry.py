"""Distortions that move pixels: along straight lines by a matrix, along curves, and crops, which change the size."""

import math
from typing import Final, Literal

import numpy as np

from penstock.base._errors import ArgumentError
from penstock.distort._distortion import Distortion, moves
from penstock.distort._frame import Array
from penstock.distort._values import Amount, Draws, Range, chance, spread, whole
from penstock.distort._warp import Bend, Path, is_unmoved
from penstock.image._opencv import cv2

_TRY_COUNT: Final = 10
_ANYWHERE: Final = (0.0, 1.0)
_ROUND_COUNT: Final = 20
"""The rounds by which a point finds its place. Where the pull changes by half a pixel a pixel, the error is 1e-6."""


def rotate(degrees: Amount) -> Distortion:
    """Turns the image about its centre, anticlockwise. Its size stays.

    Args:
        degrees: 15 is -15 to 15.

    Example:
        >>> from penstock.image import rotate
        >>> images = penstock.from_arrays(np.zeros((100, 32, 32, 3), "uint8"))
        >>> images.random_map(rotate(15), seed=1)[0].shape
        (32, 32, 3)
    """
    return moves("rotate", _rotate, degrees=spread("rotate(): degrees", degrees, around=0))


def _rotate(path: Path, draws: Draws, degrees: Range) -> None:
    angle = math.radians(draws.between(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    path.about_centre(cosine, -sine, sine, cosine)


def shear(x: Amount, y: Amount = 0.0) -> Distortion:
    """Leans the image over about its centre. Its size stays.

    Args:
        x: Pixels to the right for each pixel up. 0.2 is -0.2 to 0.2.
        y: Pixels down for each pixel to the right.
    """
    return moves("shear", _shear, x=spread("shear(): x", x, around=0), y=spread("shear(): y", y, around=0))


def _shear(path: Path, draws: Draws, x: Range, y: Range) -> None:
    across, down = draws.between(x), draws.between(y)
    path.about_centre(1.0 - across * down, across, -down, 1.0)


def scale(factor: Amount = 0.0, *, x: Amount = 0.0, y: Amount = 0.0) -> Distortion:
    """Enlarges or shrinks the content of the image about its centre. Its size stays.

    Args:
        factor: The factor for both directions; 0.2 is 0.8 to 1.2. Above 1 enlarges.
        x: An additional factor for the width.
        y: An additional factor for the height.
    """
    return moves(
        "scale",
        _scale,
        factor=spread("scale(): factor", factor, around=1, least=0.01),
        x=spread("scale(): x", x, around=1, least=0.01),
        y=spread("scale(): y", y, around=1, least=0.01),
    )


def _scale(path: Path, draws: Draws, factor: Range, x: Range, y: Range) -> None:
    both = draws.between(factor)
    path.about_centre(1 / (both * draws.between(x)), 0.0, 0.0, 1 / (both * draws.between(y)))


def translate(x: Amount, y: Amount) -> Distortion:
    """Shifts the content of the image. Its size stays.

    Args:
        x: Pixels to the right, also a fraction. 4 is -4 to 4.
        y: Pixels down.
    """
    return moves(
        "translate", _translate, x=spread("translate(): x", x, around=0), y=spread("translate(): y", y, around=0)
    )


def _translate(path: Path, draws: Draws, x: Range, y: Range) -> None:
    path.transform((1.0, 0.0, -draws.between(x), 0.0, 1.0, -draws.between(y)))


def flip(horizontal: float = 0.5, vertical: float = 0.0) -> Distortion:
    """Swaps left and right, or top and bottom.

    Args:
        horizontal: Probability of a swap of left and right; 1 is always.
        vertical: Probability of a swap of top and bottom, independent of the other.
    """
    return moves(
        "flip",
        _flip,
        horizontal=chance("flip(): horizontal", horizontal),
        vertical=chance("flip(): vertical", vertical),
    )


def _flip(path: Path, draws: Draws, horizontal: float, vertical: float) -> None:
    x = -1.0 if draws.happens(horizontal) else 1.0
    y = -1.0 if draws.happens(vertical) else 1.0
    path.about_centre(x, 0.0, 0.0, y)


def crop(height: int, width: int, *, down: Amount = _ANYWHERE, across: Amount = _ANYWHERE) -> Distortion:
    """Cuts out a part of the image.

    An image `(h, w, channels)` becomes `(height, width, channels)`.

    Args:
        height: Height of the part in pixels.
        width: Width of the part in pixels.
        down: Its place: 0 is at the top, 1 at the bottom, 0.5 in the middle.
        across: The same from left to right.

    Raises:
        ValueError: When called: an image is smaller than the part.

    Example:
        >>> from penstock.image import crop
        >>> middle = crop(16, 16, down=0.5, across=0.5)  # no number to draw
        >>> penstock.from_arrays(np.zeros((100, 32, 32, 3), "uint8")).map(middle)[0].shape
        (16, 16, 3)
    """
    return moves(
        "crop",
        _crop,
        keeps_shapes=False,
        height=whole("crop(): height", height),
        width=whole("crop(): width", width),
        down=spread("crop(): down", down, least=0, most=1),
        across=spread("crop(): across", across, least=0, most=1),
    )


def _crop(path: Path, draws: Draws, height: int, width: int, down: Range, across: Range) -> None:
    if height > path.height or width > path.width:
        raise ValueError(
            f"crop({height}, {width}) is larger than the image of {path.height} x {path.width} pixels. Cut out less, "
            "or use resized_crop(), which takes images of any size."
        )
    top = _offset(path.height - height, draws.between(down))
    left = _offset(path.width - width, draws.between(across))
    path.transform((1.0, 0.0, left, 0.0, 1.0, top))
    path.height, path.width = height, width


def _offset(room: int, part: float) -> int:
    """Returns one of the `room + 1` places. They are equally likely for an even `part` from 0 to 1."""
    return min(int(part * (room + 1)), room)


def resized_crop(
    height: int,
    width: int,
    *,
    area: Amount = (0.08, 1.0),
    ratio: Amount = (3 / 4, 4 / 3),
    down: Amount = _ANYWHERE,
    across: Amount = _ANYWHERE,
) -> Distortion:
    """Cuts out a part of random size and shape, and resizes it, like torchvision's `RandomResizedCrop`.

    An image of any height and width becomes `(height, width, channels)`. A part is drawn up to ten times. If none fits
    into the image, it is the largest part in the middle with an allowed ratio.

    Alone, or with crops and flips, a part that shrinks is averaged, so that nothing flickers. In a warp with other
    steps each pixel is interpolated at its place, which skips pixels below half the size.

    Args:
        height: Height of the result in pixels.
        width: Width of the result in pixels.
        area: Area of the part, where the whole image is 1.
        ratio: Width over height of the part; its logarithm is drawn evenly.
        down: Its place: 0 is at the top, 1 at the bottom.
        across: The same from left to right.
    """
    return moves(
        "resized_crop",
        _resized_crop,
        keeps_shapes=False,
        height=whole("resized_crop(): height", height),
        width=whole("resized_crop(): width", width),
        **part_ranges("resized_crop()", area, ratio),
        down=spread("resized_crop(): down", down, least=0, most=1),
        across=spread("resized_crop(): across", across, least=0, most=1),
    )


def _resized_crop(
    path: Path, draws: Draws, height: int, width: int, area: Range, ratio: Range, down: Range, across: Range
) -> None:
    part = drawn_part(area, ratio, path.height, path.width, draws)
    places = draws.between(down), draws.between(across)
    if part is None:
        shape = min(max(path.width / path.height, ratio.low), ratio.high)
        part = max(1, min(path.height, round(path.width / shape))), max(1, min(path.width, round(path.height * shape)))
        places = 0.5, 0.5
    top, left = _offset(path.height - part[0], places[0]), _offset(path.width - part[1], places[1])
    y, x = part[0] / height, part[1] / width
    path.transform((x, 0.0, left + x / 2 - 0.5, 0.0, y, top + y / 2 - 0.5))
    path.height, path.width = height, width


def part_ranges(verb: str, area: Amount, ratio: Amount) -> dict[str, Range]:
    """Checks the arguments for `drawn_part`."""
    return {
        "area": spread(f"{verb}: area", area, least=1e-6, most=1),
        "ratio": spread(f"{verb}: ratio", ratio, least=1e-3, most=1e3),
    }


def drawn_part(area: Range, ratio: Range, height: int, width: int, draws: Draws) -> tuple[int, int] | None:
    """Draws height and width of a part of an image; None if none of ten fits."""
    logarithms = Range(math.log(ratio.low), math.log(ratio.high))
    for _ in range(_TRY_COUNT):
        pixels = height * width * draws.between(area)
        shape = math.exp(draws.between(logarithms))
        part_height, part_width = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < part_height <= height and 0 < part_width <= width:
            return part_height, part_width
    return None


def sine_warp(
    amplitude: Amount, period: Amount, *, phase: Amount = (0.0, 1.0), along: Literal["columns", "rows"] = "columns"
) -> Distortion:
    """Shifts each column up or down along a sine, like a waving flag. The size stays.

    In `compose(..., border="wrap")` columns are rolled: pixels that leave at the top enter at the bottom.

    Args:
        amplitude: The largest shift of a column in pixels, also a fraction. 4 is 0 to 4.
        period: Pixels from crest to crest; a number is that number.
        phase: The start of the sine, 0 to 1.
        along: `"columns"` shifts columns up and down; `"rows"` shifts rows to left and right.
    """
    if along not in ("columns", "rows"):
        raise ArgumentError(f"sine_warp(): along={along!r} is neither 'columns' nor 'rows'.")
    return moves(
        "sine_warp",
        _sine_warp,
        amplitude=spread("sine_warp(): amplitude", amplitude, above=0),
        period=spread("sine_warp(): period", period, least=1),
        phase=spread("sine_warp(): phase", phase),
        along=along,
    )


def _sine_warp(path: Path, draws: Draws, amplitude: Range, period: Range, phase: Range, along: str) -> None:
    height = draws.between(amplitude)
    frequency = 2 * math.pi / draws.between(period)
    start = 2 * math.pi * draws.between(phase)
    read, moved = (0, 1) if along == "columns" else (1, 0)

    def shifts(places: Array) -> Array:
        both = np.zeros((*places.shape, 2), places.dtype)
        both[..., moved] = height * np.sin(frequency * places + start)
        return both

    def origins(of: Array) -> Array:
        places = of[..., read]
        if is_unmoved(of):  # then all rows or columns are alike
            places = places[:1] if along == "columns" else places[:, :1]
        return of - shifts(places)  # a pixel of a column that was shifted down comes from above

    def places(of: Array) -> Array:
        return of + shifts(of[:, read])

    path.bend(Bend(origins, places))


def elastic(displacement: Amount, spacing: Amount) -> Distortion:
    """Pulls parts of the image in random directions, as if it were drawn on rubber. Its size stays.

    P. Simard, D. Steinkraus, J. Platt, "Best Practices for Convolutional Neural Networks Applied to Visual Document
    Analysis", ICDAR 2003. They smooth a random number for each pixel. This draws one for every `spacing` pixels and
    interpolates by cubics, which is as smooth, and cheaper. Their alpha=34, sigma=4 pulls pixels by about 1.4 over
    distances of about 8.

    Args:
        displacement: The standard deviation of the pull in x, and in y, in pixels. 2 is 0 to 2. `exactly(2)` draws
            only the pulls.
        spacing: The distance in pixels over which the pull changes; a number is that number.
    """
    return moves(
        "elastic",
        _elastic,
        displacement=spread("elastic(): displacement", displacement, above=0, least=0),
        spacing=spread("elastic(): spacing", spacing, least=1),
    )


def _elastic(path: Path, draws: Draws, displacement: Range, spacing: Range) -> None:
    height, width = path.height, path.width
    deviation, distance = draws.between(displacement), draws.between(spacing)
    # Two extra knots, so that the borders are not smoother than the middle.
    knots = (round(height / distance) + 2, round(width / distance) + 2, 2)
    pulls = draws.rng.standard_normal(knots, dtype=np.float32)
    field = cv2.resize(pulls * np.float32(deviation), (width, height), interpolation=cv2.INTER_CUBIC)

    def pulls_at(places: Array) -> Array:
        pulled: Array = cv2.remap(field, places.astype(np.float32), None, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)
        return pulled

    def origins(of: Array) -> Array:
        is_whole = is_unmoved(of) and of.shape == field.shape
        return of + (field if is_whole else pulls_at(of))

    def places(of: Array) -> Array:
        found = of
        for _ in range(_ROUND_COUNT):  # its origin, place + pull at the place, is the point
            found = of - pulls_at(found[None])[0]
        return found

    path.bend(Bend(origins, places))
