"""Frames of a user, or of the film: which axis is which, and which values are dark and bright."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.demos.errors import DemoError

MIN_FRAMES = 20
LOOKED_AT = 64
"""Frames that are read to learn the range of values, spread evenly over the file."""


@dataclass(frozen=True)
class Frames:
    """A file of frames, and how to look at one."""

    path: Path
    dataset: ps.Dataset
    """Single frames, as they are in the file."""
    channels_axis: int | None
    """Which axis of a frame holds channels: 0, 2, or None where there is none."""
    low: float
    """The darkest value, of those looked at."""
    high: float
    """The brightest."""

    @property
    def spec(self) -> ps.ArraySpec:
        """Of one frame."""
        return self.dataset.element_spec  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one frame."""
        return self.spec.max_shape or ()  # never (): rows of a file have one shape

    @property
    def pixels(self) -> int:
        """Height times width of one frame."""
        return math.prod(size for axis, size in enumerate(self.shape) if axis != self.channels_axis)

    def images(self, frames: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Makes `(n, height, width, 1 or 3)` in 0 to 1, for the eye, of `(n, *shape)` in the file's units."""
        unit = (np.asarray(frames, np.float64) - self.low) / (self.high - self.low)
        if self.channels_axis is None:
            return unit[..., None]
        last: npt.NDArray[np.float64] = np.moveaxis(unit, self.channels_axis + 1, -1)
        return last[..., :3] if last.shape[-1] >= 3 else last[..., :1]


def open_frames(path: str | os.PathLike[str]) -> Frames:
    """Opens a `.npy` of frames: (n, height, width), (n, channels, height, width) or channels last.

    Reads the header, and some frames to learn the range of their values.

    Raises:
        SourceError: Not a `.npy` file, truncated, or of Python objects.
        DemoError: Its rows are not frames, or too few.
    """
    dataset = ps.from_npy(path)
    spec = dataset.element_spec
    found = f"{Path(path).name} is {(len(dataset), *spec.shape)} {spec.dtype}"
    if spec.dtype.kind not in "uif" or len(spec.shape) not in (2, 3) or 0 in spec.shape:
        raise DemoError(
            f"{found}, which is no film. The demo trains on numbers (float or integer) of shape "
            "(frames, height, width), (frames, channels, height, width) or (frames, height, width, channels)."
        )
    if len(dataset) < MIN_FRAMES:
        raise DemoError(
            f"{found}: {len(dataset)} frames are too few to train, validate and test on. The demo needs at least "
            f"{MIN_FRAMES}; without --data it makes a film of its own."
        )
    channels_axis = None
    if len(spec.shape) == 3:
        # There are fewer channels than rows or columns in every film that we can think of.
        channels_axis = 0 if spec.shape[0] <= spec.shape[2] else 2
    return Frames(Path(path), dataset, channels_axis, *_range_of_values(dataset, found))


def _range_of_values(dataset: ps.Dataset, found: str) -> tuple[float, float]:
    low, high = np.inf, -np.inf
    for index in np.linspace(0, len(dataset) - 1, min(LOOKED_AT, len(dataset))).astype(int):
        frame: Any = dataset[int(index)]
        if not np.isfinite(frame).all():
            raise DemoError(
                f"{found}, and frame {index} holds NaN or infinite values, on which nothing can be trained."
            )
        low, high = min(low, float(frame.min())), max(high, float(frame.max()))
    if low == high:
        raise DemoError(f"{found}, and every value that was looked at is {low:g}: there is no motion to learn.")
    if dataset.element_spec.dtype == np.uint8:
        return 0.0, 255.0
    return (0.0, 1.0) if low >= 0.0 and high <= 1.0 else (low, high)
