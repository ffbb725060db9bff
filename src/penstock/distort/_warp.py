"""Several geometric changes as one: the origin of each pixel of the result, then one interpolation.

A `Path` maps a pixel of the result back to a place in the image. Each step adds its inverse. Affine steps multiply into
a matrix, others stand between two matrices. At the end an affine path is one `cv2.warpAffine`, or a slice for a crop,
flip or resize. Any other path is evaluated for every pixel, and is one `cv2.remap`. Boxes and points go the other way,
step by step.

Coordinates are those of pixel centres: the centre of an image of width w is (w - 1) / 2.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, final

import numpy as np

from penstock.distort._frame import Array, Frame, Work
from penstock.image._opencv import cv2

Matrix = tuple[float, float, float, float, float, float]
"""(a, b, c, d, e, f): x becomes a * x + b * y + c, and y becomes d * x + e * y + f."""

Values = tuple[float, ...]
"""The border value of each channel."""

_IDENTITY: Final[Matrix] = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
_EXACT: Final = 1e-6
"""The error of a crop in pixels that is ignored: rounding errors of a few multiplications."""
_MARGIN: Final = 16
"""Even, for masks: half-way between two pixels the even one counts."""
_SMALL_SIDE: Final = 96
_LASTING_BORDERS: Final = (cv2.BORDER_CONSTANT, cv2.BORDER_REPLICATE)
"""Borders that look the same beyond a margin."""
_MAX_CHANNELS: Final = 4
"""More channels are warped in groups, because OpenCV has border values for four."""


class Bend(NamedTuple):
    """A step that is no matrix."""

    origins: Callable[[Array], Array]
    """Returns the origins, in the image before it, of places in the image after it. Both are (height, width, 2)."""
    places: Callable[[Array], Array]
    """Returns the places, in the image after it, of points (count, 2) of the image before it."""


@lru_cache(maxsize=16)
def unmoved(height: int, width: int) -> Array:
    """Returns x and y of each pixel, (height, width, 2) float32."""
    y, x = np.indices((height, width), np.float32)
    places = np.stack([x, y], -1)
    places.flags.writeable = False
    return places


def is_unmoved(origins: Array) -> bool:
    """Whether each pixel comes from its own place."""
    return origins is unmoved(*origins.shape[:2])


@final
class Path:
    """The map from a result back to its image, built step by step.

    Args:
        height: Height of the image in pixels.
        width: Width of the image in pixels.
    """

    __slots__ = ("_before", "_matrix", "height", "width")

    def __init__(self, height: int, width: int) -> None:
        self.height: int = height
        """Height of the result of the steps so far."""
        self.width: int = width
        self._matrix = _IDENTITY
        self._before: list[tuple[Matrix, Bend]] = []

    def transform(self, inverse: Matrix) -> None:
        """Adds an affine step, by its inverse."""
        a, b, c, d, e, f = self._matrix
        g, h, i, j, k, m = inverse
        self._matrix = (
            a * g + b * j,
            a * h + b * k,
            a * i + b * m + c,
            d * g + e * j,
            d * h + e * k,
            d * i + e * m + f,
        )

    def about_centre(self, a: float, b: float, d: float, e: float) -> None:
        """Adds a linear step about the centre, by its inverse."""
        x, y = (self.width - 1) / 2, (self.height - 1) / 2
        self.transform((a, b, x - a * x - b * y, d, e, y - d * x - e * y))

    def bend(self, bend: Bend) -> None:
        """Adds a step that is not affine."""
        self._before.append((self._matrix, bend))
        self._matrix = _IDENTITY

    def apply(self, work: Work) -> None:
        """Warps the frames."""
        frames = [*work.images, *work.masks]
        for places in work.places:
            places.move(self._places, self.height, self.width)
        if not self._before and (box := self._box(*work.size)):
            for frame in frames:
                frame.image = _boxed(frame, box, self.height, self.width)
            return
        margin = _margin(work.images[0])
        origins = self._origins(margin)
        for frame in frames:
            warp = partial(_warped, frame, margin, origins, (self.width, self.height))
            frame.image = _by_channels(warp, frame.image, frame.value)

    def _places(self, points: Array) -> Array:
        """Returns the places in the result of points of the image."""
        for matrix, bend in self._before:
            points = bend.places(_moved(points, matrix))
        return _moved(points, self._matrix)

    def _origins(self, margin: int) -> Array:
        """Returns the matrix of an affine path, or the origins of another. For images with a margin around them."""
        if not self._before:
            return np.reshape(_shifted(self._matrix, margin), (2, 3))
        origins, matrix_after = unmoved(self.height, self.width), self._matrix
        for before, bend in reversed(self._before):
            origins = bend.origins(_transformed(origins, matrix_after))
            matrix_after = before
        return _transformed(origins, _shifted(matrix_after, margin))

    def _box(self, height: int, width: int) -> tuple[slice, slice] | None:
        """Returns the slices of the image that become the result by a resize; None if there are none."""
        a, b, c, d, e, f = self._matrix
        if abs(b) * height > _EXACT or abs(d) * width > _EXACT:
            return None
        columns = _slice(a, c, self.width, width)
        rows = _slice(e, f, self.height, height) if columns else None
        return (rows, columns) if rows and columns else None


def _transformed(origins: Array, matrix: Matrix) -> Array:
    return origins if matrix == _IDENTITY else cv2.transform(origins, np.reshape(matrix, (2, 3)))


def _moved(points: Array, inverse: Matrix) -> Array:
    """Moves points by an affine step, given its inverse."""
    forward = np.linalg.inv(np.array([*inverse, 0, 0, 1]).reshape(3, 3))
    return points @ forward[:2, :2].T + forward[:2, 2]


def _margin(frame: Frame) -> int:
    """Returns the width of the border that is added to an image before the warp.

    OpenCV 5 computes 16 pixels of a bicubic warp at once if all their origins are inside the image, else one by one.
    Small images are mostly border: 64x64 pixels, turned by up to 5 degrees, took 58 us, and take 37 us with a margin.
    Larger images gain little, and lose if many origins are far outside. Bilinear warps gain nothing.
    """
    is_small = max(frame.image.shape[:2]) <= _SMALL_SIDE
    return _MARGIN if is_small and frame.interpolation == cv2.INTER_CUBIC and frame.border in _LASTING_BORDERS else 0


def _shifted(matrix: Matrix, margin: int) -> Matrix:
    a, b, c, d, e, f = matrix
    return (a, b, c + margin, d, e, f + margin)


def _warped(frame: Frame, margin: int, origins: Array, size: tuple[int, int], image: Array, value: Values) -> Any:
    if margin:
        image = cv2.copyMakeBorder(image, margin, margin, margin, margin, frame.border, None, value)
    if origins.ndim == 3:
        return cv2.remap(image, origins, None, frame.interpolation, None, frame.border, value)
    flags = frame.interpolation | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, origins, size, None, flags, frame.border, value)


def _slice(factor: float, offset: float, count: int, limit: int) -> slice | None:
    """Returns the slice of an axis that `count` pixels come from, if it is whole pixels within `limit`."""
    first, last = offset - factor / 2 + 0.5, offset + factor * (count - 0.5) + 0.5  # edges of the outermost pixels
    first, last = min(first, last), max(first, last)
    low, high = round(first), round(last)
    if max(abs(first - low), abs(last - high)) > _EXACT or not 0 <= low < high <= limit:
        return None
    return slice(low, high) if factor > 0 else slice(high - 1, low - 1 if low else None, -1)


def _boxed(frame: Frame, box: tuple[slice, slice], height: int, width: int) -> Array:
    """Resizes a part of the image. If it shrinks, each pixel is the mean of the pixels that it covers."""
    part = frame.image[box]
    if part.shape[:2] == (height, width):
        return part
    interpolation = frame.interpolation
    if interpolation == cv2.INTER_NEAREST:
        interpolation = cv2.INTER_NEAREST_EXACT
    elif part.shape[0] >= height and part.shape[1] >= width:
        interpolation = cv2.INTER_AREA
    return _by_channels(lambda some, _: cv2.resize(some, (width, height), interpolation=interpolation), part)


def _by_channels(warp: Callable[[Array, Values], Array], image: Array, value: float | tuple[float, ...] = 0.0) -> Array:
    """Warps at most four channels at a time, with the border values of each."""
    channel_count = image.shape[2] if image.ndim == 3 else 1
    if not isinstance(value, tuple):
        value = (value,) * max(channel_count, _MAX_CHANNELS)
    elif len(value) != channel_count:
        raise ValueError(
            f"value= has {len(value)} numbers, and the image {channel_count} channels. Give one, or one for each."
        )
    if channel_count <= _MAX_CHANNELS:
        return warp(image, value)
    # A group of a single channel comes back without its axis.
    groups = [slice(start, start + _MAX_CHANNELS) for start in range(0, channel_count, _MAX_CHANNELS)]
    return np.dstack([warp(image[:, :, group], value[group]) for group in groups])
