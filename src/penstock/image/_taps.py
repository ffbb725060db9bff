"""The weights of pixels in a resized image, one axis at a time.

They are those of TensorFlow's `tf.image.resize` without antialiasing. The centre of a pixel is half a pixel from its
edge. The width of a kernel does not depend on the scale, so shrinking skips pixels, except with `area`. The part of a
kernel outside the image is cut off, and the rest is scaled to a sum of 1.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
    "bilinear": (1, lambda x: (1 - x).clip(0)),
    "bicubic": (2, _cubic(0, 0.5)),
    "mitchellcubic": (2, _cubic(1 / 3, 1 / 3)),
    "lanczos3": (3, _lanczos(3)),
    "lanczos5": (5, _lanczos(5)),
    "gaussian": (1.5, lambda x: np.where(x < 1.5, np.exp(-2 * x**2), 0)),  # a standard deviation of 0.5
}
