"""Distortions that move pixels along straight lines. Each is a matrix, and a crop also changes the size."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, final

from penstock.image._distortion import Distortion, Geometry
from penstock.image._frame import MAX_SIDE
from penstock.image._values import Amount, Draws, Range, chance, spread, whole
from penstock.image._warp import Path

_TRY_COUNT: Final = 10
_ANYWHERE: Final = (0.0, 1.0)
_STEEPEST: Final = 100.0
"""A steeper image shows nothing, and OpenCV would count the reflections of its border one by one."""


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
    return _Rotate(spread("rotate(): degrees", degrees, around=0))


@final
@dataclass(frozen=True, repr=False)
class _Rotate(Geometry):
    name: ClassVar[str] = "rotate"
    degrees: Range

    def add_to(self, path: Path, draws: Draws) -> None:
        angle = math.radians(draws.between(self.degrees))
        cosine, sine = math.cos(angle), math.sin(angle)
        path.about_centre(cosine, -sine, sine, cosine)


def shear(x: Amount, y: Amount = 0.0) -> Distortion:
    """Leans the image over about its centre. Its size stays.

    Args:
        x: Pixels to the right for each pixel up. 0.2 is -0.2 to 0.2.
        y: Pixels down for each pixel to the right.
    """
    ranges = {"x": x, "y": y}
    return _Shear(*(spread(f"shear(): {n}", v, around=0, least=-_STEEPEST, most=_STEEPEST) for n, v in ranges.items()))


@final
@dataclass(frozen=True, repr=False)
class _Shear(Geometry):
    name: ClassVar[str] = "shear"
    x: Range
    y: Range

    def add_to(self, path: Path, draws: Draws) -> None:
        if self.x != (0, 0):
            path.about_centre(1.0, draws.between(self.x), 0.0, 1.0)
        if self.y != (0, 0):
            path.about_centre(1.0, 0.0, -draws.between(self.y), 1.0)


def scale(factor: Amount = 0.0, *, x: Amount = 0.0, y: Amount = 0.0) -> Distortion:
    """Enlarges or shrinks the content of the image about its centre. Its size stays.

    Args:
        factor: The factor for both directions; 0.2 is 0.8 to 1.2. Above 1 enlarges.
        x: An additional factor for the width.
        y: An additional factor for the height.
    """
    ranges = {"factor": factor, "x": x, "y": y}
    return _Scale(*(spread(f"scale(): {name}", value, around=1, least=0.01) for name, value in ranges.items()))


@final
@dataclass(frozen=True, repr=False)
class _Scale(Geometry):
    name: ClassVar[str] = "scale"
    factor: Range
    x: Range
    y: Range

    def add_to(self, path: Path, draws: Draws) -> None:
        factor = draws.between(self.factor)
        x, y = factor * draws.between(self.x), factor * draws.between(self.y)
        path.about_centre(1 / x, 0.0, 0.0, 1 / y)


def translate(x: Amount, y: Amount) -> Distortion:
    """Shifts the content of the image. Its size stays.

    Args:
        x: Pixels to the right, also a fraction. 4 is -4 to 4.
        y: Pixels down.
    """
    ranges = {"x": x, "y": y}
    return _Translate(
        *(spread(f"translate(): {n}", v, around=0, least=-MAX_SIDE, most=MAX_SIDE) for n, v in ranges.items())
    )


@final
@dataclass(frozen=True, repr=False)
class _Translate(Geometry):
    name: ClassVar[str] = "translate"
    x: Range
    y: Range

    def add_to(self, path: Path, draws: Draws) -> None:
        path.transform((1.0, 0.0, -draws.between(self.x), 0.0, 1.0, -draws.between(self.y)))


def flip(horizontal: float = 0.5, vertical: float = 0.0) -> Distortion:
    """Swaps left and right, or top and bottom.

    Args:
        horizontal: Probability of a swap of left and right; 1 is always.
        vertical: Probability of a swap of top and bottom, independent of the other.
    """
    what = {"horizontal": horizontal, "vertical": vertical}
    return _Flip(*(chance(f"flip(): {name}", value) for name, value in what.items()))


@final
@dataclass(frozen=True, repr=False)
class _Flip(Geometry):
    name: ClassVar[str] = "flip"
    horizontal: float
    vertical: float

    def add_to(self, path: Path, draws: Draws) -> None:
        x = -1.0 if draws.happens(self.horizontal) else 1.0
        y = -1.0 if draws.happens(self.vertical) else 1.0
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
    return _Crop(
        whole("crop(): height", height),
        whole("crop(): width", width),
        spread("crop(): down", down, least=0, most=1),
        spread("crop(): across", across, least=0, most=1),
    )


@final
@dataclass(frozen=True, repr=False)
class _Crop(Geometry):
    name: ClassVar[str] = "crop"
    height: int
    width: int
    down: Range
    across: Range

    @property
    def keeps_shapes(self) -> bool:
        """False: all results have one size."""
        return False

    def add_to(self, path: Path, draws: Draws) -> None:
        if self.height > path.height or self.width > path.width:
            raise ValueError(
                f"crop({self.height}, {self.width}) is larger than the image of {path.height} x {path.width} pixels. "
                "Cut out less, or use resized_crop(), which takes images of any size."
            )
        top = _offset(path.height - self.height, draws.between(self.down))
        left = _offset(path.width - self.width, draws.between(self.across))
        path.transform((1.0, 0.0, left, 0.0, 1.0, top))
        path.height, path.width = self.height, self.width


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
    return _ResizedCrop(
        whole("resized_crop(): height", height, MAX_SIDE),
        whole("resized_crop(): width", width, MAX_SIDE),
        spread("resized_crop(): area", area, least=1e-6, most=1),
        spread("resized_crop(): ratio", ratio, least=1e-3, most=1e3),
        spread("resized_crop(): down", down, least=0, most=1),
        spread("resized_crop(): across", across, least=0, most=1),
    )


@final
@dataclass(frozen=True, repr=False)
class _ResizedCrop(Geometry):
    name: ClassVar[str] = "resized_crop"
    height: int
    width: int
    area: Range
    ratio: Range
    down: Range
    across: Range

    @property
    def keeps_shapes(self) -> bool:
        """False: all results have one size."""
        return False

    def add_to(self, path: Path, draws: Draws) -> None:
        part = drawn_part(self.area, self.ratio, path.height, path.width, draws)
        down, across = draws.between(self.down), draws.between(self.across)
        if part is None:
            part, down, across = self._largest(path.height, path.width), 0.5, 0.5
        height, width = part
        top, left = _offset(path.height - height, down), _offset(path.width - width, across)
        y, x = height / self.height, width / self.width
        path.transform((x, 0.0, left + x / 2 - 0.5, 0.0, y, top + y / 2 - 0.5))
        path.height, path.width = self.height, self.width

    def _largest(self, height: int, width: int) -> tuple[int, int]:
        ratio = min(max(width / height, self.ratio.low), self.ratio.high)
        return max(1, min(height, round(width / ratio))), max(1, min(width, round(height * ratio)))


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
