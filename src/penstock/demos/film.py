"""Frames to train on: those of a user's file, or of a film, in which a camera pans over real photographs.

The photographs ship inside scikit-image.

The camera pans to the right at about two pixels a frame. At the edge it cuts to another part of the photograph. So one
frame is enough to predict the next frame, yet the two differ.

The film moves from one photograph to the next. Split 60/20/20 by range, training sees six photographs, validation a
seventh, and the test an eighth.
"""

import importlib.resources
import itertools
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.base._arguments import install
from penstock.base._atomic import complete
from penstock.base._errors import PenstockError

MIN_FRAMES = 20
RANGE_FRAMES = 64
"""Frames read to find the range of values, spread evenly over the file."""

FRAME_COUNT = 20_000
SIDE = 50
CHUNK = 100
"""Frames written at a time: 6 MB. Memory holds one chunk and one photograph."""
RECIPE = 2
"""Part of the file's name, so that a film of another recipe is another file."""
WIDTH = 400
"""The width at which a photograph is shown, in pixels."""
SPEED = 2.1
"""Pixels a frame."""

SHARES = {
    "motorcycle_left.png": 0.1,
    "coffee.png": 0.1,
    "rocket.jpg": 0.1,
    "hubble_deep_field.jpg": 0.1,
    "ihc.png": 0.1,
    "retina.jpg": 0.1,
    "chelsea.png": 0.2,
    "astronaut.png": 0.2,
}
"""Each photograph's share of the film, in order."""

Array = npt.NDArray[np.float64]


class DemoError(PenstockError):
    """The demo cannot run here. The message names what is missing, and the remedy."""


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
    if dtype.kind not in "uif" or len(shape) not in (2, 3) or 0 in shape or len(dataset) < MIN_FRAMES:
        raise DemoError(
            f"{found}, which is no film. The demo trains on numbers (float or integer) of shape "
            "(frames, height, width), (frames, channels, height, width) or (frames, height, width, channels), and "
            f"needs at least {MIN_FRAMES} frames. Without --data it makes a film of its own."
        )
    some = dataset[np.linspace(0, len(dataset) - 1, min(RANGE_FRAMES, len(dataset))).astype(int)]
    values = ps.statistics(some, executor="inline")
    low, high = float(values.min), float(values.max)
    if not low < high < math.inf:
        raise DemoError(f"{found}, with values from {low:g} to {high:g}, on which a model cannot train.")
    # A film has fewer channels than rows or columns.
    channels_axis = None if len(shape) == 2 else 0 if shape[0] <= shape[2] else 2
    return Frames(Path(path), dataset, shape, channels_axis, low, high)


def film_path(data_dir: str | os.PathLike[str] | None = None, frame_count: int = FRAME_COUNT) -> Path:
    """Returns the film's path: in `data_dir`, or else in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    size = "" if frame_count == FRAME_COUNT else f"-{frame_count}"
    return (cache if data_dir is None else Path(data_dir)) / f"film-{RECIPE}{size}.npy"


def make_film(path: Path, frame_count: int = FRAME_COUNT) -> None:
    """Writes the film, `(frame_count, 3, 50, 50)` float64 in [0, 1], to a `.npy` file, and prints how far it is.

    Every run writes the same frames. The file appears under its name only when it is complete.

    Memory: one photograph and `CHUNK` frames.

    Args:
        path: The file to make. Its folder is made, too.
        frame_count: At least 400.

    Raises:
        DemoError: scikit-image is missing, or the disk is too small.
    """
    frames = _frames(_folder_of_photographs(), frame_count)
    shape = (frame_count, 3, SIDE, SIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    if (free_nbytes := shutil.disk_usage(path.parent).free) < (nbytes := 8 * math.prod(shape)):
        raise DemoError(
            f"The film needs {nbytes / 1e9:.2f} GB, but the disk of {path.parent} has {free_nbytes / 1e9:.2f} GB "
            "free. Choose a folder on another disk: penstock demo --data-dir FOLDER"
        )
    with complete(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
        for start in range(0, frame_count, CHUNK):
            if start % (frame_count // 4) == 0:
                print(f"  {100 * start // frame_count} %", flush=True)
            file.write(np.stack(list(itertools.islice(frames, CHUNK))).astype("<f8").data)


def _folder_of_photographs() -> Path:
    try:
        return Path(str(importlib.resources.files("skimage"))) / "data"
    except ModuleNotFoundError:
        raise DemoError(
            "The demo's film is made from photographs in the package scikit-image, which is not installed. "
            f"Install it: {install('scikit-image')}. Or bring frames of your own: penstock demo --data my.npy"
        ) from None


def _frames(folder: Path, frame_count: int) -> Iterator[Array]:
    """Yields every frame, (3, 50, 50) float64. Memory holds one photograph."""
    ends = [round(frame_count * share) for share in itertools.accumulate(SHARES.values())]
    for number, (name, count) in enumerate(zip(SHARES, np.diff(ends, prepend=0), strict=True)):
        image = _load(folder / name)
        for x, y in zip(*camera(int(count), *image.shape[1:], seed=number), strict=True):
            # Linear interpolation, so that motion is smooth and not in whole pixels.
            left, top = int(x), int(y)
            part = image[:, top : top + SIDE, left : left + SIDE + 1]
            yield part[..., :-1] + (x - left) * (part[..., 1:] - part[..., :-1])


def _load(path: Path) -> Array:
    """Loads a photograph: (3, height, `WIDTH`) float64 in [0, 1]."""
    from skimage.io import imread
    from skimage.transform import resize

    image: Any = imread(path)[..., :3]
    small = resize(image, (round(image.shape[0] * WIDTH / image.shape[1]), WIDTH), anti_aliasing=True)
    return np.ascontiguousarray(np.clip(small, 0.0, 1.0).transpose(2, 0, 1), dtype=np.float64)


def camera(frame_count: int, height: int, width: int, *, seed: int) -> tuple[Array, Array]:
    """Returns the left and the top edge of each frame in a photograph, in pixels. The same seed gives the same."""
    shots, x = np.divmod(SPEED * np.arange(frame_count), width - SIDE - 1)
    tops = np.random.default_rng((RECIPE, seed)).uniform(0, height - SIDE, int(shots[-1]) + 1)
    return x, tops[shots.astype(int)]
