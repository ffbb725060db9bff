"""Boxes and points of an image, which move with its pixels.

A warp knows the origin of each pixel of its result, and a point needs the inverse. A matrix has an exact inverse. For
any other warp the pixel of the result with the nearest origin is found, and the warp is taken as linear from there: the
error is a few hundredths of a pixel.
"""

from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import type_of

Array = npt.NDArray[Any]
BoxFormat = Literal["xyxy", "xywh"]

_RIM: Final = np.array([[0, 0], [0.5, 0], [1, 0], [1, 0.5], [1, 1], [0.5, 1], [0, 1], [0, 0.5]])
"""The corners of a box, and the middles of its sides, which a curved warp may move further out."""
_STRIDE: Final = 8
"""The pixels between the first candidates for the nearest origin."""


@final
class Places:
    """Boxes or points of one image.

    Args:
        given: Points `(..., 2)` as x and y of pixels, or boxes `(..., 4)`.
        box_format: None for points.

    Raises:
        ValueError: It is no such array.
    """

    __slots__ = ("_box_format", "_given", "points")

    def __init__(self, given: Any, box_format: BoxFormat | None) -> None:
        width = 2 if box_format is None else 4
        if (
            not isinstance(given, np.ndarray)
            or given.ndim < 1
            or given.shape[-1] != width
            or given.dtype.kind not in "iuf"
        ):
            kind = "Points are numbers (..., 2), x and y" if width == 2 else "Boxes are numbers (..., 4)"
            found = f"of {given.dtype}, {given.shape}" if isinstance(given, np.ndarray) else f": {type_of(given)}"
            raise ValueError(f"{kind}, but here is an array {found}.")
        self._given: Array = given
        self._box_format = box_format
        self.points: Array = given.reshape(-1, width).astype(np.float64)
        """(count, 2): x and y, where the centre of the first pixel is (0, 0)."""
        if box_format is not None:
            low, high = self.points[:, :2], self.points[:, 2:]
            size = high if box_format == "xywh" else high - low
            self.points = (low[:, None] + size[:, None] * _RIM - 0.5).reshape(-1, 2)

    def result(self, height: int, width: int) -> Array:
        """Returns them in the user's form. Boxes are cut off at the borders of the result.

        Raises:
            ValueError: Their integers cannot hold the numbers.
        """
        places = self.points
        if self._box_format is not None:
            rims = np.clip(places.reshape(-1, len(_RIM), 2) + 0.5, 0, (width, height))
            low, high = rims.min(1), rims.max(1)
            places = np.hstack([low, high - low if self._box_format == "xywh" else high])
        dtype = self._given.dtype
        if dtype.kind in "iu":
            places, bounds = np.rint(places), np.iinfo(dtype)
            beyond = places[(places < bounds.min) | (places > bounds.max)]
            if len(beyond):
                what = "points" if self._box_format is None else "boxes"
                raise ValueError(f"{what} move to {beyond[0]:.0f}, which {dtype} cannot hold. Give them as float32.")
        return places.astype(dtype).reshape(self._given.shape)


def moved_by_matrix(points: Array, matrix: tuple[float, ...]) -> Array:
    """Moves points by an affine warp, given its inverse."""
    inverse = np.linalg.inv(np.array([*matrix, 0, 0, 1]).reshape(3, 3))
    return points @ inverse[:2, :2].T + inverse[:2, 2]


def moved_by_origins(points: Array, origins: Array) -> Array:
    """Moves points by any warp, given the origins of all pixels of the result, (height, width, 2)."""
    height, width = origins.shape[:2]
    if not len(points):
        return points
    points = points.astype(np.float32)
    rows, columns = _nearest(points, origins, *np.ogrid[0:height:_STRIDE, 0:width:_STRIDE])
    near = np.arange(-_STRIDE, _STRIDE + 1)
    rows = np.clip(rows[:, None, None] + near[:, None], 0, height - 1)
    columns = np.clip(columns[:, None, None] + near, 0, width - 1)
    rows, columns = _nearest(points, origins, rows, columns)
    # The change of the origin over two pixels, or over one at a border.
    below, above = np.minimum(rows + 1, height - 1), np.maximum(rows - 1, 0)
    right, left = np.minimum(columns + 1, width - 1), np.maximum(columns - 1, 0)
    a, c = (origins[rows, right] - origins[rows, left]).T / np.maximum(right - left, 1)
    b, d = (origins[below, columns] - origins[above, columns]).T / np.maximum(below - above, 1)
    rest_x, rest_y = (points - origins[rows, columns]).T
    area = a * d - b * c
    area = np.where(np.abs(area) < 1e-3, np.inf, area)  # a fold: the nearest pixel itself
    return np.column_stack([columns + (d * rest_x - b * rest_y) / area, rows + (a * rest_y - c * rest_x) / area])


def _nearest(points: Array, origins: Array, rows: Array, columns: Array) -> tuple[Array, Array]:
    """Returns row and column of the candidate with the nearest origin, of each point."""
    distances = ((origins[rows, columns] - points[:, None, None]) ** 2).sum(-1)
    best = distances.reshape(len(points), -1).argmin(1)
    rows, columns = (np.broadcast_to(each, distances.shape).reshape(len(points), -1) for each in (rows, columns))
    every = np.arange(len(points))
    return rows[every, best], columns[every, best]
