"""Frames of the user, or of the film: the order of their axes and the range of their values."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.demos.errors import DemoError

MIN_FRAMES = 20
RANGE_FRAMES = 64
"""Frames read to find the range of values, spread evenly over the file."""


@dataclass(frozen=True)
class Frames:
    """A file of frames."""

    path: Path
    dataset: ps.Dataset
    """Single frames, as stored in the file."""
    shape: tuple[int, ...]
    """The shape of one frame."""
    channels_axis: int | None
    """The axis of a frame that holds channels: 0, 2, or None without channels."""
    low: float
    """The darkest value."""
    high: float
    """The brightest value."""

    @property
    def pixels(self) -> int:
        """Height times width of one frame."""
        return math.prod(size for axis, size in enumerate(self.shape) if axis != self.channels_axis)

    def images(self, frames: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Converts `(n, *shape)` in the file's units to `(n, height, width, 1 or 3)` in 0 to 1."""
        unit = (np.asarray(frames, np.float64) - self.low) / (self.high - self.low)
        if self.channels_axis is None:
            return unit[..., None]
        last: npt.NDArray[np.float64] = np.moveaxis(unit, self.channels_axis + 1, -1)
        return last[..., :3] if last.shape[-1] >= 3 else last[..., :1]


def open_frames(path: str | os.PathLike[str]) -> Frames:
    """Opens a `.npy` of frames: (n, height, width), (n, channels, height, width) or channels last.

    Reads the header, and some frames to find the range of their values.

    Raises:
        SourceError: Not a `.npy` file, truncated, or of Python objects.
        DemoError: The rows are not frames, or too few.
    """
    dataset = ps.from_npy(path)
    shape, dtype = dataset.element_spec.shape, dataset.element_spec.dtype
    found = f"{Path(path).name} is {(len(dataset), *shape)} {dtype}"
    if dtype.kind not in "uif" or len(shape) not in (2, 3) or 0 in shape:
        raise DemoError(
            f"{found}, which is no film. The demo trains on numbers (float or integer) of shape "
            "(frames, height, width), (frames, channels, height, width) or (frames, height, width, channels)."
        )
    if len(dataset) < MIN_FRAMES:
        raise DemoError(
            f"{found}: {len(dataset)} frames are too few to train, validate and test on. The demo needs at least "
            f"{MIN_FRAMES}. Without --data it makes a film of its own."
        )
    low, high = np.inf, -np.inf
    for index in np.linspace(0, len(dataset) - 1, min(RANGE_FRAMES, len(dataset))).astype(int):
        frame = dataset[int(index)]
        if not np.isfinite(frame).all():
            raise DemoError(f"{found}, and frame {index} holds NaN or infinite values. A model cannot train on them.")
        low, high = min(low, float(frame.min())), max(high, float(frame.max()))
    if low == high:
        raise DemoError(f"{found}, and every value of the frames read is {low:g}: there is no motion to learn.")
    if dtype == np.uint8:
        low, high = 0.0, 255.0
    elif low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    # A film has fewer channels than rows or columns.
    channels_axis = None if len(shape) == 2 else 0 if shape[0] <= shape[2] else 2
    return Frames(Path(path), dataset, shape, channels_axis, low, high)
