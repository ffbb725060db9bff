"""Boxes and points of an image, which move with its pixels.

A warp knows the origin of each pixel of its result, and a point needs the inverse. A matrix has an exact inverse. For
any other warp the pixel of the result with the nearest origin is found, and the warp is taken as linear from there: the
error is a few hundredths of a pixel.
"""

from collections.abc import Callable
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

    __slots__ = ("_box_format", "_given", "_is_gone", "_points")

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
        self._points: Array = given.reshape(-1, width).astype(np.float64)
        # (count, 2), or the polygons of boxes, (count, corners, 2). The centre of the first pixel is (0, 0).
        if box_format is not None:
            low, high = self._points[:, :2], self._points[:, 2:]
            size = high if box_format == "xywh" else high - low
            self._points = low[:, None] + size[:, None] * _RIM - 0.5
        self._is_gone = np.zeros(len(self._points), np.bool_)
        """Whether an earlier warp left a point outside of its image."""

    def move(self, moved: Callable[[Array], Array], height: int, width: int) -> None:
        """Moves them by a warp whose result has this size. A part outside of the result has lost its pixels.

        Args:
            moved: Returns the new places of points, (count, 2).
            height: Height of the result in pixels.
            width: Width of the result in pixels.
        """
        self._points = moved(self._points.reshape(-1, 2)).reshape(self._points.shape)
        if self._box_format is None:
            self._is_gone |= ~_is_inside(self._points, height, width)
        else:
            self._points = _cut_off(self._points, height, width)

    def result(self, height: int, width: int) -> Array:
        """Returns them in the user's form.

        Raises:
            ValueError: Their integers cannot hold the numbers.
        """
        places = self._points
        if self._box_format is None:
            # Its own place would be inside, where the image shows another pixel.
            places[self._is_gone & _is_inside(places, height, width)] = -1
        else:
            polygons = np.clip(places + 0.5, 0, (width, height))
            low, high = polygons.min(1), polygons.max(1)
            places = np.hstack([low, high - low if self._box_format == "xywh" else high])
        dtype = self._given.dtype
        if dtype.kind in "iu":
            places, bounds = np.rint(places), np.iinfo(dtype)
            beyond = places[(places < bounds.min) | (places > bounds.max)]
            if len(beyond):
                what = "points" if self._box_format is None else "boxes"
                raise ValueError(f"{what} move to {beyond[0]:.0f}, which {dtype} cannot hold. Give them as float32.")
        return places.astype(dtype).reshape(self._given.shape)


def _is_inside(points: Array, height: int, width: int) -> Array:
    inside: Array = np.all((points >= -0.5) & (points <= (width - 0.5, height - 0.5)), axis=-1)
    return inside


def _cut_off(polygons: Array, height: int, width: int) -> Array:
    """Cuts polygons (count, corners, 2) off at the borders of an image. One that is outside becomes a single point.

    I. Sutherland, G. Hodgman, "Reentrant Polygon Clipping", CACM 1974: one border after the other.
    """
    for axis, sign, border in ((0, 1, -0.5), (0, -1, width - 0.5), (1, 1, -0.5), (1, -1, height - 0.5)):
        depths = sign * (polygons[..., axis] - border)
        stays = depths >= 0
        if stays.all():
            continue
        crosses = stays != np.roll(stays, -1, 1)  # the side from this corner to the next one
        parts = np.divide(depths, depths - np.roll(depths, -1, 1), out=np.zeros_like(depths), where=crosses)
        crossings = polygons + parts[..., None] * (np.roll(polygons, -1, 1) - polygons)
        count = len(polygons)
        corners = np.stack([polygons, crossings], 2).reshape(count, -1, 2)
        stays = np.stack([stays, crosses], 2).reshape(count, -1)
        # All polygons keep one number of corners: the last corner of those with fewer comes several times.
        order, counts = np.argsort(~stays, 1, kind="stable"), stays.sum(1)[:, None]
        chosen = np.take_along_axis(order, np.minimum(np.arange(max(1, counts.max())), counts - 1), 1)
        polygons = np.take_along_axis(corners, chosen[..., None], 1)
    return np.clip(polygons, -0.5, (width - 0.5, height - 0.5))


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
