"""The images of an element, and their form for OpenCV during a distortion.

A `Frame` is one image for OpenCV: channels last, without the axis of a single channel, of a dtype that OpenCV supports.
A `Work` is the frames of one element, with its boxes and points. `distorted` takes them out of an element, and puts the
results back.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Final, Literal, final, get_args

import numpy as np

from penstock.base._errors import ArgumentError, type_of
from penstock.distort._places import Array as Array, BoxFormat, Places
from penstock.image._opencv import cv2

Key = Hashable
"""The place of a leaf in an element: a key of a dict, an index of a tuple, or a field of a named tuple."""

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

INTERPOLATIONS: Final = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
BORDERS: Final = {
    "constant": cv2.BORDER_CONSTANT,
    "edge": cv2.BORDER_REPLICATE,
    "reflect": cv2.BORDER_REFLECT_101,
    "symmetric": cv2.BORDER_REFLECT,
    "wrap": cv2.BORDER_WRAP,
}

_AS_THEY_ARE: Final = ("uint8", "uint16", "int16", "float32", "float64")
_CONVERTED: Final = {"bool": "uint8", "int8": "int16", "float16": "float32"}
# The dtype that OpenCV computes in, for each dtype of an image. int32 and larger are exact within 2**53.
_WORKING: Final = {
    np.dtype(given): np.dtype(working)
    for given, working in {
        **dict(zip(_AS_THEY_ARE, _AS_THEY_ARE, strict=True)),
        **_CONVERTED,
        **dict.fromkeys(("int32", "uint32", "int64", "uint64"), "float64"),
    }.items()
}
MAX_SIDE: Final = 32766
"""The most pixels along an axis that OpenCV's warps accept."""
_MAX_CHANNELS: Final = 128  # of OpenCV 5; 512 before
# An image this narrow with this many channels has its axes in another order.
_FEW_CHANNELS: Final = 4
_MANY_CHANNELS: Final = 16  # below the sides of MNIST's images, 28, and of CIFAR's, 32


@final
@dataclass(frozen=True)
class Settings:
    """The leaves that are distorted, and how, for any distortion."""

    _: KW_ONLY
    on: Key | tuple[Key, ...] | None = None
    masks: Key | tuple[Key, ...] | None = None
    boxes: Key | tuple[Key, ...] | None = None
    points: Key | tuple[Key, ...] | None = None
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
            names = [f"{name}=" for name, leaves in self.leaves.items() if twice[0] in leaves]
            raise ArgumentError(
                f"{twice[0]!r} is in {' and in '.join(names)}. A leaf is one of these: an image is distorted; masks, "
                "boxes and points only move."
            )

    @cached_property
    def leaves(self) -> dict[str, tuple[Key, ...]]:
        """The leaves of each kind: `on`, which may be empty for the default, `masks`, `boxes` and `points`."""
        given = {name: getattr(self, name) for name in _KINDS}
        return {name: each if isinstance(each, tuple) else (each,) * (each is not None) for name, each in given.items()}


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

    __slots__ = ("_has_one_channel", "_is_first", "border", "dtype", "image", "interpolation", "is_mask", "value")

    def __init__(self, image: Any, settings: Settings, *, is_mask: bool = False) -> None:
        self._is_first = settings.data_format == "channels_first"
        self.is_mask = is_mask
        self.interpolation = cv2.INTER_NEAREST if is_mask else INTERPOLATIONS[settings.interpolation]
        self.border: int = BORDERS[settings.border]
        self.value: float | tuple[float, ...] = 0.0 if is_mask else settings.value
        self.dtype: np.dtype[Any] = _checked(image, self._is_first)
        """The dtype of the result."""
        self._has_one_channel = False
        if image.ndim == 3:
            if self._is_first:
                image = image.transpose(1, 2, 0)
            self._has_one_channel = image.shape[2] == 1
            if self._has_one_channel:
                image = image[:, :, 0]
        working = _WORKING[self.dtype]
        if working != image.dtype:
            image = image.astype(working)
            if self.dtype == np.bool_:
                image *= 255
                self.value = self.worked(self.value)
        self.image: Array = image
        """(height, width) or (height, width, channels), two channels or more."""

    def make_bools_floats(self) -> None:
        """Converts bools and the border value to float32 from 0 to 1. Other dtypes stay."""
        if self.dtype == np.bool_:
            self.image, self.dtype = np.divide(self.image, 255, dtype=np.float32), np.dtype(np.float32)
            value = self.value
            self.value = tuple(each / 255 for each in value) if isinstance(value, tuple) else value / 255

    def worked(self, value: float | tuple[float, ...]) -> float | tuple[float, ...]:
        """Converts a pixel value from the user's units to those of `image`."""
        if self.dtype != np.bool_:
            return value
        return tuple(255.0 * bool(each) for each in value) if isinstance(value, tuple) else 255.0 * bool(value)

    def result(self) -> Array:
        """Returns the image in the user's dtype and layout."""
        image, dtype = self.image, self.dtype
        if image.dtype != dtype:
            if dtype == np.bool_:
                image = image > 127
            elif dtype.kind in "iu":
                image = _rounded(image, dtype)
            else:
                image = image.astype(dtype)
        if self._has_one_channel:
            image = image[:, :, None]
        return image.transpose(2, 0, 1) if self._is_first and image.ndim == 3 else image


def _rounded(image: Array, dtype: np.dtype[Any]) -> Array:
    """Rounds to integers within the range of the dtype."""
    info = np.iinfo(dtype)
    # The largest float64 that a 64-bit integer can hold is below its own largest value.
    high = info.max if dtype.itemsize < 8 else float(np.nextafter(np.float64(info.max), 0))
    return np.clip(np.rint(image), info.min, high).astype(dtype)


def _checked(image: Any, is_first: bool) -> np.dtype[Any]:
    """Returns the dtype of an image in this machine's byte order. Refuses other objects."""
    if not isinstance(image, np.ndarray):
        raise ValueError(
            f"An image is an array, but here is {type_of(image)}. Say which leaf it is: compose(..., on=0)."
        )
    shape = image.shape
    if not 2 <= len(shape) <= 3:
        more = " Distort before batch(): these functions take one image." if len(shape) == 4 else ""
        raise ValueError(
            f"An image is (height, width) or (height, width, channels), but here is an array of shape {shape}.{more}"
        )
    height, width = shape[-2:] if is_first else shape[:2]
    if image.size == 0 or max(height, width) > MAX_SIDE:
        raise ValueError(f"An image of shape {shape} cannot be distorted: sides are 1 to {MAX_SIDE:,} pixels.")
    if len(shape) == 3:
        channel_count, other_end = (shape[0], shape[2]) if is_first else (shape[2], shape[0])
        if channel_count > _MANY_CHANNELS and other_end <= _FEW_CHANNELS:
            other = "channels_last" if is_first else "channels_first"
            raise ValueError(
                f"An image of shape {shape} would have {channel_count} channels. They seem to stand at the other end: "
                f"compose(..., data_format={other!r})."
            )
        if channel_count > _MAX_CHANNELS:
            raise ValueError(
                f"An image of shape {shape} has {channel_count} channels, and OpenCV works on {_MAX_CHANNELS} at most. "
                "Distort groups of channels, with one seed: they are distorted alike."
            )
    dtype: np.dtype[Any] = image.dtype if image.dtype.isnative else image.dtype.newbyteorder("=")
    if dtype not in _WORKING:
        raise ValueError(f"An image of dtype {dtype} cannot be distorted. Make it {', '.join(map(str, _WORKING))}.")
    return dtype


@final
class Work:
    """The frames of one element, all of one height and width; and its boxes and points."""

    __slots__ = ("images", "masks", "places")

    def __init__(self, images: list[Frame], masks: list[Frame], places: list[Places]) -> None:
        self.images: list[Frame] = images
        self.masks: list[Frame] = masks
        self.places: list[Places] = places

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
    on, masks, boxes, points = ([place_of(element, key) for key in keys] for keys in settings.leaves.values())
    on = on or [_first_image(element)]
    work = Work(
        [Frame(element[at], settings) for at in on],
        [Frame(element[at], settings, is_mask=True) for at in masks],
        [Places(element[at], settings.box_format if at in boxes else None) for at in (*boxes, *points)],
    )
    apply(work)
    results = [each.result() for each in (*work.images, *work.masks)]
    results += [each.result(*work.size) for each in work.places]
    return replaced(element, dict(zip((*on, *masks, *boxes, *points), results, strict=True)))


def replaced(element: Any, leaves: Mapping[Any, Any]) -> Any:
    """Returns a copy of an element with other leaves at these places."""
    if isinstance(element, Mapping):
        return {**element, **leaves}
    values = [leaves.get(number, leaf) for number, leaf in enumerate(element)]
    return element._make(values) if hasattr(element, "_make") else tuple(values)


def unmoved(tree: Any, settings: Settings) -> tuple[Any, list[Any]] | None:
    """The image of elements of a spec, and the leaves with its height and width that do not move with it.

    None if the spec is of an image alone, or has no image.
    """
    if not isinstance(tree, (Mapping, tuple)):
        return None
    try:
        on, *others = ([place_of(tree, key) for key in keys] for keys in settings.leaves.values())
        on = on or [_first_image(tree)]
    except ValueError:  # the first element says so
        return None
    moved = {*on, *itertools.chain(*others)}
    size = _size_of(tree[on[0]], settings)
    places = tree if isinstance(tree, Mapping) else range(len(tree))
    return on[0], [at for at in places if at not in moved and size and _size_of(tree[at], settings) == size]


def _size_of(leaf: Any, settings: Settings) -> tuple[int | None, ...] | None:
    """The height and width of a leaf that may be an image."""
    shape = getattr(leaf, "shape", ())
    if len(shape) == 2:
        return tuple(shape)
    is_first = settings.data_format == "channels_first"
    return tuple(shape[1:] if is_first else shape[:2]) if len(shape) == 3 else None


def _first_image(element: Any) -> Any:
    """Returns the default place of the image: the first leaf of a tuple, `"image"` of a dict."""
    if isinstance(element, tuple) and element:
        return 0
    if isinstance(element, Mapping):
        if "image" in element:
            return "image"
        raise ValueError(
            f"The element is a dict without 'image'. Say which is: on= one of {', '.join(map(repr, element))}."
        )
    raise ValueError(f"An image is an array, but here is {type_of(element)}.")


def place_of(element: Any, key: Any) -> Any:
    """Returns the key or index of a leaf of an element.

    Raises:
        ValueError: The element has no such leaf.
    """
    if isinstance(element, Mapping):
        if key in element:
            return key
        raise ValueError(f"The element has no leaf {key!r}. It has {', '.join(map(repr, element))}.")
    if not isinstance(element, tuple):
        raise ValueError(
            f"on={key!r} is a leaf of a tuple or dict, but the element is {type_of(element)}. Leave on= out."
        )
    names = getattr(element, "_fields", ())
    place = names.index(key) if key in names else key
    if isinstance(place, int) and -len(element) <= place < len(element):
        return place % len(element)
    raise ValueError(f"The element has no leaf {key!r}. It is a tuple of {len(element)}.")
