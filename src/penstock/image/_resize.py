"""Resizing: `Resizing`, a value, and the function `resize`. The arithmetic is TensorFlow's, so pixels are Keras's.

`taps` are the weights of pixels in a resized image, one axis at a time. They are those of `tf.image.resize` without
antialiasing. The centre of a pixel is half a pixel from its edge. The width of a kernel does not depend on the scale,
so shrinking skips pixels, except with `area`. The part of a kernel outside the image is cut off, and the rest is scaled
to a sum of 1.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import numpy.typing as npt

from penstock.base._arguments import check_choice, checked_size
from penstock.base._errors import SpecError
from penstock.image._opencv import cv2
from penstock.image._scratch import scratch

Array = npt.NDArray[Any]
Interpolation = Literal["bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"]
Fit = Literal["stretch", "crop", "pad"]

_DTYPES: Final = tuple(np.dtype(name) for name in ("uint8", "float32", "uint16", "int8", "int16", "float16", "float64"))


@final
@dataclass(frozen=True)
class Resizing:
    """Resizes images to one size. A function for `map`, and an immutable, hashable, picklable value.

    An image `(height, width, channels)` of 1 to 4 channels, or `(height, width)`, becomes an image of the same dtype
    with the given height and width. The arithmetic is float32. Integers are rounded and clipped, because bicubic,
    Lanczos and Mitchell overshoot. Floats are neither.

    Pixels are those of `tf.image.resize`, to about 1e-3 of a level: half-pixel centres, no antialiasing. If aliasing
    matters, shrink with `area`. Bilinear from uint8 to uint8, or to less than half as many pixels, is computed in
    integers: within 1 level of that, 0.25 on average.

    Random access and order: kept. Memory: scratch memory of the thread, of at most 4 MiB an array.

    Example:
        >>> ps.from_arrays(photos).map(ps.image.Resizing((64, 64))).element_spec
        ArraySpec((64, 64, 3), uint8)
    """

    size: tuple[int, int]
    """Height and width of the result."""
    _: KW_ONLY
    interpolation: Interpolation = "bilinear"
    fit: Fit = "stretch"
    """The treatment of other proportions: `"stretch"` takes the whole image, `"crop"` its largest centred part of the
    right proportions, and `"pad"` surrounds the whole image, in its own proportions, with zeros."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", checked_size(self.size))
        check_choice("interpolation", self.interpolation, Interpolation)
        check_choice("fit", self.fit, Fit)

    @property
    def releases_gil(self) -> bool:
        """True: OpenCV and NumPy release the GIL."""
        return True

    def __call__(self, image: Array) -> Array:
        """Returns the image in the new size, in a new array."""
        image = np.asarray(image)
        out = np.empty((*self.size, *image.shape[2:]), image.dtype)
        self.into(image, out)
        return out

    def into(self, image: Array, out: Array) -> None:
        """Writes the image in the new size into `out`.

        Args:
            image: `(height, width, channels)` or `(height, width)`; any strides.
            out: `(*size, channels)` or `size`, any strides, of the image's dtype or float32.

        Raises:
            SpecError: It is no image, or its dtype is not supported.
        """
        if image.ndim not in (2, 3) or 0 in image.shape or image.shape[2:] > (4,) or image.dtype not in _DTYPES:
            cure = (
                "Transpose one of channels first" if image.dtype in _DTYPES else "Cast it, a mask of classes to uint8"
            )
            raise SpecError(
                "an image to resize is (height, width, channels) of 1 to 4 channels, or (height, width), of one of "
                f"{', '.join(map(str, _DTYPES))}; this is {image.shape} {image.dtype}. {cure}."
            )
        self.fill(image, out)

    def fill(self, image: Array, out: Array, size: tuple[int, int] | None = None) -> None:
        """The same as `into`, without a check of the image.

        Args:
            image: As for `into`.
            out: As for `into`.
            size: Height and width before it was decoded smaller. They determine its edges, because the rounded sides of
                a smaller image have other proportions.
        """
        if image.ndim == 3 and image.shape[2] == 1:
            image, out = image[..., 0], out[..., 0]
        if self.fit == "pad":
            out[...] = 0
            out = out[self._place(*(size or image.shape[:2])).out]
        elif self.fit == "crop":
            image = image[self._place(*image.shape[:2]).image]
        self._interpolate(image, out)

    def least_size(self, height: int, width: int) -> tuple[int, int]:
        """Returns the smallest size of an image with these proportions that is not enlarged."""
        place = self._place(height, width)
        (rows, columns), (out_rows, out_columns) = place.image, place.out
        return (
            math.ceil((out_rows.stop - out_rows.start) * height / (rows.stop - rows.start)),
            math.ceil((out_columns.stop - out_columns.start) * width / (columns.stop - columns.start)),
        )

    def _place(self, height: int, width: int) -> "_ResizedPlace":
        """Returns the used part of the image and its place. In float32, because Keras's rounding can decide a pixel."""
        target_height, target_width = self.size
        image, out = (slice(0, height), slice(0, width)), (slice(0, target_height), slice(0, target_width))
        float32 = np.float32
        if self.fit == "crop":
            rows = max(1, min(height, int(float32(width * target_height) / float32(target_width))))
            columns = max(1, min(width, int(float32(height * target_width) / float32(target_height))))
            image = _from((height - rows) // 2, rows), _from((width - columns) // 2, columns)
        elif self.fit == "pad":
            ratio = max(float32(width) / float32(target_width), float32(height) / float32(target_height))
            tall, wide = float32(height) / ratio, float32(width) / ratio
            top, left = int((float32(target_height) - tall) / 2), int((float32(target_width) - wide) / 2)
            out = _from(max(0, top), max(1, int(tall))), _from(max(0, left), max(1, int(wide)))
        return _ResizedPlace(image, out)

    def _interpolate(self, image: Array, out: Array) -> None:
        height, width = out.shape[:2]
        if self.interpolation == "nearest":
            rows = np.take(image, nearest(image.shape[0], height), axis=0)
            np.copyto(out, np.take(rows, nearest(image.shape[1], width), axis=1))
        elif self.interpolation == "bilinear" and image.dtype == np.uint8 and _in_levels(image, out):
            levels = out if out.dtype == np.uint8 and _is_opencvs(out) else scratch("levels", out.shape, np.uint8)
            _by_opencv(image, levels)
            if levels is not out:
                out[...] = levels
        else:
            floats = out if out.dtype == np.float32 and _is_opencvs(out) else scratch("floats", out.shape, np.float32)
            if self.interpolation == "bilinear":
                source = scratch("source", image.shape, np.float32)
                np.copyto(source, image, casting="same_kind")
                _by_opencv(source, floats)
            else:
                _by_taps(image, floats, self.interpolation)
            if floats is not out:
                _store(floats, out)


class _ResizedPlace(NamedTuple):
    image: tuple[slice, slice]
    out: tuple[slice, slice]


def _from(start: int, length: int) -> slice:
    return slice(start, start + length)


def _is_opencvs(out: Array) -> bool:
    """Whether OpenCV can write into an array. It also checks strides of axes of one pixel, which NumPy ignores."""
    return out.flags.c_contiguous and (out.ndim == 2 or out.strides[1] == out.strides[2] * out.shape[2])


def _in_levels(image: Array, out: Array) -> bool:
    """Whether a uint8 image is interpolated in integers, and not in float32.

    If it shrinks, floats cost more: 141 us for 500 x 375 x 3 to 180 x 180, whose conversion alone writes 2.25 MB,
    against 93 us, of 725 us with the decoding of the JPEG. A uint8 result loses nothing.
    """
    return out.dtype == np.uint8 or image.size > 2 * out.size


def _by_opencv(image: Array, out: Array) -> None:
    """Bilinear with half-pixel centres, by OpenCV. `out` is C-contiguous and of the same dtype."""
    cv2.resize(image, (out.shape[1], out.shape[0]), dst=out, interpolation=cv2.INTER_LINEAR)


def _by_taps(image: Array, out: Array, interpolation: str) -> None:
    """Any kernel: first along columns, which reads whole rows, then, transposed, along rows. `out` is contiguous."""
    height, width = out.shape[:2]
    narrow = scratch("narrow", (height, *image.shape[1:]), np.float32)
    _down(np.ascontiguousarray(image), narrow, interpolation)
    turned = scratch("turned", (image.shape[1], height, *image.shape[2:]), np.float32)
    cv2.transpose(narrow, dst=turned)
    narrow = scratch("narrow", (width, *turned.shape[1:]), np.float32)
    _down(turned, narrow, interpolation)
    cv2.transpose(narrow, dst=out)


def _down(image: Array, out: Array, interpolation: str) -> None:
    """Sums weighted rows: `image` is `(source, ...)`, `out` `(target, ...)`, both C-contiguous."""
    rows, sums = image.reshape(len(image), -1), out.reshape(len(out), -1)
    gathered = scratch("gathered", sums.shape, rows.dtype)
    term = scratch("term", sums.shape, np.float32)
    indices, weights = taps(interpolation, len(rows), len(sums))
    for tap, (index, weight) in enumerate(zip(indices, weights, strict=True)):
        np.take(rows, index, axis=0, out=gathered, mode="clip")  # mode: with "raise", NumPy makes a copy first
        np.multiply(gathered, weight, out=term if tap else sums, casting="same_kind")
        if tap:
            np.add(sums, term, out=sums)


def _store(floats: Array, out: Array) -> None:
    """Converts float32 to another dtype: rounded and clipped for integers. Overwrites `floats`."""
    if out.dtype.kind in "iu":
        limits = np.iinfo(out.dtype)
        np.rint(floats, out=floats)
        np.clip(floats, limits.min, limits.max, out=floats)
    np.copyto(out, floats, casting="unsafe")


def resize(
    image: Array, size: tuple[int, int], *, interpolation: Interpolation = "bilinear", fit: Fit = "stretch"
) -> Array:
    """Returns one image in another size. `Resizing` is the same as a function for `map`.

    Example:
        >>> ps.image.resize(photo, (64, 64), fit="crop").shape
        (64, 64, 3)
    """
    return Resizing(size, interpolation=interpolation, fit=fit)(image)


Floats = npt.NDArray[np.float64]


class Taps(NamedTuple):
    """The source pixels of each pixel of the result, and their weights."""

    indices: npt.NDArray[np.intp]
    """`(tap_count, target)`, within the source."""
    weights: npt.NDArray[np.float32]
    """`(tap_count, target, 1)`, to multiply rows."""


@lru_cache(maxsize=64)
def taps(interpolation: str, source: int, target: int) -> Taps:
    """Returns the taps along one axis from `source` pixels to `target`. Keeps the last 64 results."""
    if interpolation == "area":
        indices, weights = _area(source, target)
    else:
        radius, kernel = _KERNELS[interpolation]
        centres = _centres(interpolation, source, target)
        indices = np.floor(centres - radius - 0.5) + np.arange(2 * int(np.ceil(radius)) + 2)[:, None]
        weights = kernel(np.abs(indices + 0.5 - centres))
        weights[(indices < 0) | (indices >= source)] = 0
        weights /= weights.sum(axis=0)
    used = weights.any(axis=1)
    return Taps(indices[used].clip(0, source - 1).astype(np.intp), weights[used].astype(np.float32)[..., None])


def _centres(interpolation: str, source: int, target: int) -> Floats:
    """Returns the centre of each pixel of the result in the source, with TensorFlow's rounding.

    It is float32, which decides whether a pixel at the end of a Gaussian, 1.5 away, counts: 2 levels of 255. Bicubic
    weights come from a table of 1024 places between two pixels: 0.02 levels on average.
    """
    float32 = np.float32
    is_cubic = interpolation == "bicubic"
    scale = float32(source) / float32(target) if is_cubic else float32(1) / (float32(target) / float32(source))
    centres = ((np.arange(target, dtype=float32) + float32(0.5)) * scale).astype(np.float64)
    return np.rint(centres * 1024) / 1024 if is_cubic else centres


@lru_cache(maxsize=64)
def nearest(source: int, target: int) -> npt.NDArray[np.intp]:
    """Returns the source pixel of each target pixel. In float32 like TensorFlow, whose rounding decides ties."""
    scale = np.float32(source) / np.float32(target)
    indices = ((np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale).astype(np.intp)
    return np.minimum(indices, source - 1)


def _area(source: int, target: int) -> tuple[Floats, Floats]:
    """Each pixel of the result is the mean of the source pixels that it covers."""
    edges = np.arange(target + 1) * (source / target)
    indices = np.floor(edges[:-1]) + np.arange(int(np.ceil(source / target)) + 1)[:, None]
    overlap = np.minimum(indices + 1, edges[1:]) - np.maximum(indices, edges[:-1])
    overlap = overlap.clip(0) * (indices < source)
    return indices, overlap / overlap.sum(axis=0)


def _cubic(b: float, c: float) -> Callable[[Floats], Floats]:
    """The cubic splines of Mitchell and Netravali, "Reconstruction filters in computer graphics", 1988."""

    def kernel(x: Floats) -> Floats:
        near = (12 - 9 * b - 6 * c) * x**3 + (-18 + 12 * b + 6 * c) * x**2 + 6 - 2 * b
        far = (-b - 6 * c) * x**3 + (6 * b + 30 * c) * x**2 + (-12 * b - 48 * c) * x + 8 * b + 24 * c
        return np.where(x < 1, near, np.where(x < 2, far, 0)) / 6

    return kernel


def _lanczos(radius: int) -> Callable[[Floats], Floats]:
    return lambda x: np.where(x <= radius, np.sinc(x) * np.sinc(x / radius), 0)


_KERNELS: Final[dict[str, tuple[float, Callable[[Floats], Any]]]] = {
    "bicubic": (2, _cubic(0, 0.5)),
    "mitchellcubic": (2, _cubic(1 / 3, 1 / 3)),
    "lanczos3": (3, _lanczos(3)),
    "lanczos5": (5, _lanczos(5)),
    "gaussian": (1.5, lambda x: np.where(x < 1.5, np.exp(-2 * x**2), 0)),  # a standard deviation of 0.5
}
