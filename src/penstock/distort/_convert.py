"""Conversions of pixels and labels for a network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, final

import numpy as np

from penstock.base._errors import ArgumentError, ArgumentTypeError, type_of
from penstock.distort._distortion import Distortion, changes
from penstock.distort._frame import Array, Key, Work, place_of, replaced
from penstock.distort._values import Draws, numbers, whole

_ONE: Final = 1.01
"""Interpolated values may be slightly above 1."""


def to_float(dtype: Any = "float32") -> Distortion:
    """Converts integers to floats from 0 to 1: the largest value of their dtype becomes 1. Floats keep their values.

    Args:
        dtype: float16, float32 or float64.

    Raises:
        ValueError: When called: an image of floats has values above 1, such as levels up to 255.

    Example:
        >>> from penstock.image import to_float
        >>> to_float()(np.array([[0, 51, 255]], "uint8"))
        array([[0. , 0.2, 1. ]], dtype=float32)
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise ArgumentTypeError(f"to_float() takes a dtype, not {dtype!r}.") from None
    if found not in (np.float16, np.float32, np.float64):
        raise ArgumentError(f"to_float() makes float16, float32 or float64, not {found}.")
    return changes("to_float", _to_float, dtype=lambda _: found.name)


def _to_float(work: Work, draws: Draws, name: str) -> None:
    dtype, working = np.dtype(name), np.promote_types(name, np.float32)
    for frame in work.images:
        frame.make_bools_floats()
        if frame.dtype.kind == "f":
            if frame.image.size and frame.image.max() > _ONE:
                raise ValueError(
                    f"to_float() leaves floats as they are, and these go up to {frame.image.max():g}, not 1. Read the "
                    'images with dtype="uint8"; or use normalize(0, 255), for levels up to 255.'
                )
            frame.image = frame.image.astype(working, copy=False)
        else:
            frame.image = np.divide(frame.image, np.iinfo(frame.dtype).max, dtype=working)
        frame.dtype = dtype


def normalize(mean: float | Sequence[float], std: float | Sequence[float]) -> Distortion:
    """Subtracts a mean and divides by a standard deviation. The result is float32, or float64 for float64 images.

    Args:
        mean: In the units of the pixels at this step: 0 to 1 after `to_float()`. One number, or one for each channel.
        std: The same, above 0.
    """
    means, stds = numbers(mean, "normalize(): mean"), numbers(std, "normalize(): std")
    if min(stds) <= 0:
        raise ArgumentError(f"normalize(): std={std!r} is a standard deviation, which is above 0.")
    if len(means) != len(stds) and 1 not in (len(means), len(stds)):
        raise ArgumentError(f"normalize() has {len(means)} means and {len(stds)} standard deviations.")
    return changes("normalize", _normalize, mean=lambda _: means, std=lambda _: stds)


def _normalize(work: Work, draws: Draws, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    for frame in work.images:
        frame.make_bools_floats()
        image = frame.image
        wanted, count = max(len(mean), len(std)), image.shape[2] if image.ndim == 3 else 1
        if wanted not in (1, count):
            raise ValueError(f"normalize(mean={mean}, std={std}) is for {wanted} channels, and the image has {count}.")
        dtype = np.dtype(np.float64 if frame.dtype == np.float64 else np.float32)
        # A row of pixels at once: an inner loop over three channels would take several times as long.
        factors, shifts = _row(mean, std, image.shape[1:], dtype)
        result = np.multiply(image.reshape(len(image), -1), factors, dtype=dtype)
        result += shifts
        frame.image, frame.dtype = result.reshape(image.shape), dtype


@lru_cache(maxsize=64)
def _row(
    mean: tuple[float, ...], std: tuple[float, ...], shape: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Returns the factors and summands of a row of pixels, (width,) or (width, channels)."""
    factors = 1 / np.array(std)
    shifts = -np.array(mean) * factors
    return tuple(np.broadcast_to(each, shape).astype(dtype).reshape(-1) for each in (factors, shifts))  # type: ignore[return-value]


def one_hot(count: int, *, on: Key | None = None) -> Callable[[Any], Any]:
    """Converts labels to rows with a 1 at the label's place, for `map`.

    Integers of any shape `(...)` become float32 `(..., count)`.

    Args:
        count: The number of classes.
        on: The leaf of the element that holds the labels; None if the element is the labels.

    Raises:
        ValueError: When called: a label is outside `[0, count)`, or labels are no integers.

    Example:
        >>> from penstock.image import one_hot
        >>> penstock.from_arrays((np.zeros((2, 8, 8)), np.array([2, 0]))).map(one_hot(3, on=1))[0][1]
        array([0., 0., 1.], dtype=float32)
    """
    return _OneHot(whole(count, "one_hot(): count"), on)


@final
@dataclass(frozen=True, repr=False)
class _OneHot:
    """A function of an element: an immutable, hashable, picklable value. Any number of threads may call it."""

    count: int
    on: Key | None
    releases_gil: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "__qualname__", "one_hot")  # the label of its step

    def __repr__(self) -> str:
        return f"one_hot({self.count}{'' if self.on is None else f', on={self.on!r}'})"

    def __call__(self, element: Any) -> Any:
        """Converts the labels of an element."""
        if self.on is not None:
            place = place_of(element, self.on)
            return replaced(element, {place: self._rows(element[place])})
        if isinstance(element, tuple | Mapping):
            raise ValueError(
                f"The element is {type_of(element)}, not labels. Say which leaf they are: one_hot({self.count}, on=1)."
            )
        return self._rows(element)

    def _rows(self, given: Any) -> Array:
        labels = np.asarray(given)
        if labels.dtype.kind not in "iu":
            raise ValueError(f"Labels are integers, but here are {labels.dtype}.")
        flat = labels.reshape(-1)
        if flat.size and not 0 <= flat.min() <= flat.max() < self.count:
            wrong = flat[(flat < 0) | (flat >= self.count)][0]
            raise ValueError(
                f"A label is {wrong}, outside [0, {self.count}): one_hot({self.count}) has a place for each class."
            )
        rows = np.zeros((flat.size, self.count), np.float32)
        rows[np.arange(flat.size), flat] = 1
        return rows.reshape(*labels.shape, self.count)
