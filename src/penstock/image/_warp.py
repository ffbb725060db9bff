"""Several geometric changes as one: the origin of each pixel of the result, then one interpolation.

A `Path` maps a pixel of the result back to a place in the image. Each step adds its inverse. Affine steps multiply into
a matrix, others stand between two matrices. At the end an affine path is one `cv2.warpAffine`, or a slice for a crop,
flip or resize. Any other path is evaluated for every pixel, and is one `cv2.remap`.

Coordinates are those of pixel centres: the centre of an image of width w is (w - 1) / 2.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, final

import numpy as np

from penstock.image._frame import Array, Frame, Work
from penstock.image._opencv import cv2
from penstock.image._places import moved_by_matrix, moved_by_origins

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


@final
class Grid:
    """The origins of the pixels of a result, as sums of a part by column and a part by row.

    Most steps keep such sums, so they take a few operations on a row and a column instead of every pixel. A constant
    part is a number. The part by column becomes an array of all pixels if necessary.
    """

    __slots__ = ("is_unmoved", "shape", "x_by_column", "x_by_row", "y_by_column", "y_by_row")

    def __init__(self, height: int, width: int) -> None:
        self.shape = (height, width)
        self.x_by_column: Any = _counted(width)
        self.x_by_row: Any = 0.0
        self.y_by_column: Any = 0.0
        self.y_by_row: Any = _counted(height)[:, None]
        self.is_unmoved = True
        """Whether each pixel comes from its own place: `x_by_row` and `y_by_column` are 0."""

    def transform(self, matrix: Matrix) -> None:
        """Moves all places by an affine map."""
        if matrix == _IDENTITY:
            return
        a, b, c, d, e, f = matrix
        x, y, x_row, y_row = self.x_by_column, self.y_by_column, self.x_by_row, self.y_by_row
        self.x_by_column, self.y_by_column = a * x + (b * y + c), d * x + (e * y + f) if d else e * y + f
        # Without a mix of x and y, a number stays a number.
        if isinstance(x_row, float):
            self.x_by_row, self.y_by_row = b * y_row if b else 0.0, e * y_row
        else:
            self.x_by_row = a * x_row + b * y_row if b else a * x_row
            self.y_by_row = d * x_row + e * y_row if d else e * y_row
        self.is_unmoved = False

    def add_x(self, moves: Any) -> None:
        """Moves origins to the right: by row, (height, 1), or for every pixel, (height, width)."""
        if moves.shape[1] == 1:
            self.x_by_row = moves if isinstance(self.x_by_row, float) else self.x_by_row + moves
        else:
            self.x_by_column = self.x_by_column + moves
        self.is_unmoved = False

    def add_y(self, moves: Any) -> None:
        """Moves origins down: by column, (width,), or for every pixel, (height, width)."""
        self.y_by_column = moves if self.is_unmoved else self.y_by_column + moves
        self.is_unmoved = False

    def x_alone(self) -> Any:
        """Returns all x; (width,) if they differ only by column."""
        if not isinstance(self.x_by_row, float):
            self.x_by_column, self.x_by_row = self.x(), 0.0
        return self.x_by_column

    def y_alone(self) -> Any:
        """Returns all y; (height, 1) if they differ only by row."""
        if isinstance(self.y_by_column, float):
            return self.y_by_row + self.y_by_column
        self.y_by_column, self.y_by_row = self.y(), 0.0
        return self.y_by_column

    def x(self) -> Array:
        """Returns all x, (height, width) float32."""
        return self._whole(self.x_by_column, self.x_by_row)

    def y(self) -> Array:
        """Returns all y, (height, width) float32."""
        return self._whole(self.y_by_column, self.y_by_row)

    def _whole(self, by_column: Any, by_row: Any) -> Array:
        whole = np.empty(self.shape, np.float32)
        np.add(by_column, by_row, whole)
        return whole


@lru_cache(maxsize=16)
def _counted(count: int) -> Array:
    numbers = np.arange(count, dtype=np.float32)
    numbers.flags.writeable = False
    return numbers


Bend = Callable[[Grid], None]
"""A change of origins that is no matrix."""


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
            places.points = self._moved(places.points)
        if not self._before and (box := self._box(*work.size)):
            for frame in frames:
                frame.image = _boxed(frame, box, self.height, self.width)
            return
        margin = _margin(work.images[0])
        origins = self._origins(margin)
        for frame in frames:
            warp = partial(_warped, frame, margin, origins, (self.width, self.height))
            frame.image = _by_channels(warp, frame.image, frame.value)

    def _moved(self, points: Array) -> Array:
        """Returns the places in the result of points of the image."""
        if not self._before:
            return moved_by_matrix(points, self._matrix)
        return moved_by_origins(points, *self._origins(0))

    def _origins(self, margin: int) -> tuple[Array, ...]:
        """Returns the matrix of an affine path; of another all x and all y. For images with a margin around them."""
        if not self._before:
            return (np.array(_shifted(self._matrix, margin)).reshape(2, 3),)
        grid, matrix_after = Grid(self.height, self.width), self._matrix
        for before, bend in reversed(self._before):
            grid.transform(matrix_after)
            bend(grid)
            matrix_after = before
        grid.transform(_shifted(matrix_after, margin))
        return grid.x(), grid.y()

    def _box(self, height: int, width: int) -> tuple[slice, slice] | None:
        """Returns the slices of the image that become the result by a resize; None if there are none."""
        a, b, c, d, e, f = self._matrix
        if abs(b) * height > _EXACT or abs(d) * width > _EXACT:
            return None
        columns = _slice(a, c, self.width, width)
        rows = _slice(e, f, self.height, height) if columns else None
        return (rows, columns) if rows and columns else None


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


def _warped(
    frame: Frame, margin: int, origins: tuple[Array, ...], size: tuple[int, int], image: Array, value: Values
) -> Any:
    height, width = image.shape[:2]
    if frame.border == cv2.BORDER_REFLECT_101 and 1 in (height, width):
        # OpenCV 5, bicubic, loops endlessly for the neighbour of a single pixel. A doubled pixel is the same image.
        image = cv2.copyMakeBorder(image, 0, int(height == 1), 0, int(width == 1), cv2.BORDER_REPLICATE)
    elif margin:
        image = cv2.copyMakeBorder(image, margin, margin, margin, margin, frame.border, None, value)
    if len(origins) > 1:
        return cv2.remap(image, origins[0], origins[1], frame.interpolation, None, frame.border, value)
    flags = frame.interpolation | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(image, origins[0], size, None, flags, frame.border, value)


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
