"""The images of an element, and their form for OpenCV during a distortion.

A `Frame` is one image for OpenCV: channels last, without the axis of a single channel, of a dtype that OpenCV supports.
A `Work` is the frames of one element, with its boxes and points. `distorted` takes them out of an element, and puts the
results back.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, final, get_args

import numpy as np

from penstock.base._errors import ArgumentError, type_of
from penstock.distort._places import Array as Array, BoxFormat, Places
from penstock.image._opencv import cv2

Key = Hashable
"""The place of a leaf in an element: a key of a dict, an index of a tuple, or a field of a named tuple."""
Keys = Key | tuple[Key, ...] | None

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Border = Literal["constant", "edge", "reflect", "symmetric", "wrap"]
DataFormat = Literal["channels_last", "channels_first"]
_KINDS: Final = ("on", "masks", "boxes", "points")
_CHOICES: Final = {
    "interpolation": Interpolation,
    "border": Border,
    "data_format": DataFormat,
    "box_format": BoxFormat,
}

_INTERPOLATIONS: Final = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
_BORDERS: Final = {
    "constant": cv2.BORDER_CONSTANT,
    "edge": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT_101,
    "symmetric": cv2.BORDER_REFLECT,
    "wrap": cv2.BORDER_WRAP,
}
_CONVERTED: Final = {
    np.dtype(np.bool_): np.float32,
    np.dtype(np.int8): np.int16,
    np.dtype(np.float16): np.float32,
    **{np.dtype(each): np.float64 for each in (np.int32, np.uint32, np.int64, np.uint64)},
}
"""The dtype that is computed in, for dtypes that OpenCV has not. int32 and larger are exact within 2**53."""
# An image this narrow with this many channels has its axes in another order.
_FEW_CHANNELS: Final = 4
_MANY_CHANNELS: Final = 16  # below the sides of MNIST's images, 28, and of CIFAR's, 32


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """The leaves that are distorted, and how, for any distortion."""

    on: Keys = None
    masks: Keys = None
    boxes: Keys = None
    points: Keys = None
    box_format: BoxFormat = "xyxy"
    interpolation: Interpolation = "bilinear"
    border: Border = "constant"
    value: float | tuple[float, ...] = 0.0
    data_format: DataFormat = "channels_last"

    def __post_init__(self) -> None:
        for name in _KINDS:  # lists cannot be hashed
            if isinstance(leaves := getattr(self, name), list):
                object.__setattr__(self, name, tuple(leaves))
        for name, kinds in _CHOICES.items():
            if getattr(self, name) not in get_args(kinds):
                raise ArgumentError(f"{name}={getattr(self, name)!r} is none of {', '.join(get_args(kinds))}.")
        every = list(itertools.chain(*self.leaves.values()))
        if twice := [leaf for leaf in every if every.count(leaf) > 1]:
            raise ArgumentError(
                f"{twice[0]!r} comes twice in on=, masks=, boxes= and points=. A leaf is one of these: an image is "
                "distorted; masks, boxes and points only move."
            )

    @cached_property
    def leaves(self) -> dict[str, tuple[Key, ...]]:
        """The leaves of each kind: `on`, which may be empty for the default, `masks`, `boxes` and `points`."""
        given = {name: getattr(self, name) for name in _KINDS}
        return {name: each if isinstance(each, tuple) else (each,) * (each is not None) for name, each in given.items()}


DEFAULT: Final = Settings()
"""Those of a distortion that `compose` has not given others."""


@final
class Frame:
    """One image during a distortion. The first array in `image` belongs to the caller: it is replaced, not written.

    Args:
        image: The user's image.
        settings: The settings of the distortion.
        is_mask: Whether it holds class numbers, which must not be interpolated.

    Raises:
        ValueError: It is no image.
    """

    __slots__ = ("_has_one_channel", "_is_first", "border", "dtype", "image", "interpolation", "value")

    def __init__(self, image: Any, settings: Settings, *, is_mask: bool = False) -> None:
        self._is_first = settings.data_format == "channels_first"
        _require_image(image, self._is_first)
        self.interpolation = cv2.INTER_NEAREST if is_mask else _INTERPOLATIONS[settings.interpolation]
        self.border: int = _BORDERS[settings.border]
        self.value: float | tuple[float, ...] = 0.0 if is_mask else settings.value
        # A dtype that is made anew would be hashed anew.
        self.dtype: np.dtype[Any] = image.dtype if image.dtype.isnative else image.dtype.newbyteorder("=")
        """The dtype of the result."""
        if self._is_first and image.ndim == 3:
            image = image.transpose(1, 2, 0)
        self._has_one_channel = image.shape[2:] == (1,)
        if self._has_one_channel:
            image = image[:, :, 0]
        working = _CONVERTED.get(self.dtype, self.dtype)
        self.image: Array = image if image.dtype == working else image.astype(working)
        """(height, width) or (height, width, channels), two channels or more. Bools are 0 and 1."""

    def result(self) -> Array:
        """Returns the image in the user's dtype and layout."""
        image = self.image
        if image.dtype != self.dtype:
            if self.dtype == np.bool_:
                image = image >= 0.5
            elif self.dtype.kind in "iu":
                image = rounded(image, self.dtype)
            else:
                image = image.astype(self.dtype)
        if self._has_one_channel:
            image = image[:, :, None]
        return image.transpose(2, 0, 1) if self._is_first and image.ndim == 3 else image


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Rounds to integers within the range of the dtype."""
    info = np.iinfo(dtype)
    # The largest float64 that a 64-bit integer can hold is below its own largest value.
    high = info.max if dtype.itemsize < 8 else float(np.nextafter(np.float64(info.max), 0))
    return np.clip(np.rint(values), info.min, high).astype(dtype)


def _require_image(image: Any, is_first: bool) -> None:
    if not isinstance(image, np.ndarray) or image.ndim not in (2, 3):
        found = f"an array of shape {image.shape}" if isinstance(image, np.ndarray) else type_of(image)
        raise ValueError(
            f"An image is an array (height, width) or (height, width, channels), but here is {found}. Distort before "
            "batch(): these functions take one image. If another leaf is the image, say which: compose(..., on=1)."
        )
    if image.ndim == 3:
        channel_count, other_end = (image.shape[0], image.shape[2]) if is_first else (image.shape[2], image.shape[0])
        if channel_count > _MANY_CHANNELS and other_end <= _FEW_CHANNELS:
            other = "channels_last" if is_first else "channels_first"
            raise ValueError(
                f"An image of shape {image.shape} would have {channel_count} channels. They seem to stand at the other "
                f"end: compose(..., data_format={other!r})."
            )


@final
@dataclass(slots=True)
class Work:
    """The frames of one element, all of one height and width; and its boxes and points."""

    images: list[Frame]
    masks: list[Frame]
    places: list[Places]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width.

        Raises:
            ValueError: They differ.
        """
        size: tuple[int, int] = self.images[0].image.shape[:2]
        for frame in (*self.images[1:], *self.masks):
            if frame.image.shape[:2] != size:
                raise ValueError(
                    f"Images and masks of one element are warped alike, but one is {size[0]} x {size[1]} and another "
                    f"{frame.image.shape[0]} x {frame.image.shape[1]} pixels. Give them one size before."
                )
        return size


def distorted(element: Any, settings: Settings, apply: Callable[[Work], None]) -> Any:
    """Returns an element with distorted images. Other leaves pass unchanged.

    Args:
        element: An image, or a tuple or dict with images. It is not written to.
        settings: The leaves, and how they are distorted.
        apply: Distorts the frames.

    Raises:
        ValueError: A leaf is no image.
    """
    if isinstance(element, np.ndarray) and not any(settings.leaves.values()):
        frame = Frame(element, settings)
        apply(Work([frame], [], []))
        return frame.result()
    on, masks, boxes, points = _places_of(element, settings)
    work = Work(
        [Frame(element[at], settings) for at in on],
        [Frame(element[at], settings, is_mask=True) for at in masks],
        [Places(element[at], settings.box_format if at in boxes else None) for at in (*boxes, *points)],
    )
    apply(work)
    results = [each.result() for each in (*work.images, *work.masks)]
    results += [each.result(*work.size) for each in work.places]
    leaves = dict(zip((*on, *masks, *boxes, *points), results, strict=True))
    if isinstance(element, Mapping):
        return {**element, **leaves}
    values = [leaves.get(number, leaf) for number, leaf in enumerate(element)]
    return element._make(values) if hasattr(element, "_make") else tuple(values)


def unmoved(tree: Any, settings: Settings) -> tuple[Any, list[Any]]:
    """The image of elements of a spec, and the leaves with its height and width that do not move with it."""
    try:
        moved = _places_of(tree, settings)
    except ValueError:  # the first element says so
        return None, []
    image, *_ = moved[0]
    size = _size_of(tree[image], settings)
    others = [
        at for at in (tree if isinstance(tree, Mapping) else range(len(tree))) if not any(at in each for each in moved)
    ]
    return image, [at for at in others if size and _size_of(tree[at], settings) == size]


def _size_of(leaf: Any, settings: Settings) -> tuple[int | None, ...]:
    """The height and width of a leaf that may be an image; else empty."""
    shape: tuple[int | None, ...] = getattr(leaf, "shape", ())
    if len(shape) == 3:
        shape = shape[1:] if settings.data_format == "channels_first" else shape[:2]
    return shape if len(shape) == 2 else ()


def _places_of(element: Any, settings: Settings) -> list[list[Any]]:
    """Returns the keys or indices of the images, masks, boxes and points of an element.

    Raises:
        ValueError: The element has no such leaf.
    """
    on, *others = ([_place_of(element, key) for key in keys] for keys in settings.leaves.values())
    return [on or [_place_of(element, "image" if isinstance(element, Mapping) else 0)], *others]


def _place_of(element: Any, key: Any) -> Any:
    if isinstance(element, Mapping):
        if key in element:
            return key
        raise ValueError(
            f"The element has no leaf {key!r}. It has {', '.join(map(repr, element))}: say which is the image by on=."
        )
    if not isinstance(element, tuple):
        raise ValueError(f"An image is an array, or a leaf of a tuple or dict, but here is {type_of(element)}.")
    names = getattr(element, "_fields", ())
    place = names.index(key) if key in names else key
    if isinstance(place, int) and -len(element) <= place < len(element):
        return place % len(element)
    raise ValueError(f"The element has no leaf {key!r}. It is a tuple of {len(element)}.")
