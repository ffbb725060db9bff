"""Boxes and points of an image, which move with its pixels."""

from collections.abc import Callable
from typing import Any, Final, Literal, final

import numpy as np
import numpy.typing as npt

from penstock.base._errors import type_of

Array = npt.NDArray[Any]
BoxFormat = Literal["xyxy", "xywh"]

_SIDE: Final = np.array([[0, 0], [0.25, 0], [0.5, 0], [0.75, 0]])
_RIM: Final = np.concatenate([_SIDE, [1, 0] + _SIDE[:, ::-1], 1 - _SIDE, [0, 1] - _SIDE[:, ::-1]])
"""The corners of a box, and points of its sides, which a curved warp may move further out."""


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
        kind, width = ("Points", 2) if box_format is None else ("Boxes", 4)
        if not isinstance(given, np.ndarray) or given.shape[-1:] != (width,) or given.dtype.kind not in "iuf":
            found = f"an array of {given.dtype}, {given.shape}" if isinstance(given, np.ndarray) else type_of(given)
            raise ValueError(f"{kind} are numbers (..., {width}), but here is {found}.")
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
        if not len(self._points):
            return
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
